#include "data/tokens.h"

#include <algorithm>

#include "base/invariant.h"

namespace penstock {

void FileBytes::copy(std::int64_t begin, std::span<std::int64_t> out) const {
  std::vector<std::byte> bytes(out.size());
  SteadyFile::Reading(file_).read(begin, bytes);
  std::ranges::transform(bytes, out.begin(), [](std::byte byte) { return static_cast<std::int64_t>(byte); });
}

void HeldTokens::copy(std::int64_t begin, std::span<std::int64_t> out) const {
  invariant(begin >= 0 && begin + std::ssize(out) <= size(), "tokens that are there are asked for");
  std::copy_n(tokens_.begin() + begin, out.size(), out.begin());
}

}  // namespace penstock
