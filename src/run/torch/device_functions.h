// SPDX-License-Identifier: Apache-2.0
// The functions that Penstock needs of a device and libtorch has no interface for, as the device's own library gives them.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "torch/kernel_argument.h"

namespace penstock {

// In bytes. Free is what arenas may still take: what other processes hold is not.
struct DeviceMemory {
  std::int64_t free = 0, total = 0;
};

// Each function throws c10::Error.
struct DeviceFunctions {
  // Graphs record the work of streams, and give it to them again.
  void (*begin)(c10::Stream root);   // records what `root` is given, and every stream that waits for what is recorded
  void* (*end)(c10::Stream root);    // the recorded graph. All streams were joined to the root again. On any thread.
  void (*cancel)(c10::Stream root);  // ends recording, whatever was recorded. On any thread.
  void (*launch)(void* graph, c10::Stream stream);
  void (*destroy)(void* graph);

  // A stream as libraries of the device's own are given it (NCCL: a cudaStream_t).
  void* (*stream_handle)(c10::Stream stream);

  // The number of devices and, where there is none, the reason.
  int (*count)();
  std::string (*why_none)();
  std::string (*name)(c10::Device device);  // its product's

  // Memory. What an arena takes is not the allocator's, from which kernels have theirs: the peak is the most bytes that the allocator has
  // handed out at once since reset_peak(), beginning with those that it has handed out then.
  DeviceMemory (*memory)(c10::Device device);
  c10::DataPtr (*arena)(std::size_t bytes, c10::Device device);  // throws c10::OutOfMemoryError
  // Memory of the host from and to which the device copies by itself: no other copies are recorded.
  c10::DataPtr (*pinned)(std::size_t bytes, c10::Device device);
  std::int64_t (*peak)(c10::Device device);
  void (*reset_peak)(c10::Device device);

  // Kernels of our own (src/run/cuda/kernels.cu), on a device that has them. A launch is work of the stream, is recorded as such, and keeps
  // the memory of the tensors that it is given as long as it needs it.
  bool (*has_kernels)(c10::Device device);
  void* (*find_kernel)(const char* name, c10::Device device);
  void (*launch_kernel)(void* kernel, const KernelGrid& grid, std::span<const KernelArgument> arguments, c10::Stream stream);

  // Kernels whose text is made as the program runs (torch/chain_text.h): all that their images depend on beside the text, the image of a
  // text, with which `load_kernel` finds a kernel for launch_kernel. The first throws where there is no compiler of theirs.
  std::string (*compiler)(c10::Device device);
  std::string (*compile)(const std::string& text, c10::Device device);
  void* (*load_kernel)(const std::string& image, const char* name);
};

}  // namespace penstock
