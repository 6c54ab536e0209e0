// SPDX-License-Identifier: Apache-2.0
// A keyed hash: nobody without the key can compute or predict it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace penstock {

struct SipKey {
  std::uint64_t low = 0, high = 0;
};

// A key that depends on all of a secret text; for an empty text it is a key that everybody knows.
SipKey sip_key(std::string_view secret);

// SipHash-2-4 (Aumasson and Bernstein, SipHash: a fast short-input PRF, 2012).
std::uint64_t sip_hash(const SipKey& key, std::span<const std::byte> bytes);
std::uint64_t sip_hash(const SipKey& key, std::string_view text);

}  // namespace penstock
