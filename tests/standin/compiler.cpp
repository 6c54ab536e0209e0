// SPDX-License-Identifier: Apache-2.0
#include "standin/compiler.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <stdio.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "standin/emulated.h"
#include "standin/kernels.h"

namespace penstock::standin {
namespace {

const std::filesystem::path kSource = PENSTOCK_STANDIN_SOURCE;  // the project's folder
constexpr const char* kEntry = "penstock_emulated";

// PENSTOCK_STANDIN_CXX: another compiler, for tests.
std::string command() {
  const char* const other = std::getenv("PENSTOCK_STANDIN_CXX");
  return std::string(other ? other : PENSTOCK_STANDIN_COMPILER) + " " + PENSTOCK_STANDIN_FLAGS;
}

std::string read(const std::filesystem::path& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

// Returns what the command prints, and its status.
std::pair<std::string, int> run(const std::string& line) {
  FILE* const pipe = popen((line + " 2>&1").c_str(), "r");
  TORCH_CHECK(pipe, "stand-in: cannot run ", line);
  std::string said;
  for (char part[4096]; const std::size_t n = fread(part, 1, sizeof(part), pipe);) said.append(part, n);
  return {said, pclose(pipe)};
}

// This library, which has what emulated.h declares.
std::string own_path() {
  Dl_info here{};
  dladdr(reinterpret_cast<const void*>(&load_kernel), &here);
  return std::filesystem::absolute(here.dli_fname).string();
}

struct Folder {
  std::string path = std::filesystem::temp_directory_path() / "penstock-kernel-XXXXXX";
  Folder() { TORCH_CHECK(mkdtemp(path.data()), "stand-in: no folder for a kernel"); }
  ~Folder() { std::filesystem::remove_all(path); }
};

}  // namespace

std::string compiler() {
  const auto [version, status] = run(command() + " --version");
  TORCH_CHECK(status == 0, "the compiler of kernels does not run: ", version);
  std::string out = command() + "\n" + version;
  for (const char* header : {"tests/standin/emulated.h", "src/run/cuda/chain.cuh", "src/run/cuda/blocks.cuh"})
    out += read(kSource / header);
  return out;
}

std::string compile(const std::string& text) {
  const Folder folder;
  const std::string from = folder.path + "/chain.cpp", to = folder.path + "/chain.so";
  std::ofstream(from) << "#include \"standin/emulated.h\"\nnamespace {\n#include \"cuda/chain.cuh\"\n#line 1 \"chain\"\n"
                      << text << "}\nextern \"C\" penstock::emulate::Kernel " << kEntry
                      << "() { return penstock::emulate::emulated<chain>(); }\n";
  const auto [said, status] = run(command() + " '" + from + "' '" + own_path() + "' -o '" + to + "'");
  TORCH_CHECK(status == 0, "a generated kernel is not compiled: ", said, "\n", text);
  return read(to);
}

void* load_kernel(const std::string& image, const char* name) {
  const Folder folder;
  const std::string path = folder.path + "/chain.so";
  std::ofstream(path) << image;
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library, "stand-in: ", dlerror());
  const auto entry = reinterpret_cast<emulate::Kernel (*)()>(dlsym(library, kEntry));
  return enter_compiled(entry(), name);
}

}  // namespace penstock::standin
