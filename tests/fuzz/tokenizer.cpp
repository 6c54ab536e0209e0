// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "data/byte_level_bpe.h"
#include "fuzz/fixpoint.h"

using namespace penstock;

// A tokenizer that is read gives every text back. This one is its own canonical composition, and has what the rules for words look for.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::shared_ptr<const Tokenizer> tokenizer;
  try {
    tokenizer = parse_byte_level_bpe(fuzz::as_text(data, size), "fuzz.json");
  } catch (const Error&) {
    return 0;
  }
  const std::string text = "The stages' end, don't \t\r\n  12345 (x){y}; \xd0\xbc\xd0\xb8\xd1\x80 <|endoftext|>\n\n ";
  const std::vector<std::int32_t> tokens = tokenizer->encode(text);
  for (const std::int32_t token : tokens) invariant(token >= 0 && token < tokenizer->size(), "a token is one of the tokenizer's");
  invariant(tokenizer->decode(tokens) == text, "a text comes back as it was");
  return 0;
}
