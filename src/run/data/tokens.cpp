// SPDX-License-Identifier: Apache-2.0
#include "data/tokens.h"

#include <algorithm>

#include "base/invariant.h"

namespace penstock {

void FileBytes::copy(std::int64_t begin, std::span<std::int64_t> out) const {
  const auto token = [](auto byte) { return static_cast<std::int64_t>(static_cast<unsigned char>(byte)); };
  const SteadyFile::Reading file(file_);
  if (!held_.empty()) {
    std::transform(held_.begin() + begin, held_.begin() + begin + std::ssize(out), out.begin(), token);
    return;
  }
  std::vector<std::byte> bytes(out.size());
  file.read(begin, bytes);
  std::ranges::transform(bytes, out.begin(), token);
}

void HeldTokens::copy(std::int64_t begin, std::span<std::int64_t> out) const {
  invariant(begin >= 0 && begin + std::ssize(out) <= size(), "tokens that are there are asked for");
  std::copy_n(tokens_.begin() + begin, out.size(), out.begin());
}

}  // namespace penstock
