// SPDX-License-Identifier: Apache-2.0
// Expressions of sizes, and numbers put in their place.
#include <algorithm>
#include <cctype>
#include <optional>

#include "base/text.h"
#include "base/words.h"
#include "exported/exported.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr int kDeepest = 100;  // expressions within one another: a file of others must not use up the stack

// Reads an expression by recursive descent: sums of products of atoms.
class SizeReader {
 public:
  SizeReader(std::string_view text, const Sizes& sizes) : text_(text), sizes_(sizes) {}

  std::int64_t whole() {
    const std::int64_t value = sum();
    skip();
    if (at_ != text_.size()) fail("something stands behind it");
    return value;
  }

 private:
  void skip() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(std::string_view token) {
    skip();
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }
  [[noreturn]] void fail(const std::string& why) const {
    constexpr std::size_t kShown = 200;
    throw Error(concat("the size {", text_.substr(0, kShown), text_.size() > kShown ? "..." : "", "} cannot be read: ", why),
                {concat("at character ", at_ + 1)});
  }

  // a op b, where `overflows` is the compiler's check of that operation.
  template <class Overflows>
  std::int64_t checked(std::int64_t a, std::int64_t b, Overflows overflows) const {
    std::int64_t out = 0;
    if (overflows(a, b, &out)) fail("its value is no 64-bit number");
    return out;
  }
  std::int64_t plus(std::int64_t a, std::int64_t b) const {
    return checked(a, b, [](auto x, auto y, auto* out) { return __builtin_add_overflow(x, y, out); });
  }
  std::int64_t minus(std::int64_t a, std::int64_t b) const {
    return checked(a, b, [](auto x, auto y, auto* out) { return __builtin_sub_overflow(x, y, out); });
  }
  std::int64_t times(std::int64_t a, std::int64_t b) const {
    return checked(a, b, [](auto x, auto y, auto* out) { return __builtin_mul_overflow(x, y, out); });
  }

  std::int64_t sum() {
    std::int64_t value = product();
    while (true) {
      if (take("+"))
        value = plus(value, product());
      else if (take("-"))
        value = minus(value, product());
      else
        return value;
    }
  }

  std::int64_t product() {
    std::int64_t value = atom();
    while (true) {
      if (take("//"))
        value = floor_div(value, divisor());
      else if (take("%")) {
        const std::int64_t by = divisor();
        value -= floor_div(value, by) * by;
      } else if (take("*")) {
        value = times(value, atom());
      } else {
        return value;
      }
    }
  }

  std::int64_t divisor() {
    const std::int64_t by = atom();
    if (by <= 0) fail(concat("it divides by ", by));
    return by;
  }
  static std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0); }

  std::int64_t atom() {
    if (++depth_ > kDeepest) fail(concat("more than ", kDeepest, " expressions lie within one another"));
    const std::int64_t value = one();
    --depth_;
    return value;
  }

  std::int64_t one() {
    if (take("(")) {
      const std::int64_t value = sum();
      if (!take(")")) fail("a parenthesis is not closed");
      return value;
    }
    if (take("-")) return minus(0, atom());
    skip();
    std::size_t end = at_;
    while (end < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[end])) || text_[end] == '_')) ++end;
    const std::string_view word = text_.substr(at_, end - at_);
    if (word.empty()) fail("a number or a symbol is missing");
    at_ = end;
    if (std::isdigit(static_cast<unsigned char>(word[0]))) return number(word);
    if (word == "max" || word == "min") return extreme(word == "max");
    const auto found = sizes_.find(word);
    if (found == sizes_.end()) fail(concat("no size is given for ", word));
    return found->second;
  }

  std::int64_t number(std::string_view digits) const {
    std::int64_t value = 0;
    for (const char digit : digits) {
      if (!std::isdigit(static_cast<unsigned char>(digit))) fail(concat(quote(digits), " is no number"));
      value = plus(times(value, 10), digit - '0');
    }
    return value;
  }

  std::int64_t extreme(bool largest) {
    if (!take("(")) fail("max and min take arguments");
    std::int64_t value = sum();
    while (take(",")) {
      const std::int64_t other = sum();
      value = largest ? std::max(value, other) : std::min(value, other);
    }
    if (!take(")")) fail("a parenthesis is not closed");
    return value;
  }

  std::string_view text_;
  const Sizes& sizes_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

// The end of the expression that the brace at `begin` opens; none where it opens something else: attributes have "=" or a new line.
std::optional<std::size_t> end_of_expression(std::string_view text, std::size_t begin) {
  const std::size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_ +-*/%(),", begin + 1);
  if (end == std::string_view::npos || text[end] != '}' || end == begin + 1) return std::nullopt;
  return end;
}

// The end of the two numbers, as in {6.0|12.0}, that the brace at `begin` opens; none where it opens something else.
std::optional<std::size_t> end_of_numbers(std::string_view text, std::size_t begin) {
  const std::string_view characters = "0123456789.e+-naif";
  const std::size_t bar = text.find_first_not_of(characters, begin + 1);
  if (bar == std::string_view::npos || text[bar] != '|') return std::nullopt;
  const std::size_t end = text.find_first_not_of(characters, bar + 1);
  return end != std::string_view::npos && text[end] == '}' ? std::optional(end) : std::nullopt;
}

}  // namespace

std::int64_t evaluate_size(std::string_view expression, const Sizes& sizes) {
  return SizeReader(expression, sizes).whole();
}

std::string with_sizes(std::string_view text, const Sizes& sizes, Samples samples) {
  std::string out;
  out.reserve(text.size());
  std::size_t done = 0;
  for (std::size_t at = text.find('{'); at != std::string_view::npos; at = text.find('{', at + 1)) {
    const std::optional<std::size_t> numbers = end_of_numbers(text, at), end = numbers ? numbers : end_of_expression(text, at);
    if (!end) continue;
    const std::string_view inside = text.substr(at + 1, *end - at - 1);
    out += text.substr(done, at - done);
    if (numbers)
      out += samples == Samples::once ? inside.substr(0, inside.find('|')) : inside.substr(inside.find('|') + 1);
    else
      out += std::to_string(evaluate_size(inside, sizes));
    done = *end + 1;
    at = *end;
  }
  out += text.substr(done);
  return out;
}

}  // namespace penstock
