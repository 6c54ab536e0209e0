// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime_compiler.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <filesystem>
#include <system_error>
#include <vector>

namespace penstock::cuda {

// By nvrtc.h, whose programs are pointers and whose results are 0 where all is well.
struct Nvrtc {
  int (*nvrtcVersion)(int* major, int* minor);
  const char* (*nvrtcGetErrorString)(int result);
  int (*nvrtcCreateProgram)(void** program, const char* text, const char* name, int count, const char* const* headers,
                            const char* const* names);
  int (*nvrtcDestroyProgram)(void** program);
  int (*nvrtcCompileProgram)(void* program, int count, const char* const* options);
  int (*nvrtcGetProgramLogSize)(void* program, std::size_t* bytes);
  int (*nvrtcGetProgramLog)(void* program, char* log);
  int (*nvrtcGetCUBINSize)(void* program, std::size_t* bytes);
  int (*nvrtcGetCUBIN)(void* program, char* image);
};

namespace {

constexpr const char *kOptions[] = {"--std=c++20", "--ptxas-options=-v"}, *kUnfused = "--fmad=false";
// NVRTC has no headers of C++.
constexpr std::string_view kNumbers =
    "using int32_t = int;\nusing uint32_t = unsigned;\nusing int64_t = long long;\nusing uint64_t = unsigned long long;\n"
    "using uintptr_t = unsigned long long;\n";
constexpr const char* kHeaderNames[] = {"prelude.cuh", "blocks.cuh", "chain.cuh", "../torch/element_type.h", "cstdint"};

template <class F>
void find_in(void* library, const std::string& path, const char* name, F*& function) {
  function = reinterpret_cast<F*>(dlsym(library, name));
  TORCH_CHECK(function, path, " has no ", name);
}

// NVRTC looks for a library of its own as the system does, which does not look beside it: what is loaded already is found by its name.
void load_builtins(const std::filesystem::path& nvrtc) {
  std::error_code none;
  for (const auto& file : std::filesystem::directory_iterator(nvrtc.parent_path(), none))
    if (file.path().filename().string().starts_with("libnvrtc-builtins.so.")) dlopen(file.path().c_str(), RTLD_NOW | RTLD_LOCAL);
}

// They stay loaded as long as the process.
Nvrtc load_nvrtc(const std::string& path) {
  load_builtins(path);
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library, "there is no NVRTC: ", dlerror());
  Nvrtc nvrtc{};
  find_in(library, path, "nvrtcVersion", nvrtc.nvrtcVersion);
  find_in(library, path, "nvrtcGetErrorString", nvrtc.nvrtcGetErrorString);
  find_in(library, path, "nvrtcCreateProgram", nvrtc.nvrtcCreateProgram);
  find_in(library, path, "nvrtcDestroyProgram", nvrtc.nvrtcDestroyProgram);
  find_in(library, path, "nvrtcCompileProgram", nvrtc.nvrtcCompileProgram);
  find_in(library, path, "nvrtcGetProgramLogSize", nvrtc.nvrtcGetProgramLogSize);
  find_in(library, path, "nvrtcGetProgramLog", nvrtc.nvrtcGetProgramLog);
  find_in(library, path, "nvrtcGetCUBINSize", nvrtc.nvrtcGetCUBINSize);
  find_in(library, path, "nvrtcGetCUBIN", nvrtc.nvrtcGetCUBIN);
  return nvrtc;
}

struct Program {
  const Nvrtc& nvrtc;
  void* handle = nullptr;
  ~Program() {
    if (handle) nvrtc.nvrtcDestroyProgram(&handle);
  }
  void check(int result, const char* what) const {
    TORCH_CHECK(result == 0, "NVRTC cannot ", what, " a kernel: ", nvrtc.nvrtcGetErrorString(result));
  }
  std::string bytes(int (*size)(void*, std::size_t*), int (*get)(void*, char*)) const {
    std::size_t count = 0;
    check(size(handle, &count), "give the size of");
    std::string out(count, '\0');
    check(get(handle, out.data()), "give");
    return out;
  }
};

std::string card(int capability) {
  return "--gpu-architecture=sm_" + std::to_string(capability);
}

}  // namespace

RuntimeCompiler::RuntimeCompiler(const std::string& library) : nvrtc_(std::make_unique<Nvrtc>(load_nvrtc(library))) {}

RuntimeCompiler::~RuntimeCompiler() = default;

std::string RuntimeCompiler::identity() const {
  int major = 0, minor = 0;
  TORCH_CHECK(nvrtc_->nvrtcVersion(&major, &minor) == 0, "NVRTC does not say its version");
  std::string out = "NVRTC " + std::to_string(major) + "." + std::to_string(minor);
  for (const char* option : {kOptions[0], kOptions[1], kUnfused}) out += std::string(" ") + option;
  for (const std::string_view text : {kPreludeText, kBlocksText, kChainText}) out.append("\n").append(text);
  return out;
}

std::string RuntimeCompiler::compile(const std::string& text, int capability, std::string* log) const {
  return cubin_of("#include \"prelude.cuh\"\n#include \"chain.cuh\"\n" + text, {card(capability), kUnfused}, log);
}

std::string RuntimeCompiler::compile_own(int capability, std::string* log) const {
  return cubin_of(std::string(kKernelsText), {card(capability), "-default-device"}, log);  // lambdas do not say what they are for
}

std::string RuntimeCompiler::cubin_of(const std::string& text, std::vector<std::string> options, std::string* log) const {
  const std::string texts[] = {std::string(kPreludeText), std::string(kBlocksText), std::string(kChainText), std::string(kElementTypeText),
                               std::string(kNumbers)};
  std::vector<const char*> headers, given(std::begin(kOptions), std::end(kOptions));
  for (const std::string& header : texts) headers.push_back(header.c_str());
  for (const std::string& option : options) given.push_back(option.c_str());
  Program program{*nvrtc_};
  program.check(nvrtc_->nvrtcCreateProgram(&program.handle, text.c_str(), "kernels.cu", static_cast<int>(headers.size()), headers.data(),
                                           kHeaderNames),
                "read");
  const int result = nvrtc_->nvrtcCompileProgram(program.handle, static_cast<int>(given.size()), given.data());
  const std::string said = program.bytes(nvrtc_->nvrtcGetProgramLogSize, nvrtc_->nvrtcGetProgramLog).c_str();  // it ends with a zero
  TORCH_CHECK(result == 0, "NVRTC does not compile kernels with ", options[0], ": ", nvrtc_->nvrtcGetErrorString(result), "\n", said, "\n",
              text);
  if (log) *log = said;
  return program.bytes(nvrtc_->nvrtcGetCUBINSize, nvrtc_->nvrtcGetCUBIN);
}

}  // namespace penstock::cuda
