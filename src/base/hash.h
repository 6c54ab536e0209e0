// SPDX-License-Identifier: Apache-2.0
// A 64-bit hash for structural hashes of graphs and programs; stable across machines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace penstock {

// FNV-1a with a final mix; not cryptographic.
class Hash {
 public:
  void add(std::uint64_t word);
  void add(std::string_view bytes);                      // the length is hashed too
  void add(std::span<const std::byte> content);          // the length is hashed too, then as add_content
  void add_content(std::span<const std::byte> content);  // eight bytes at a time, which parts may split between them
  std::uint64_t value() const;

 private:
  std::uint64_t state_ = 0xcbf29ce484222325ull;
};

}  // namespace penstock
