// SPDX-License-Identifier: Apache-2.0
#include "torch/arena.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "base/text.h"
#include "penstock/error.h"
#include "penstock/program.h"
#include "torch/device.h"

namespace penstock {
namespace {

constexpr std::size_t kHugePage = std::size_t{1} << 21;

c10::DataPtr on_host(std::size_t size) {
  const std::size_t alignment = size < kHugePage ? static_cast<std::size_t>(kAlignment) : kHugePage;
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* const data = std::aligned_alloc(alignment, rounded);
  if (!data) return {};
  if (alignment == kHugePage) madvise(data, rounded, MADV_HUGEPAGE);  // only advice: without it everything works, but slower
  std::memset(data, 0, rounded);
  return {data, data, &std::free, c10::DeviceType::CPU};
}

c10::DataPtr on_device(std::size_t size, c10::Device device) {
  try {
    c10::DataPtr data = functions_of(device)->arena(size, device);
    zero_bytes({static_cast<std::byte*>(data.get()), device}, size);
    synchronise(device);
    return data;
  } catch (const c10::OutOfMemoryError&) {
    return {};
  }
}

c10::DataPtr pinned(std::size_t size, c10::Device device) {
  try {
    c10::DataPtr data = functions_of(device)->pinned(size, device);
    std::memset(data.get(), 0, size);
    return data;
  } catch (const c10::OutOfMemoryError&) {
    return {};
  }
}

constexpr const char* kSmaller = "a smaller model or batch, more micro-batches, or --recompute inputs";

}  // namespace

void check_free(std::int64_t bytes, c10::Device device) {
  if (device.is_cpu()) return;
  const DeviceMemory memory = functions_of(device)->memory(device);
  if (bytes <= memory.free) return;
  const auto text = [](std::int64_t value) { return bytes_text(static_cast<double>(value)); };
  throw Error(concat("the program plans ", text(bytes), " on ", device.str(), ", of whose ", text(memory.total), " ", text(memory.free),
                     " are free"),
              {}, bytes <= memory.total ? "something else holds the rest: another process, or other work of this one" : kSmaller);
}

Arena::Arena(std::int64_t bytes, c10::Device device) : bytes_(bytes) {
  if (bytes == 0) return;
  const auto size = static_cast<std::size_t>(bytes);
  data_ = device.is_cpu() ? on_host(size) : on_device(size, device);
  check();
}

Arena Arena::beside(std::int64_t bytes, c10::Device device) {
  if (device.is_cpu() || bytes == 0) return Arena(bytes);
  Arena made;
  made.data_ = pinned(static_cast<std::size_t>(bytes), device);
  made.bytes_ = bytes;
  made.check();
  return made;
}

void Arena::check() const {
  if (!data_)
    throw Error(concat("there is no memory for ", bytes_text(static_cast<double>(bytes_)), " that a program plans"), {}, kSmaller);
}

}  // namespace penstock
