#include "standin/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>

namespace penstock::standin {
namespace {

constexpr std::size_t kBytes = std::size_t{64} << 30;
constexpr std::size_t kGrain = 512;                      // as CUDA's allocator aligns
constexpr std::size_t kReturned = std::size_t{1} << 20;  // from this size on the pages of what is freed go back to the system

char* map(int file, std::size_t bytes, int protection) {
  void* const at = mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  TORCH_CHECK(at != MAP_FAILED, "stand-in: no address space for ", bytes, " bytes");
  return static_cast<char*>(at);
}

}  // namespace

Memory::Memory(std::size_t bytes) : size_(bytes), free_{{0, bytes}} {
  const int file = memfd_create("penstock-standin", MFD_CLOEXEC);
  TORCH_CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0, "stand-in: no memory file of ", bytes, " bytes");
  shown_ = map(file, bytes, PROT_NONE);
  bytes_ = map(file, bytes, PROT_READ | PROT_WRITE);
  close(file);
}

bool Memory::is_here(const void* address) const {
  return address >= shown_ && address < shown_ + size_;
}

void* Memory::bytes_of(const void* address) const {
  return bytes_ + (static_cast<const char*>(address) - shown_);
}

c10::DataPtr Memory::allocate(std::size_t bytes) {
  const std::size_t size = std::max((bytes + kGrain - 1) / kGrain * kGrain, kGrain);
  const std::lock_guard lock(mutex_);
  const auto gap = std::find_if(free_.begin(), free_.end(), [&](const auto& entry) { return entry.second >= size; });
  TORCH_CHECK_WITH(OutOfMemoryError, gap != free_.end(), "stand-in out of memory: ", bytes, " bytes are asked for, it has ", size_);
  const auto [offset, room] = *gap;
  free_.erase(gap);
  if (room > size) free_.emplace(offset + size, room - size);
  used_.emplace(offset, size);
  return {shown_ + offset, shown_ + offset, &release, {kType, 0}};
}

c10::DeleterFnPtr Memory::raw_deleter() const {
  return &release;
}

void Memory::copy_data(void* to, const void* from, std::size_t bytes) const {
  std::memmove(bytes_of(to), bytes_of(from), bytes);
}

void Memory::release(void* address) {
  memory().give_back(static_cast<std::size_t>(static_cast<char*>(address) - memory().shown_));
}

void Memory::give_back(std::size_t offset) {
  const std::lock_guard lock(mutex_);
  const auto used = used_.find(offset);
  std::size_t size = used->second;
  used_.erase(used);
  if (size >= kReturned) madvise(bytes_ + offset, size, MADV_REMOVE);
  auto behind = free_.lower_bound(offset);
  if (behind != free_.end() && behind->first == offset + size) {
    size += behind->second;
    behind = free_.erase(behind);
  }
  if (behind != free_.begin()) {
    const auto before = std::prev(behind);
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  free_.emplace(offset, size);
}

Memory& memory() {
  static Memory* const all = new Memory(kBytes);  // tensors may outlive what is static
  return *all;
}

}  // namespace penstock::standin
