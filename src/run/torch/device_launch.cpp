// SPDX-License-Identifier: Apache-2.0
#include "torch/device_launch.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "torch/device.h"
#include "torch/element_type.h"

namespace penstock {
namespace {

constexpr std::int64_t kWarp = 32, kMostThreads = 1024;
constexpr std::int64_t kMostBlocks = 1 << 13;  // twice as many as a large device has room for
constexpr std::int64_t kAtOnce = 4;            // elements that a thread has at a time

std::int64_t groups(std::int64_t n, std::int64_t of) {
  return (n + of - 1) / of;
}

KernelGrid grid_of(std::int64_t blocks, std::int64_t work, std::int64_t most_threads) {
  const std::int64_t threads = std::clamp(groups(groups(work, kAtOnce), kWarp) * kWarp, kWarp, most_threads);
  return {static_cast<unsigned>(std::min(blocks, kMostBlocks)), 1, static_cast<unsigned>(threads)};
}

}  // namespace

DeviceKernel::DeviceKernel(const char* name, c10::Device device)
    : device_(device), functions_(functions_of(device)), kernel_(functions_->find_kernel(name, device)) {}

DeviceKernel::DeviceKernel(void* kernel, c10::Device device) : device_(device), functions_(functions_of(device)), kernel_(kernel) {}

void DeviceKernel::operator()(const KernelGrid& grid, std::span<const KernelArgument> arguments) const {
  if (grid.x == 0 || grid.y == 0) return;
  const c10::impl::VirtualGuardImpl guard(device_.type());
  functions_->launch_kernel(kernel_, grid, arguments, guard.getStream(device_));
}

KernelGrid row_grid(std::int64_t rows, std::int64_t width) {
  return grid_of(rows, width, kMostThreads);
}

KernelGrid element_grid(std::int64_t elements) {
  constexpr std::int64_t threads = 256;
  return grid_of(groups(elements, threads * kAtOnce), elements, threads);
}

std::optional<int> kernel_type(const at::Tensor& x) {
  if (!x.is_contiguous()) return std::nullopt;
  switch (x.scalar_type()) {
    case at::kFloat:
      return kF32;
    case at::kBFloat16:
      return kBf16;
    case at::kHalf:
      return kF16;
    default:
      return std::nullopt;
  }
}

}  // namespace penstock
