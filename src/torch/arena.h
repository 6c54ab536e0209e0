// Memory for the tensors of a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace penstock {

// Zeroed memory, aligned for every kernel and to huge pages, so that the system can use them. It is written once at the start, so that no
// page fault falls into a step. An empty arena has no memory.
class Arena {
 public:
  Arena() = default;
  explicit Arena(std::int64_t bytes);

  std::byte* data() const { return data_.get(); }
  std::int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::int64_t bytes_ = 0;
};

}  // namespace penstock
