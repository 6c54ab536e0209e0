// SPDX-License-Identifier: Apache-2.0
// Files of tokens, as nanoGPT and Megatron-LM write them: FILE.bin has numbers of two or four bytes, least significant first, one after the
// other. FILE.idx beside it says where documents lie (Megatron's indexed data set, version 1); without one each ends with the token for
// that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/durable.h"
#include "data/tokenizer.h"

namespace penstock {

bool is_token_file(const std::string& path);  // by its name: *.bin

// Where documents lie. A document is one sequence or several, one behind the other; one of two sequences is a pair.
struct TokenIndex {
  int width = 2;                                // bytes of a token
  std::vector<std::int64_t> begins, lengths{};  // of the sequences, in tokens
  std::vector<std::int64_t> documents{0};       // the first sequence of each document; last: the number of sequences
};

// Reads FILE.idx, named `file`, of a FILE.bin with so many bytes. Throws Error: another format or kind of numbers, a size that does not
// fit, a sequence outside of FILE.bin or apart from the one before it in its document, documents that are out of order.
TokenIndex parse_token_index(std::span<const std::byte> content, const std::string& file, std::int64_t bytes);
std::vector<std::byte> print(const TokenIndex& index);

// The tokens of FILE.bin.
class TokenFile : public TokenSource {
 public:
  // Throws Error where the file is no whole number of tokens of `width` bytes.
  TokenFile(SteadyFile file, int width, std::int64_t vocabulary);
  std::int64_t size() const override { return file_.size() / width_; }
  // Throws Error also for a token that the vocabulary has not: file, place and value.
  void copy(std::int64_t begin, std::span<std::int64_t> out) const override;

 private:
  SteadyFile file_;
  int width_;
  std::int64_t vocabulary_;
};

// FILE.bin with the index that lies beside it or, without one, that its tokens say: two bytes each where the tokenizer has at most 65,536,
// else four, and each document ends with the tokenizer's end_of_text(). `files` are those that were read, for a fingerprint. Throws Error.
struct OpenedTokens {
  std::unique_ptr<const TokenSource> tokens;
  TokenIndex index;
  std::vector<SteadyFile> files;
};
OpenedTokens open_tokens(const std::string& path, const Tokenizer& tokenizer);

// Writes FILE.bin, of numbers as wide as a tokenizer of so many tokens needs, and FILE.idx.
class TokenFileWriter {
 public:
  TokenFileWriter(const std::string& path, std::int64_t vocabulary);  // throws Error unless the path is one of FILE.bin
  // A document as a sequence of tokens, or as several.
  void add(const std::vector<std::vector<std::int64_t>>& document);
  void commit();  // without it nothing stays

 private:
  DurableFile tokens_, index_file_;
  TokenIndex index_;
};

}  // namespace penstock
