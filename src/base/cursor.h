// SPDX-License-Identifier: Apache-2.0
// A cursor over text. Every parser of Penstock reads with it, so every message has file:line:column, the line, and a caret.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock {

class Cursor {
 public:
  // `text` must outlive the cursor.
  Cursor(std::string_view file, std::string_view text) : file_(file), text_(text) {}

  bool at_end();                        // skips blanks and "//" comments first
  char peek();                          // next character after blanks, '\0' at the end
  bool accept(std::string_view token);  // takes the token if it is next (a word must end there)
  void expect(std::string_view token);  // takes the token, or fails naming what was found
  std::string_view word();              // [A-Za-z_][A-Za-z0-9_.]*
  std::string_view name();              // [A-Za-z0-9_.$:/-]+, after '%' or '@'
  std::int64_t integer();
  double real();                // also inf, nan
  bool number_is_real() const;  // whether the number here is written with '.', 'e', inf or nan
  std::string string();         // quoted, see quote()
  bool next_is_number();
  void skip();  // skips blanks and comments
  // Reads "penstock <kind> <version>"; fails naming the file's own kind.
  void header(std::string_view kind, int version);

  std::size_t position() const { return position_; }
  std::string place() const;  // "file:line:column" of the position
  void seek(std::size_t position) { position_ = position; }
  [[noreturn]] void fail(const std::string& what, const std::string& hint = {});
  [[noreturn]] void fail_at(std::size_t position, const std::string& what, const std::string& hint = {});

 private:
  std::size_t line_begin(std::size_t position) const;
  std::string place_of(std::size_t position) const;

  std::string file_;
  std::string_view text_;
  std::size_t position_ = 0;
};

}  // namespace penstock
