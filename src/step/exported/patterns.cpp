// SPDX-License-Identifier: Apache-2.0
#include "exported/patterns.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "exported/rename_rows.h"
#include "ops/infer.h"

namespace penstock {
namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
}

void skip_blanks(std::string_view& text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
}

// Takes the character where it stands next.
bool take(std::string_view& text, char c) {
  skip_blanks(text);
  if (text.empty() || text.front() != c) return false;
  text.remove_prefix(1);
  return true;
}

std::string take_word(std::string_view& text) {
  skip_blanks(text);
  const auto end = std::ranges::find_if_not(text, is_word);
  const std::string word(text.begin(), end);
  text.remove_prefix(word.size());
  return word;
}

bool commutes(const Op& op) {
  return (op.name == "add" || op.name == "mul") && op.operands.size() == 2;
}

}  // namespace

Pattern::Pattern(std::string_view text) : Pattern(parse(text)) {}

Pattern Pattern::parse(std::string_view& text) {
  Pattern out;
  out.name_ = take_word(text);
  if (take(text, ':')) {
    out.op_ = take_word(text);
  } else if (!text.empty() && text.front() == '(') {
    std::swap(out.name_, out.op_);
  }
  if (out.op_.empty()) return out;
  take(text, '(');
  do out.operands_.push_back(parse(text));
  while (take(text, ','));
  take(text, ')');
  if (!take(text, '{')) return out;
  out.number_ = text.substr(0, text.find('}'));
  text.remove_prefix(out.number_.size() + 1);
  return out;
}

bool Pattern::match_number(const Op& op, Match& found) const {
  const char* attribute = op.attributes.contains("exponent") ? "exponent" : "other";
  if (number_.empty()) return !op.attributes.contains(attribute);
  if (!op.attributes.contains(attribute)) return false;
  const double number = number_attribute(op, attribute);
  if (std::isalpha(static_cast<unsigned char>(number_[0]))) return found.numbers.try_emplace(number_, number).first->second == number;
  const double wanted = std::strtod(number_.c_str(), nullptr);
  return std::abs(number - wanted) <= 1e-6 * std::abs(wanted);
}

bool Pattern::match_operands(Tensor x, const Op& op, Match& found) const {
  const Match before = found;
  const auto in_order = [&](std::size_t first) {
    for (std::size_t i = 0; i < operands_.size(); ++i)
      if (!match(operand_of(x, op, (i + first) % operands_.size()), operands_[i], found)) return false;
    return true;
  };
  if (in_order(0)) return true;
  if (!commutes(op)) return false;
  found = before;
  return in_order(1);
}

bool Pattern::match(Tensor x, const Pattern& pattern, Match& found) {
  if (!pattern.name_.empty()) {
    const Tensor& bound = found.tensors.try_emplace(pattern.name_, x).first->second;
    if (bound.value() != x.value()) return false;
  }
  if (pattern.op_.empty()) return true;
  const Op* op = made_by(x, pattern.op_);
  return op && op->operands.size() == pattern.operands_.size() && pattern.match_number(*op, found) && pattern.match_operands(x, *op, found);
}

std::optional<Pattern::Match> Pattern::match(Tensor x) const {
  Match found;
  return match(x, *this, found) ? std::optional(std::move(found)) : std::nullopt;
}

}  // namespace penstock
