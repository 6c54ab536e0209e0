// SPDX-License-Identifier: Apache-2.0
#include "base/cursor.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.';
}

bool is_name(char c) {
  return is_word(c) || c == '$' || c == ':' || c == '/' || c == '-';
}

}  // namespace

void Cursor::skip() {
  while (position_ < text_.size()) {
    if (std::isspace(static_cast<unsigned char>(text_[position_]))) {
      ++position_;
    } else if (text_.substr(position_, 2) == "//") {
      position_ = std::min(text_.find('\n', position_), text_.size());
    } else {
      return;
    }
  }
}

bool Cursor::at_end() {
  skip();
  return position_ == text_.size();
}

char Cursor::peek() {
  skip();
  return position_ < text_.size() ? text_[position_] : '\0';
}

bool Cursor::accept(std::string_view token) {
  skip();
  if (text_.substr(position_, token.size()) != token) return false;
  const std::size_t end = position_ + token.size();
  if (is_word(token.back()) && end < text_.size() && is_word(text_[end])) return false;
  position_ = end;
  return true;
}

void Cursor::expect(std::string_view token) {
  if (accept(token)) return;
  fail(concat("expected ", quote(token)));
}

std::string_view Cursor::word() {
  skip();
  const std::size_t begin = position_;
  if (position_ < text_.size() && !std::isdigit(static_cast<unsigned char>(text_[position_])) && text_[position_] != '.')
    while (position_ < text_.size() && is_word(text_[position_])) ++position_;
  if (begin == position_) fail("expected a word");
  return text_.substr(begin, position_ - begin);
}

std::string_view Cursor::name() {
  const std::size_t begin = position_;
  while (position_ < text_.size() && is_name(text_[position_])) {
    // "->" ends a name that may itself contain '-'.
    if (text_[position_] == '-' && text_.substr(position_, 2) == "->") break;
    // "%x: f32[2]": a colon belongs to the name only inside it.
    if (text_[position_] == ':' && (position_ + 1 == text_.size() || !is_name(text_[position_ + 1]))) break;
    ++position_;
  }
  if (begin == position_) fail("expected a name");
  return text_.substr(begin, position_ - begin);
}

std::int64_t Cursor::integer() {
  skip();
  std::int64_t value = 0;
  const char* begin = text_.data() + position_;
  const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
  if (error == std::errc::result_out_of_range) fail("this number does not fit into 64 bits");
  if (error != std::errc()) fail("expected an integer");
  position_ += static_cast<std::size_t>(end - begin);
  return value;
}

double Cursor::real() {
  skip();
  double value = 0;
  const char* begin = text_.data() + position_;
  const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
  if (error != std::errc()) fail("expected a number");
  position_ += static_cast<std::size_t>(end - begin);
  return value;
}

bool Cursor::number_is_real() const {
  std::size_t i = position_;
  if (i < text_.size() && (text_[i] == '-' || text_[i] == '+')) ++i;
  if (text_.substr(i, 3) == "inf" || text_.substr(i, 3) == "nan") return true;
  while (i < text_.size() && std::isdigit(static_cast<unsigned char>(text_[i]))) ++i;
  return i < text_.size() && (text_[i] == '.' || text_[i] == 'e');
}

bool Cursor::next_is_number() {
  skip();
  const std::string_view rest = text_.substr(position_);
  if (rest.empty()) return false;
  const std::string_view digits = rest[0] == '-' ? rest.substr(1) : rest;
  if (digits.empty()) return false;
  if (std::isdigit(static_cast<unsigned char>(digits[0]))) return true;
  const std::string_view three = digits.substr(0, 3);
  return (three == "inf" || three == "nan") && (digits.size() == 3 || !is_word(digits[3]));
}

std::string Cursor::string() {
  skip();
  if (position_ >= text_.size() || text_[position_] != '"') fail("expected a quoted text");
  const std::size_t begin = position_++;
  std::string out;
  while (true) {
    if (position_ >= text_.size() || text_[position_] == '\n') fail_at(begin, "this text has no closing quote");
    const char c = text_[position_++];
    if (c == '"') return out;
    if (c != '\\') {
      out += c;
      continue;
    }
    const char escaped = position_ < text_.size() ? text_[position_++] : '\0';
    if (escaped == 'n') {
      out += '\n';
    } else if (escaped == 't') {
      out += '\t';
    } else if (escaped == '"' || escaped == '\\') {
      out += escaped;
    } else if (escaped == 'x' && position_ + 2 <= text_.size()) {
      unsigned byte = 0;
      const char* hex = text_.data() + position_;
      if (std::from_chars(hex, hex + 2, byte, 16).ptr != hex + 2) fail("expected two hexadecimal digits");
      out += static_cast<char>(byte);
      position_ += 2;
    } else {
      fail_at(position_ - 1, "unknown escape in a text", "known: \\\" \\\\ \\n \\t \\xNN");
    }
  }
}

void Cursor::header(std::string_view kind, int version) {
  skip();
  const std::size_t begin = position_;
  if (!accept("penstock"))
    fail(concat("expected \"penstock ", kind, " ", version, "\" as the first line"),
         kind == "program" ? "penstock compile --emit program prints one"
                           : concat("a file of penstock ", kind, " begins so; this is another file"));
  const std::string_view found = word();
  if (found != kind) fail_at(begin, concat("this is a penstock ", found, ", not a penstock ", kind));
  const std::int64_t found_version = integer();
  if (found_version != version)
    fail_at(begin, concat("version ", found_version, " of penstock ", kind, "; this build reads version ", version));
}

std::size_t Cursor::line_begin(std::size_t position) const {
  const std::size_t newline = text_.substr(0, position).rfind('\n');
  return newline == std::string_view::npos ? 0 : newline + 1;
}

std::string Cursor::place_of(std::size_t position) const {
  const std::string_view before = text_.substr(0, position);
  return concat(file_, ":", 1 + std::count(before.begin(), before.end(), '\n'), ":", position - line_begin(position) + 1);
}

std::string Cursor::place() const {
  return place_of(position_);
}

void Cursor::fail(const std::string& what, const std::string& hint) {
  skip();
  fail_at(position_, what, hint);
}

void Cursor::fail_at(std::size_t position, const std::string& what, const std::string& hint) {
  position = std::min(position, text_.size());
  const std::size_t begin = line_begin(position);
  std::string shown(text_.substr(begin, std::min(text_.find('\n', begin), text_.size()) - begin));
  std::size_t caret = position - begin;
  constexpr std::size_t kWidth = 100;  // long lines are shown around the caret
  if (shown.size() > kWidth) {
    const std::size_t from = caret > kWidth / 2 ? caret - kWidth / 2 : 0;
    shown = shown.substr(from, kWidth);
    caret -= from;
  }
  for (char& c : shown)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  throw Error(concat(place_of(position), ": ", what), {shown, std::string(caret, ' ') + "^ near here"}, hint);
}

}  // namespace penstock
