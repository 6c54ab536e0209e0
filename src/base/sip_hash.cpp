// SPDX-License-Identifier: Apache-2.0
#include "base/sip_hash.h"

#include <bit>
#include <cstring>

namespace penstock {
namespace {

struct State {
  std::uint64_t a, b, c, d;

  void round() {
    a += b, b = std::rotl(b, 13) ^ a, a = std::rotl(a, 32);
    c += d, d = std::rotl(d, 16) ^ c;
    a += d, d = std::rotl(d, 21) ^ a;
    c += b, b = std::rotl(b, 17) ^ c, c = std::rotl(c, 32);
  }
  void add(std::uint64_t word) {
    d ^= word;
    round(), round();
    a ^= word;
  }
};

}  // namespace

SipKey sip_key(std::string_view secret) {
  return {sip_hash({0, 1}, secret), sip_hash({0, 2}, secret)};
}

std::uint64_t sip_hash(const SipKey& key, std::span<const std::byte> bytes) {
  State state{key.low ^ 0x736f6d6570736575, key.high ^ 0x646f72616e646f6d, key.low ^ 0x6c7967656e657261, key.high ^ 0x7465646279746573};
  const std::uint64_t length = bytes.size();
  std::uint64_t word = 0;
  for (; bytes.size() >= sizeof word; bytes = bytes.subspan(sizeof word)) {
    std::memcpy(&word, bytes.data(), sizeof word);
    state.add(word);
  }
  word = 0;
  std::memcpy(&word, bytes.data(), bytes.size());
  state.add(word | length << 56);
  state.c ^= 0xff;
  for (int i = 0; i < 4; ++i) state.round();
  return state.a ^ state.b ^ state.c ^ state.d;
}

std::uint64_t sip_hash(const SipKey& key, std::string_view text) {
  return sip_hash(key, std::as_bytes(std::span(text)));
}

}  // namespace penstock
