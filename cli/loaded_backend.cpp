#include <dlfcn.h>

#include "base/text.h"
#include "cli/backend.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr const char* kLibrary = "libpenstock_backend.so";

[[noreturn]] void fail() {
  throw Error(concat("cannot load ", kLibrary, ", with which the program computes"), {dlerror()},
              "cmake --install puts it where the program looks");
}

const Backend& loaded() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (!library) fail();
  void* const made = dlsym(library, "penstock_backend");
  if (!made) fail();
  return *reinterpret_cast<const Backend* (*)()>(made)();
}

}  // namespace

const Backend& backend() {
  static const Backend& known = loaded();
  return known;
}

std::future<void> load_backend() {
  return std::async(std::launch::async, [] {
    try {
      backend();
    } catch (const Error&) {
    }
  });
}

}  // namespace penstock
