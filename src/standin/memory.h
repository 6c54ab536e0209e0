// The memory of the stand-in. It is mapped twice: where tensors say that they lie nobody may read or write, so that a host that looks there
// ends at once; the bytes themselves are found only by work on the stand-in's streams.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <cstddef>
#include <map>
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
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}  // work holds the tensors that it uses (operators.cpp)
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}

 private:
  static void release(void* address);
  void give_back(std::size_t offset);

  std::size_t size_;
  char *shown_, *bytes_;  // the two mappings
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_, used_;  // sizes by offset; gaps that touch are one
};

// Of the process's one stand-in.
Memory& memory();

}  // namespace penstock::standin
