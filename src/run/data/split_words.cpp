// SPDX-License-Identifier: Apache-2.0
#include "data/split_words.h"

#include <utf8proc.h>

#include <array>

namespace penstock {
namespace {

enum class Class : std::uint8_t { letter, number, blank, sign, end };

struct Character {
  Class kind = Class::end;
  utf8proc_int32_t code = -1;
  std::size_t end = 0;  // in the text
};

// Unicode's White_Space beyond the separators: what \s stands for.
bool is_control_blank(utf8proc_int32_t code) {
  return (code >= 0x09 && code <= 0x0d) || code == 0x85;
}

Class class_of(utf8proc_int32_t code) {
  if (is_control_blank(code)) return Class::blank;
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return Class::letter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return Class::number;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return Class::blank;
    default:
      return Class::sign;
  }
}

Character character_at(std::string_view text, std::size_t at) {
  if (at >= text.size()) return {Class::end, -1, at};
  utf8proc_int32_t code = -1;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const utf8proc_ssize_t length = utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(text.size() - at), &code);
  if (length <= 0) return {Class::sign, -1, at + 1};
  return {class_of(code), code, at + static_cast<std::size_t>(length)};
}

bool is_break(const Character& c) {
  return c.code == '\r' || c.code == '\n';
}

// The end of the characters of this class from `at` on, of at most so many where that is not 0.
std::size_t end_of_run(std::string_view text, std::size_t at, Class kind, int most = 0) {
  for (int count = 0; most == 0 || count < most; ++count) {
    const Character c = character_at(text, at);
    if (c.kind != kind) break;
    at = c.end;
  }
  return at;
}

std::size_t end_of_breaks(std::string_view text, std::size_t at) {
  while (is_break(character_at(text, at))) at = character_at(text, at).end;
  return at;
}

// 's, 't, 're, 've, 'm, 'll, 'd: the end of the one that is at `at`, or `at`.
std::size_t end_of_contraction(std::string_view text, std::size_t at, bool any_case) {
  if (text[at] != '\'') return at;
  for (const std::string_view ending : {"s", "t", "re", "ve", "m", "ll", "d"}) {
    std::size_t next = at + 1;
    for (const char wanted : ending) {
      const Character c = character_at(text, next);
      const bool same = c.code == wanted || (any_case && (c.code == wanted - 'a' + 'A' || (wanted == 's' && c.code == 0x17f)));
      next = same ? c.end : text.npos;
    }
    if (next != text.npos) return next;
  }
  return at;
}

// Blanks up to the last line break among them, where the rules know lines and there is one; else all but the last, which leads what
// follows, unless it is the only one or nothing follows.
std::size_t end_of_blanks(const WordRules& rules, std::string_view text, std::size_t at) {
  std::size_t last = at, after_break = at, end = at;
  for (Character c = character_at(text, end); c.kind == Class::blank; c = character_at(text, end)) {
    last = end;
    end = c.end;
    if (is_break(c)) after_break = end;
  }
  if (rules.lines && after_break > at) return after_break;
  return end == text.size() || last == at ? end : last;
}

}  // namespace

const WordRules& gpt2_words() {
  static constexpr WordRules rules{R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", false, 0};
  return rules;
}

const WordRules* words_of(std::string_view regex) {
  static constexpr std::array<WordRules, 2> with_lines{{
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)", true, 3},
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)", true, 1},
  }};
  if (regex == gpt2_words().regex) return &gpt2_words();
  for (const WordRules& rules : with_lines)
    if (rules.regex == regex) return &rules;
  return nullptr;
}

std::size_t end_of_word(const WordRules& rules, std::string_view text, std::size_t begin) {
  if (const std::size_t end = end_of_contraction(text, begin, rules.lines); end > begin) return end;
  const Character first = character_at(text, begin);
  const bool is_blank = first.code == ' ';
  const Character second = character_at(text, first.end);
  const bool leads_word = rules.lines ? (first.kind == Class::sign || first.kind == Class::blank) && !is_break(first) : is_blank;
  if (first.kind == Class::letter) return end_of_run(text, begin, Class::letter);
  if (leads_word && second.kind == Class::letter) return end_of_run(text, first.end, Class::letter);
  if (first.kind == Class::number) return end_of_run(text, begin, Class::number, rules.most_digits);
  if (is_blank && second.kind == Class::number && !rules.lines) return end_of_run(text, first.end, Class::number);
  if (first.kind == Class::sign || (is_blank && second.kind == Class::sign)) {
    const std::size_t end = end_of_run(text, first.end, Class::sign);
    return rules.lines ? end_of_breaks(text, end) : end;
  }
  return end_of_blanks(rules, text, begin);
}

}  // namespace penstock
