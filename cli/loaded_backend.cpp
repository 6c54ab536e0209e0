// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <filesystem>

#include "base/build_id.h"
#include "base/text.h"
#include "cli/backend.h"
#include "penstock/error.h"

namespace penstock {

// The build id of the library that was built with this program: cmake/backend_build.cmake writes it, so that the program's own build id
// stands for both.
extern const char kBackendBuild[];

namespace {

constexpr const char* kLibrary = "libpenstock_backend.so";

[[noreturn]] void fail(std::string why) {
  throw Error(concat("cannot load ", kLibrary, ", with which the program computes"), {std::move(why)},
              "cmake --install puts it where the program looks");
}

// Beside the program, where both are built, or where both are installed; no other place can put a library in its stead.
std::string library() {
  std::error_code none;
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", none).parent_path();
  const std::filesystem::path built = folder / kLibrary, installed = (folder / PENSTOCK_BACKEND_FOLDER / kLibrary).lexically_normal();
  for (const std::filesystem::path& path : {built, installed})
    if (std::filesystem::exists(path, none)) return path.string();
  fail(concat("there is neither ", built.string(), " nor ", installed.string()));
}

// Both have the same classes: with a library of another build nothing that it gives could be used, so its code does not run.
void check_build(const std::string& path) {
  const ElfFile library = read_elf(path).value_or(ElfFile());
  const char* const hint = "build both anew (make build), or install both together (cmake --install)";
  if (library.build_id != kBackendBuild)
    throw Error(concat(path, " is of another build than the program"),
                {concat("the program was built with: ", kBackendBuild),
                 concat("the library is: ", library.build_id.empty() ? "without a build id" : library.build_id)},
                hint);
  std::error_code none;
  if (const std::uint64_t there = std::filesystem::file_size(path, none); !none && there < library.bytes)
    throw Error(concat(path, " is not whole"), {concat("it has ", there, " bytes; its headers say ", library.bytes)}, hint);
}

const Backend& loaded() {
  const std::string path = library();
  check_build(path);
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) fail(dlerror());
  void* const made = dlsym(library, "penstock_backend");
  if (!made) fail(dlerror());
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
