#include "torch/arena.h"

#include <sys/mman.h>

#include <cstring>

#include "base/text.h"
#include "penstock/error.h"
#include "penstock/program.h"

namespace penstock {

Arena::Arena(std::int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  constexpr std::size_t kHugePage = std::size_t{1} << 21;
  const auto size = static_cast<std::size_t>(bytes);
  const std::size_t alignment = size < kHugePage ? static_cast<std::size_t>(kAlignment) : kHugePage;
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, rounded)));
  if (!data_)
    throw Error(concat("there is no memory for ", bytes_text(static_cast<double>(bytes)), " that a program plans"), {},
                "a smaller model or batch, more micro-batches, or --recompute inputs");
  if (alignment == kHugePage) madvise(data_.get(), rounded, MADV_HUGEPAGE);  // only advice: without it everything works, but slower
  std::memset(data_.get(), 0, rounded);
}

}  // namespace penstock
