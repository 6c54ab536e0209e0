// SPDX-License-Identifier: Apache-2.0
#include "base/hash.h"

#include <cstring>

namespace penstock {

void Hash::add(std::uint64_t word) {
  state_ = (state_ ^ word) * 0x100000001b3ull;
  state_ ^= state_ >> 29;
}

void Hash::add(std::string_view bytes) {
  add(bytes.size());
  for (char c : bytes) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
}

void Hash::add(std::span<const std::byte> content) {
  add(content.size());
  add_content(content);
}

void Hash::add_content(std::span<const std::byte> content) {
  for (std::uint64_t word = 0; content.size() >= sizeof word; content = content.subspan(sizeof word)) {
    std::memcpy(&word, content.data(), sizeof word);
    add(word);
  }
  for (const std::byte byte : content) add(static_cast<std::uint64_t>(byte));
}

std::uint64_t Hash::value() const {
  // The finaliser of MurmurHash3 (Appleby, public domain).
  std::uint64_t h = state_;
  h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdull;
  h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return h ^ (h >> 33);
}

}  // namespace penstock
