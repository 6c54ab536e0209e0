// SPDX-License-Identifier: Apache-2.0
#include "base/toml.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <vector>

#include "base/cursor.h"
#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"

namespace penstock {
namespace {

struct TomlAssertion {};

// toml++ does not say where it stopped; the one input that is known to trip it is a table's name that starts with no key.
[[noreturn]] void fail_key(std::string_view text, std::string_view file) {
  const std::vector<std::string> lines = split(text, '\n');
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::size_t name = lines[i].find_first_not_of(" \t[");
    if (name == std::string::npos || lines[i].find('[') > name) continue;
    if (!std::isalnum(static_cast<unsigned char>(lines[i][name])) &&
        std::string_view("_-\"'").find(lines[i][name]) == std::string_view::npos)
      throw Error(concat(file, ":", i + 1, ":", name + 1, ": expected the name of a table"));
  }
  throw Error(concat(file, ": this is not TOML"));
}

// Refuses letters beyond ASCII outside of texts and comments, as TOML does; toml++ 3.3 would run into code that it holds unreachable.
void check_ascii(std::string_view text, std::string_view file) {
  std::string_view closing;  // the quotes that close the text that i stands in; empty outside
  for (std::size_t i = text.starts_with("\xef\xbb\xbf") ? 3 : 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i);
    if (!closing.empty()) {
      if (closing.front() == '"' && rest.front() == '\\') {
        ++i;
      } else if (rest.starts_with(closing)) {
        i += closing.size() - 1;
        // A text in three quotes may end in one or two of its own.
        if (closing.size() == 3) i = std::min({text.find_first_not_of(closing.front(), i), i + 3, text.size()}) - 1;
        closing = {};
      } else if (closing.size() == 1 && rest.front() == '\n') {
        return;  // not closed: toml++ says so
      }
      continue;
    }
    if (static_cast<unsigned char>(rest.front()) >= 0x80)
      Cursor(file, text).fail_at(i, "letters beyond ASCII stand only in quoted texts and comments");
    if (rest.front() == '#') i = std::min(text.find('\n', i), text.size());
    for (const std::string_view quotes : {"\"\"\"", "'''", "\"", "'"}) {
      if (!rest.starts_with(quotes)) continue;
      closing = quotes;
      i += quotes.size() - 1;
      break;
    }
  }
}

struct LineMistake {
  std::string what, hint;
};

// The usual mistakes in a line that TOML cannot read, and how it would be right; nothing where it is none of them.
std::optional<LineMistake> mistake_in(std::string_view line) {
  line = trim(line.substr(0, line.find('#')));
  if (line.starts_with('[') && line.find('=') == std::string_view::npos && !line.ends_with(']'))
    return LineMistake{"the closing bracket is missing", concat(line, line.starts_with("[[") && !line.ends_with(']') ? "]]" : "]")};
  const std::size_t equals = line.find('=');
  if (equals == std::string_view::npos) {
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return std::nullopt;
    return LineMistake{"a key and its value have = between them", concat(trim(line.substr(0, colon)), " = ", trim(line.substr(colon + 1)))};
  }
  const std::string key(trim(line.substr(0, equals)));
  const std::string value(trim(line.substr(equals + 1)));
  if (value.empty()) return LineMistake{concat(key, " has no value"), concat(key, " = ...")};
  const char first = value.front();
  if (first == '"' || first == '\'')
    return value.size() == 1 || value.back() != first
               ? std::optional(LineMistake{"the closing quote is missing", concat(line, std::string(1, first))})
               : std::nullopt;
  if (first == '[')
    return value.ends_with(']') ? std::nullopt : std::optional(LineMistake{"the closing bracket is missing", concat(line, "]")});
  if (first == '{' || parse_number<double>(value)) return std::nullopt;
  if (value == "True" || value == "False")
    return LineMistake{concat(value, " is written ", value == "True" ? "true" : "false"),
                       concat(key, " = ", value == "True" ? "true" : "false")};
  return LineMistake{concat("quotes are missing around ", value), concat(key, " = ", quote(value))};
}

