// SPDX-License-Identifier: Apache-2.0
// Memory for the tensors of a device.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>

namespace penstock {

// Throws Error with what is free where the device has no room for so many bytes of arenas that a program plans. The host's memory is looked
// at when it is taken.
void check_free(std::int64_t bytes, c10::Device device);

// Zeroed memory of a device. The host's is aligned for every kernel and to huge pages, so that the system can use them, and written once at
// the start, so that no page fault falls into a step. An empty arena has no memory. Throws Error where there is not so much.
class Arena {
 public:
  Arena() = default;
  explicit Arena(std::int64_t bytes, c10::Device device = c10::DeviceType::CPU);
  // The host's, between which and `device` the device copies by itself.
  static Arena beside(std::int64_t bytes, c10::Device device);

  std::byte* data() const { return static_cast<std::byte*>(data_.get()); }
  std::int64_t bytes() const { return bytes_; }

 private:
  void check() const;  // that there is memory

  c10::DataPtr data_;
  std::int64_t bytes_ = 0;
};

}  // namespace penstock
