// Memory for the tensors of a device.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>

namespace penstock {

// Zeroed memory of a device. The host's is aligned for every kernel and to huge pages, so that the system can use them, and written once at
// the start, so that no page fault falls into a step. An empty arena has no memory. Throws Error where there is not so much.
class Arena {
 public:
  Arena() = default;
  explicit Arena(std::int64_t bytes, c10::Device device = c10::DeviceType::CPU);

  std::byte* data() const { return static_cast<std::byte*>(data_.get()); }
  std::int64_t bytes() const { return bytes_; }

 private:
  c10::DataPtr data_;
  std::int64_t bytes_ = 0;
};

}  // namespace penstock