[[noreturn]] void fail_line(std::string_view text, std::string_view file, const toml::parse_error& error) {
  const std::string place = place_text(file, error.source()), reason(error.description());
  if (reason.find("cannot redefine") != std::string::npos) throw Error(place + "this is given twice", {reason}, "leave one of them out");
  const std::vector<std::string> lines = split(text, '\n');
  // What is not closed is noticed behind the line's end.
  const std::size_t number = error.source().begin.line, column = error.source().begin.column;
  for (const std::size_t line : {number, column <= 1 ? number - 1 : number}) {
    if (line < 1 || line > lines.size()) continue;
    if (const auto mistake = mistake_in(lines[line - 1])) throw Error(place + mistake->what, {reason}, mistake->hint);
  }
  throw Error(place + reason);
}

}  // namespace

void fail_toml_assertion() {
  throw TomlAssertion();
}

std::string place_text(std::string_view file, const toml::source_region& region) {
  return concat(file, ":", region.begin.line, ":", region.begin.column, ": ");
}

toml::table parse_toml(std::string_view text, std::string_view file) {
  check_ascii(text, file);
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    fail_line(text, file, error);
  } catch (const TomlAssertion&) {
    fail_key(text, file);
  }
}

void fail_unknown_key(const std::string& what, const std::string& found, const std::vector<std::string>& known) {
  throw Error(what, {"known: " + join(known, ", ")}, did_you_mean(found, known));
}

namespace {

// The number in the file's unit; nothing where the node is none, nor a text with a unit.
std::optional<double> in_unit(const toml::node& node, const FileUnit& unit) {
  const std::optional<std::string> text = node.value_exact<std::string>();
  if (!text || !unit.quantity) return node.is_number() ? node.value<double>() : std::nullopt;
  const std::optional<Amount> amount = parse_amount(*text, *unit.quantity);
  return amount && amount->has_unit ? std::optional(amount->value / unit.size) : std::nullopt;
}

}  // namespace

void Section::check_keys(const std::vector<std::string>& known) const {
  for (const auto& [key, value] : table_)
    if (std::find(known.begin(), known.end(), key.str()) == known.end())
      fail_unknown_key(concat(place_text(file_, key.source()), name_, " has an unknown key ", quote(key.str())), std::string(key.str()),
                       known);
}

double Section::number(const char* key, FileUnit unit) const {
  constexpr double kLeast = 1e-30, kMost = 1e30;  // bounds that keep what is computed from the number finite
  const std::optional<double> value = in_unit(at(key), unit);
  if (!value || !std::isfinite(*value) || *value <= 0)
    throw Error(concat(place(key), name_, ".", key, " must be a positive number"), {},
                unit.quantity ? concat("with a unit it is a text, as ", examples_of(*unit.quantity)) : "");
  if (*value < kLeast || *value > kMost) throw Error(concat(place(key), name_, ".", key, " must be from 1e-30 to 1e30"));
  return *value * unit.size;
}

double Section::number_or_zero(const char* key, FileUnit unit) const {
  return in_unit(at(key), unit) == 0 ? 0 : number(key, unit);
}

int Section::whole(const char* key, int least) const {
  constexpr std::int64_t kMost = 1'000'000;
  const auto value = at(key).value_exact<std::int64_t>();
  if (!value || *value < least || *value > kMost)
    throw Error(concat(place(key), name_, ".", key, " must be a whole number from ", least, " to ", kMost));
  return static_cast<int>(*value);
}

std::string Section::text(const char* key) const {
  const auto value = at(key).value_exact<std::string>();
  if (!value) throw Error(concat(place(key), name_, ".", key, " must be a text"));
  return *value;
}

const toml::node& Section::at(const char* key) const {
  if (const toml::node* node = table_.get(key)) return *node;
  throw Error(concat(place(), name_, " has no key ", quote(key)));
}

}  // namespace penstock
