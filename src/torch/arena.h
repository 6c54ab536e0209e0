// Memory for tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace penstock {

// Zeroed memory, aligned for every kernel (to a huge page, so that the system can use them), and written once at the start: no page
// fault falls into a step. An empty arena has no memory.
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
