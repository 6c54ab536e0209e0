// SPDX-License-Identifier: Apache-2.0
// Turns text into tokens and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokens.h"

namespace penstock {

// Safe to use from several threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::int64_t size() const = 0;  // tokens are 0 .. size()-1
  // No token is added that no text stands for, such as one at the begin. Takes any bytes, also those that are no UTF-8.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  virtual std::string decode(std::span<const std::int32_t> tokens) const = 0;  // each below size()
  // The token that says that a document ends, where there is one.
  virtual std::optional<std::int32_t> end_of_text() const { return std::nullopt; }
  // A hash of what it was made from: tokenizers that differ give other tokens.
  virtual std::uint64_t fingerprint() const = 0;
  // The tokens of a whole file of text, held in memory unless they can be read from the file. Throws Error.
  virtual std::unique_ptr<TokenSource> tokens_of(const SteadyFile& file) const;
};

// "bytes", whose tokens are the bytes themselves; the path of a Hugging Face tokenizer.json (data/byte_level_bpe.h) or of a SentencePiece
// model (*.model). Throws Error: another name, a file that is none, or one whose tokenizer is of a kind that is not known.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& name);

}  // namespace penstock
