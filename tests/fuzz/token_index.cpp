// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "data/token_file.h"
#include "fuzz/fixpoint.h"

using namespace penstock;

// The index of a file of 4096 bytes: what is read lies inside of it, and is written as it was.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::int64_t kBytes = 4096;
  const std::span<const std::byte> content = std::as_bytes(std::span(data, size));
  TokenIndex index;
  try {
    index = parse_token_index(content, "fuzz.idx", kBytes);
  } catch (const Error&) {
    return 0;
  }
  invariant(index.begins.size() == index.lengths.size() && index.documents.back() == std::ssize(index.lengths), "documents are sequences");
  for (std::size_t s = 0; s < index.begins.size(); ++s)
    invariant(index.begins[s] >= 0 && index.lengths[s] >= 0 && (index.begins[s] + index.lengths[s]) * index.width <= kBytes,
              "a sequence lies inside of the file");
  const std::vector<std::byte> printed = print(index);
  constexpr std::size_t kSealed = 12;  // bytes behind what we write; the index of others ends before them
  invariant((printed.size() == size || printed.size() == size + kSealed) && std::memcmp(printed.data(), data, size) == 0,
            "an index is written as it was read");
  return 0;
}
