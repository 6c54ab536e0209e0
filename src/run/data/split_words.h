// SPDX-License-Identifier: Apache-2.0
// Cuts text into the pieces inside which byte-level tokenizers merge: words, numbers, runs of signs and of blanks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace penstock {

// The way in which a family of tokenizers cuts words. The regular expressions of three families are known: those of GPT-2, Llama 3 and
// Qwen.
struct WordRules {
  std::string_view regex;
  // Signs take the line breaks behind them, blanks end at a line break, any one sign or blank may lead a word, and the endings of
  // contractions may have capitals. False: only a blank leads a word, a number or signs.
  bool lines = false;
  int most_digits = 0;  // of a number; 0: any
};

// The rules of GPT-2, which a tokenizer means that names no regular expression.
const WordRules& gpt2_words();
// The rules with this regular expression; nullptr where it is not known.
const WordRules* words_of(std::string_view regex);

// The end of the piece of `text` that begins at `begin`, which is before the text's end. A byte that is no UTF-8 counts as a sign.
std::size_t end_of_word(const WordRules& rules, std::string_view text, std::size_t begin);

}  // namespace penstock
