// SPDX-License-Identifier: Apache-2.0
// Bytes that kernels allocate beside the arenas that a program plans, and the most of them at once.
#pragma once

#include <c10/core/Allocator.h>

#include <algorithm>
#include <cstdint>

#include "torch/device.h"

namespace penstock {

// Counts allocations of the host, on the threads whose debug info it is (c10::DebugInfoGuard).
class HostAllocations final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    now_ += size;
    run_peak = std::max(run_peak, now_);
    peak = std::max(peak, now_);
  }
  void reportOutOfMemory(std::int64_t, std::size_t, std::size_t, c10::Device) override {}
  bool memoryProfilingEnabled() const override { return true; }

  std::int64_t peak = 0, run_peak = 0;  // since they were set to 0

 private:
  std::int64_t now_ = 0;
};

// Counts allocations of a device, by what its allocator counts beyond what it had handed out when this was made. All that this process does
// there has one allocator, so where several executors share a card each has the bytes of all.
class DeviceAllocations {
 public:
  explicit DeviceAllocations(c10::Device device) : device_(device), functions_(*functions_of(device)), base_(reset()) {}

  void begin_program() { before_ = 0, reset(); }
  // Only where nobody else counts on the card: the runs before it are then kept apart from it.
  void begin_run() { before_ = peak(), run_base_ = reset(); }
  std::int64_t peak() const { return std::max(before_, functions_.peak(device_) - base_); }
  std::int64_t run_peak() const { return functions_.peak(device_) - run_base_; }  // since begin_run()

 private:
  // The peak begins again, with what is handed out now, which is returned.
  std::int64_t reset() const { return functions_.reset_peak(device_), functions_.peak(device_); }

  const c10::Device device_;
  const DeviceFunctions& functions_;
  const std::int64_t base_;
  std::int64_t before_ = 0, run_base_ = 0;
};

}  // namespace penstock
