// SPDX-License-Identifier: Apache-2.0
#include "standin/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace penstock::standin {
namespace {

constexpr std::size_t kGrain = 512;                      // as CUDA's allocator aligns
constexpr std::size_t kReturned = std::size_t{1} << 20;  // from this size on the pages of what is freed go back to the system
constexpr std::size_t kPage = 4096;

// PENSTOCK_STANDIN_MEMORY, in bytes; without it what no test needs more than.
std::size_t bytes_of_the_device() {
  const char* const given = std::getenv("PENSTOCK_STANDIN_MEMORY");
  return given ? std::strtoull(given, nullptr, 10) / kGrain * kGrain : std::size_t{64} << 30;
}

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

c10::DataPtr Memory::take(std::size_t bytes, bool is_arena) {
  const std::size_t size = std::max((bytes + kGrain - 1) / kGrain * kGrain, kGrain);
  const std::lock_guard lock(mutex_);
  const auto gap = std::find_if(free_.begin(), free_.end(), [&](const auto& entry) { return entry.second >= size; });
  TORCH_CHECK_WITH(OutOfMemoryError, gap != free_.end(), "stand-in out of memory: ", bytes, " bytes are asked for, it has ", size_);
  const auto [offset, room] = *gap;
  free_.erase(gap);
  if (room > size) free_.emplace(offset + size, room - size);
  used_[offset] = {.bytes = size, .is_arena = is_arena};
  held_ += size;
  if (!is_arena) allocated_ += size;
  peak_ = std::max(peak_, allocated_);
  return {shown_ + offset, shown_ + offset, &release, {kType, 0}};
}

c10::DataPtr Memory::allocate(std::size_t bytes) {
  return take(bytes, false);
}

c10::DataPtr Memory::arena(std::size_t bytes) {
  return take(bytes, true);
}

std::shared_ptr<const void> Memory::hold(const void* address) {
  const std::lock_guard lock(mutex_);
  const auto block = is_here(address) ? used_.find(offset_of(address)) : used_.end();
  if (block == used_.end() || block->second.is_arena) return nullptr;
  ++block->second.holders;
  return {address, [this](const void* held) {
            const std::lock_guard drops(mutex_);
            drop(used_.find(offset_of(held)));
          }};
}

c10::DataPtr Memory::pinned(std::size_t bytes) {
  auto* const address = static_cast<char*>(std::malloc(bytes));
  TORCH_CHECK_WITH(OutOfMemoryError, address, "stand-in: the host has no ", bytes, " bytes");
  const std::lock_guard lock(mutex_);
  pinned_.emplace(address, bytes);
  return {address, address, &release_pinned, c10::DeviceType::CPU};
}

bool Memory::is_pinned(const void* address) {
  const std::lock_guard lock(mutex_);
  const auto behind = pinned_.upper_bound(static_cast<const char*>(address));
  return behind != pinned_.begin() && address < std::prev(behind)->first + std::prev(behind)->second;
}

std::int64_t Memory::free() {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(size_ - held_);
}

std::int64_t Memory::peak() {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(peak_);
}

void Memory::reset_peak() {
  const std::lock_guard lock(mutex_);
  peak_ = allocated_;
}

c10::DeleterFnPtr Memory::raw_deleter() const {
  return &release;
}

void Memory::copy_data(void* to, const void* from, std::size_t bytes) const {
  std::memmove(bytes_of(to), bytes_of(from), bytes);
}

void Memory::release(void* address) {
  Memory& all = memory();
  const std::lock_guard lock(all.mutex_);
  const auto block = all.used_.find(all.offset_of(address));
  if (!block->second.is_arena) all.allocated_ -= block->second.bytes;
  all.drop(block);
}

void Memory::release_pinned(void* address) {
  {
    const std::lock_guard lock(memory().mutex_);
    memory().pinned_.erase(static_cast<const char*>(address));
  }
  std::free(address);
}

void Memory::drop(std::map<std::size_t, Block>::iterator block) {
  if (--block->second.holders > 0) return;
  const auto [offset, what] = *block;
  used_.erase(block);
  give_back(offset, what.bytes);
}

void Memory::give_back(std::size_t offset, std::size_t bytes) {
  held_ -= bytes;
  if (bytes >= kReturned) {
    // Whole pages only: a part of the first and of the last one may be others' memory, and the system would clear that too.
    const std::size_t first = (offset + kPage - 1) / kPage * kPage, end = (offset + bytes) / kPage * kPage;
    madvise(bytes_ + first, end - first, MADV_REMOVE);
  }
  auto behind = free_.lower_bound(offset);
  if (behind != free_.end() && behind->first == offset + bytes) {
    bytes += behind->second;
    behind = free_.erase(behind);
  }
  if (behind != free_.begin()) {
    const auto before = std::prev(behind);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace(offset, bytes);
}

Memory& memory() {
  static Memory* const all = new Memory(bytes_of_the_device());  // tensors may outlive what is static
  return *all;
}

}  // namespace penstock::standin
