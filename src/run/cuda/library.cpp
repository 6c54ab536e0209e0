// SPDX-License-Identifier: Apache-2.0
// The device "cuda", a library beside the program: loading it loads libtorch for CUDA, and registers that with libtorch. It is linked to no
// CUDA runtime: the one that libtorch has brought is found when it is loaded.
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "cuda/graphs.h"
#include "cuda/module.h"
#include "cuda/runtime_compiler.h"
#include "torch/device_functions.h"

namespace penstock::cuda {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

int count() {
  int found = 0;
  if (cudaGetDeviceCount(&found) == cudaSuccess) return found;
  static_cast<void>(cudaGetLastError());
  return 0;
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string why_none() {
  int found = 0, driver = 0, runtime = 0;
  const cudaError_t error = cudaGetDeviceCount(&found);
  static_cast<void>(cudaGetLastError());
  static_cast<void>(cudaDriverGetVersion(&driver));
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  if (error == cudaErrorInsufficientDriver)
    return driver == 0
               ? "there is no NVIDIA driver (libcuda.so.1)"
               : "the NVIDIA driver is too old: it is for CUDA " + version_text(driver) + ", libtorch's CUDA is " + version_text(runtime);
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return std::string(cudaGetErrorString(error == cudaSuccess ? cudaErrorNoDevice : error)) +
         (visible ? ", CUDA_VISIBLE_DEVICES is \"" + std::string(visible) + "\"" : "");
}

std::string name(c10::Device device) {
  cudaDeviceProp properties{};
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index()));
  return properties.name;
}

// Memory that the allocator keeps for later and nobody uses is free, too: it gives that back where a card has no other memory left.
DeviceMemory memory(c10::Device device) {
  const c10::DeviceGuard guard(device);
  std::size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const c10::CachingDeviceAllocator::DeviceStats stats = allocator::getDeviceStats(device.index());
  const std::int64_t kept =
      stats.reserved_bytes[0].current - stats.active_bytes[0].current - stats.inactive_split_bytes[0].current - bytes_of_graphs(device);
  return {static_cast<std::int64_t>(free) + std::max<std::int64_t>(kept, 0), static_cast<std::int64_t>(total)};
}

void release(void* address) {
  C10_CUDA_CHECK_WARN(cudaFree(address));
}

c10::DataPtr arena(std::size_t bytes, c10::Device device) {
  const c10::DeviceGuard guard(device);
  void* address = nullptr;
  cudaError_t error = cudaMalloc(&address, bytes);
  if (error == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    allocator::emptyCache();
    error = cudaMalloc(&address, bytes);
  }
  if (error == cudaErrorMemoryAllocation) static_cast<void>(cudaGetLastError());
  TORCH_CHECK_WITH(OutOfMemoryError, error != cudaErrorMemoryAllocation, "no ", bytes, " bytes are free on ", device);
  C10_CUDA_CHECK(error);
  return {address, address, &release, device};
}

void release_pinned(void* address) {
  C10_CUDA_CHECK_WARN(cudaFreeHost(address));
}

c10::DataPtr pinned(std::size_t bytes, c10::Device device) {
  const c10::DeviceGuard guard(device);
  void* address = nullptr;
  const cudaError_t error = cudaHostAlloc(&address, bytes, cudaHostAllocPortable);
  if (error == cudaErrorMemoryAllocation) static_cast<void>(cudaGetLastError());
  TORCH_CHECK_WITH(OutOfMemoryError, error != cudaErrorMemoryAllocation, "the host has no ", bytes, " bytes to pin");
  C10_CUDA_CHECK(error);
  return {address, address, &release_pinned, c10::DeviceType::CPU};
}

std::int64_t peak(c10::Device device) {
  return allocator::getDeviceStats(device.index()).allocated_bytes[0].peak + bytes_of_graphs(device);
}

