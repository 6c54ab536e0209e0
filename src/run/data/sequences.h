// SPDX-License-Identifier: Apache-2.0
// Numbered sequences of tokens that have lengths of their own: documents, or pairs of an input and what is to follow on it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/token_file.h"
#include "data/tokenizer.h"

namespace penstock {

// A sequence in tokens. The target is what is to be learnt and follows on the input, which is given. A document is all target.
struct SequenceLengths {
  std::int64_t input = 0, target = 0;
  std::int64_t tokens() const { return input + target; }
};

// Plain files, .jsonl files and files of tokens, one after the other; where tokens lie is settled once, for all of them.
class Sequences {
 public:
  std::int64_t size() const { return std::ssize(places_); }
  // Both throw Error for a number that no sequence has.
  SequenceLengths lengths(std::int64_t sequence) const { return place(sequence).lengths; }
  // Fills `out` with tokens from number `begin` on, counted from the first of the input; of a document, of the target.
  void copy(std::int64_t sequence, std::int64_t begin, std::span<std::int64_t> out) const;
  std::uint64_t fingerprint() const { return fingerprint_; }

  // Takes files and folders, as open_text does, and files of tokens (data/token_file.h). Each file is one document, and each line of a
  // .jsonl file: an object with "text", or with "input" and "target". Throws Error: as open_text and open_tokens do, and a line that is no
  // such object (file and line).
  static Sequences of_documents(const std::vector<std::string>& paths, const Tokenizer& tokenizer);
  // Takes only .jsonl files whose lines have "input" and "target", and files of tokens whose documents are pairs. A target may be empty.
  // Throws Error also for an input that is empty (file and line, or document), and where no target has a token.
  static Sequences of_pairs(const std::vector<std::string>& paths, const Tokenizer& tokenizer);

 private:
  struct Place {
    std::size_t source;
    std::int64_t begin;  // of the first token in the source
    SequenceLengths lengths;
  };
  const Place& place(std::int64_t sequence) const;
  static Sequences read(const std::vector<std::string>& paths, const Tokenizer& tokenizer, bool pairs);
  void add_lines(const SteadyFile& file, const Tokenizer& tokenizer, bool pairs);
  void add_tokens(OpenedTokens opened, bool pairs);

  std::vector<std::unique_ptr<const TokenSource>> sources_;
  std::vector<Place> places_;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace penstock
