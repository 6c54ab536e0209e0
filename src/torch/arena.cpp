#include "torch/arena.h"

#include <ATen/ops/from_blob.h>
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
    c10::DataPtr data = c10::GetAllocator(device.type())->allocate(size);
    at::from_blob(data.get(), {static_cast<std::int64_t>(size)}, at::TensorOptions(at::kByte).device(device)).zero_();
    synchronise(device);
    return data;
  } catch (const c10::OutOfMemoryError&) {
    return {};
  }
}

}  // namespace

Arena::Arena(std::int64_t bytes, c10::Device device) : bytes_(bytes) {
  if (bytes == 0) return;
  const auto size = static_cast<std::size_t>(bytes);
  data_ = device.is_cpu() ? on_host(size) : on_device(size, device);
  if (!data_)
    throw Error(concat("there is no memory for ", bytes_text(static_cast<double>(bytes)), " that a program plans"), {},
                "a smaller model or batch, more micro-batches, or --recompute inputs");
}

}  // namespace penstock