// The one that libtorch's CUDA has, which pip installs beside libtorch.
std::string nvrtc_path() {
  constexpr int kMajor = CUDART_VERSION / 1000;
  const std::string name = "libnvrtc.so." + std::to_string(kMajor);
  Dl_info libtorch{};
  dladdr(reinterpret_cast<const void*>(&c10::cuda::getDefaultCUDAStream), &libtorch);
  const std::filesystem::path folder = std::filesystem::path(libtorch.dli_fname ? libtorch.dli_fname : "").parent_path() / "../../nvidia";
  std::error_code none;
  for (const std::string& package : {"cu" + std::to_string(kMajor), std::string("cuda_nvrtc")})
    if (const auto path = folder / package / "lib" / name; std::filesystem::exists(path, none)) return path.string();
  return name;
}

// Throws c10::Error where there is none.
const RuntimeCompiler& runtime_compiler() {
  static const RuntimeCompiler compiler(nvrtc_path());
  return compiler;
}

int capability_of(c10::Device device) {
  int major = 0, minor = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index()));
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index()));
  return 10 * major + minor;
}

#ifdef PENSTOCK_KERNELS
extern "C" const char penstock_kernels[];  // cmake/kernels.cmake

bool has_images() {
  return true;
}
const void* image_for(c10::Device) {
  return penstock_kernels;
}
#else
// There was no nvcc: NVRTC compiles them, once in a process, if it is there.
bool has_images() {
  static const bool compiles = [] {
    try {
      return runtime_compiler(), true;
    } catch (const c10::Error& error) {
      TORCH_WARN("ATen's operators take the place of Penstock's own kernels: ", error.what_without_backtrace());
      return false;
    }
  }();
  return compiles;
}
const void* image_for(c10::Device device) {
  static const auto* const image = new std::string(runtime_compiler().compile_own(capability_of(device)));
  return image->data();
}
#endif

// They are of cards from A100's generation on.
bool has_kernels(c10::Device device) {
  return capability_of(device) >= 80 && has_images();
}

// A process has one card. Graphs and tensors may outlive what is static.
const Module& kernels(c10::Device device) {
  static const Module* const all = new Module(image_for(device));
  return *all;
}

void* find_kernel(const char* name, c10::Device device) {
  return kernels(device).find_kernel(name);
}

// Memory that an argument's tensor gives back as soon as this has returned, the allocator gives only to the same stream.
void launch_kernel(void* kernel, const KernelGrid& grid, std::span<const KernelArgument> arguments, c10::Stream stream) {
  const c10::DeviceGuard guard(stream.device());
  kernels(stream.device()).launch(kernel, grid, arguments, c10::cuda::CUDAStream(stream).stream());
}

std::string compiler(c10::Device device) {
  TORCH_CHECK(has_kernels(device), "generated kernels are for cards from A100's generation on");
  return runtime_compiler().identity() + "\nsm_" + std::to_string(capability_of(device));
}

std::string compile(const std::string& text, c10::Device device) {
  return runtime_compiler().compile(text, capability_of(device));
}

// The driver keeps what it loads of the image, and graphs may outlive whoever asked for it: both stay.
void* load_kernel(const std::string& image, const char* name) {
  const auto* const kept = new std::string(image);
  return (new Module(kept->data()))->find_kernel(name);
}

constexpr DeviceFunctions kFunctions = {
    begin,
    [](c10::Stream root) -> void* { return end(root); },
    cancel,
    [](void* graph, c10::Stream stream) { launch(static_cast<Graph*>(graph), stream); },
    [](void* graph) { destroy(static_cast<Graph*>(graph)); },
    [](c10::Stream stream) -> void* { return c10::cuda::CUDAStream(stream).stream(); },
    count,
    why_none,
    name,
    memory,
    arena,
    pinned,
    peak,
    [](c10::Device device) { allocator::resetPeakStats(device.index()); },
    has_kernels,
    find_kernel,
    launch_kernel,
    compiler,
    compile,
    load_kernel,
};

}  // namespace
}  // namespace penstock::cuda

extern "C" const penstock::DeviceFunctions* penstock_device_functions() {
  return &penstock::cuda::kFunctions;
}
