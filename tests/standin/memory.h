// SPDX-License-Identifier: Apache-2.0
// The memory of the stand-in. It is mapped twice: where tensors say that they lie nobody may read or write, so that a host that looks there
// ends at once; the bytes themselves are found only by work on the stand-in's streams.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

namespace penstock::standin {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

class Memory final : public c10::DeviceAllocator {
 public:
  // Address space for so many bytes. Pages are taken when they are first written.
  explicit Memory(std::size_t bytes);

  bool is_here(const void* address) const;
  // Where the bytes of an address really lie. Only for work on a stream.
  void* bytes_of(const void* address) const;

  // Throws c10::OutOfMemoryError where no gap is large enough.
  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DataPtr arena(std::size_t bytes);  // the same, but not counted by the peak
  // Keeps from others what begins at this address and was allocated, for work that comes to it after the host has freed it; null: nothing
  // was, or it is an arena, whose owner waits for the work.
  std::shared_ptr<const void> hold(const void* address);
  // Allocates pinned memory of the host, which copies of a capture need.
  c10::DataPtr pinned(std::size_t bytes);
  bool is_pinned(const void* address);
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}  // work holds what it uses (operators.cpp)
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override { reset_peak(); }

  // In bytes, whole grains: all; what is free, though it may not lie together; and the most that the host had allocated and not freed at
  // once since the reset.
  std::int64_t total() const { return static_cast<std::int64_t>(size_); }
  std::int64_t free();
  std::int64_t peak();
  void reset_peak();

 private:
  struct Block {
    std::size_t bytes = 0;
    std::size_t holders = 1;  // the host, until it frees the block, and work
    bool is_arena = false;
  };
  static void release(void* address);
  static void release_pinned(void* address);
  c10::DataPtr take(std::size_t bytes, bool is_arena);
  // Both with the lock held.
  void drop(std::map<std::size_t, Block>::iterator block);
  void give_back(std::size_t offset, std::size_t bytes);
  std::size_t offset_of(const void* address) const { return static_cast<std::size_t>(static_cast<const char*>(address) - shown_); }

  const std::size_t size_;
  char *shown_, *bytes_;  // the two mappings
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_;    // sizes by offset; gaps that touch are one
  std::map<std::size_t, Block> used_;          // by offset
  std::map<const char*, std::size_t> pinned_;  // sizes by address
  std::size_t held_ = 0;                       // in all that is used
  std::size_t allocated_ = 0, peak_ = 0;
};

// Returns the memory of the process's one stand-in.
Memory& memory();

}  // namespace penstock::standin
