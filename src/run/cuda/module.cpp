// SPDX-License-Identifier: Apache-2.0
#include "cuda/module.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <string>

namespace penstock::cuda {

// By cuda.h, whose handles are pointers and whose results are 0 where all is well.
struct Driver {
  int (*cuInit)(unsigned flags);
  int (*cuGetErrorName)(int error, const char** name);
  int (*cuGetErrorString)(int error, const char** text);
  int (*cuLibraryLoadData)(void** library, const void* image, int* jit_options, void** jit_values, unsigned jit_count, int* options,
                           void** values, unsigned count);
  int (*cuLibraryUnload)(void* library);
  int (*cuLibraryGetKernel)(void** kernel, void* library, const char* name);
  int (*cuLaunchKernel)(void* kernel, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y, unsigned threads_z,
                        unsigned shared_bytes, void* stream, void** arguments, void** extra);
};

namespace {

constexpr std::size_t kMostArguments = 32;

template <class F>
void find(void* library, const char* path, const char* name, F*& function) {
  function = reinterpret_cast<F*>(dlsym(library, name));
  TORCH_CHECK(function, "kernels of Penstock's own need a driver of CUDA 12 or later: ", path, " has no ", name);
}

// The driver stays loaded as long as the process.
Driver load(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library, "there is no NVIDIA driver: ", dlerror());
  Driver driver{};
  find(library, path, "cuInit", driver.cuInit);
  find(library, path, "cuGetErrorName", driver.cuGetErrorName);
  find(library, path, "cuGetErrorString", driver.cuGetErrorString);
  find(library, path, "cuLibraryLoadData", driver.cuLibraryLoadData);
  find(library, path, "cuLibraryUnload", driver.cuLibraryUnload);
  find(library, path, "cuLibraryGetKernel", driver.cuLibraryGetKernel);
  find(library, path, "cuLaunchKernel", driver.cuLaunchKernel);
  return driver;
}

// Throws what the driver says of a failure, behind what it was asked to do.
template <class... What>
void check(const Driver& driver, int result, const What&... what) {
  if (result == 0) return;
  const char *name = nullptr, *text = nullptr;
  driver.cuGetErrorName(result, &name);
  driver.cuGetErrorString(result, &text);
  TORCH_CHECK(false, c10::str(what...), ": ", name ? name : std::to_string(result), text ? c10::str(" (", text, ")") : "");
}

}  // namespace

Module::Module(const void* image, const char* driver) : driver_(std::make_unique<Driver>(load(driver))) {
  check(*driver_, driver_->cuInit(0), "the NVIDIA driver does not start");
  check(*driver_, driver_->cuLibraryLoadData(&library_, image, nullptr, nullptr, 0, nullptr, nullptr, 0), "kernels cannot be loaded");
}

Module::~Module() {
  driver_->cuLibraryUnload(library_);
}

void* Module::find_kernel(const char* name) const {
  void* kernel = nullptr;
  check(*driver_, driver_->cuLibraryGetKernel(&kernel, library_, name), "kernel ", name);
  return kernel;
}

void Module::launch(void* kernel, const KernelGrid& grid, std::span<const KernelArgument> arguments, void* stream) const {
  std::array<void*, kMostArguments> places{};
  TORCH_CHECK(arguments.size() <= places.size(), "a kernel of ", arguments.size(), " arguments");
  for (std::size_t i = 0; i < arguments.size(); ++i) places[i] = const_cast<std::byte*>(arguments[i].bytes.data());
  check(*driver_, driver_->cuLaunchKernel(kernel, grid.x, grid.y, 1, grid.threads, 1, 1, 0, stream, places.data(), nullptr), "a kernel of ",
        grid.x, " by ", grid.y, " blocks of ", grid.threads, " threads");
}

}  // namespace penstock::cuda
