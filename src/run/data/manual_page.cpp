#include <algorithm>
#include <array>
#include <cctype>

#include "base/text.h"
#include "data/text_pairs.h"

namespace penstock {
namespace {

// Special characters of groff with names of two letters, \(XX; others are left out.
constexpr std::array<std::pair<std::string_view, std::string_view>, 16> kCharacters{{{"aq", "'"},
                                                                                     {"cq", "'"},
                                                                                     {"oq", "'"},
                                                                                     {"dq", "\""},
                                                                                     {"lq", "\""},
                                                                                     {"rq", "\""},
                                                                                     {"Lq", "\""},
                                                                                     {"Rq", "\""},
                                                                                     {"em", "--"},
                                                                                     {"en", "-"},
                                                                                     {"mi", "-"},
                                                                                     {"hy", "-"},
                                                                                     {"bu", "*"},
                                                                                     {"rs", "\\"},
                                                                                     {"ti", "~"},
                                                                                     {"ha", "^"}}};

std::string_view character_of(std::string_view name) {
  const auto found = std::ranges::find(kCharacters, name, [](const auto& known) { return known.first; });
  return found == kCharacters.end() ? "" : found->second;
}

// The name that a font, string, size or character is called by: X, (XX or [X..]; moves `at` behind it.
std::string_view name_at(std::string_view line, std::size_t& at) {
  if (at >= line.size()) return "";
  const bool is_long = line[at] == '[';
  const std::size_t begin = at + (is_long || line[at] == '(' ? 1 : 0);
  const std::size_t size = is_long ? std::min(line.find(']', begin), line.size()) - begin : line[at] == '(' ? 2 : 1;
  at = std::min(begin + size + (is_long ? 1 : 0), line.size());
  return line.substr(begin, size);
}

// The text of a line, its escapes as what they print.
std::string plain(std::string_view line) {
  std::string out;
  for (std::size_t at = 0; at < line.size();) {
    if (line[at] != '\\') {
      out += line[at++];
      continue;
    }
    if (++at >= line.size()) break;
    const char escape = line[at++];
    if (escape == '"') break;  // a comment
    if (escape == '(' || escape == '[') {
      out += character_of(name_at(line, --at));
    } else if (escape == 'f' || escape == '*' || escape == 'n' || escape == 'm' || escape == 'F') {
      name_at(line, at);
    } else if (escape == 's') {
      if (at < line.size() && (line[at] == '+' || line[at] == '-')) ++at;
      name_at(line, at);
    } else if (escape == 'h' || escape == 'v' || escape == 'w' || escape == 'N') {
      const std::size_t close = at < line.size() ? line.find(line[at], at + 1) : line.npos;
      at = close == line.npos ? line.size() : close + 1;
    } else if (escape == 'e') {
      out += '\\';
    } else if (escape == '-' || escape == '.' || escape == '\'' || escape == '`' || escape == '\\') {
      out += escape;
    } else if (escape == ' ' || escape == '~' || escape == '0' || escape == 't') {
      out += ' ';
    }
  }
  return out;
}

// A line of roff: a request (".SH NAME": name SH, rest NAME), or text (no name).
struct RoffLine {
  std::string_view name, rest;
};

RoffLine split_line(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (!line.starts_with('.') && !line.starts_with('\'')) return {"", line};
  line.remove_prefix(1);
  line = trim(line);
  const std::size_t end = std::min(line.find_first_of(" \t"), line.size());
  if (line.starts_with("\\\"")) return {"\\\"", ""};
  return {line.substr(0, end), trim(line.substr(end))};
}

std::string without_quotes(std::string text) {
  std::erase(text, '"');
  return text;
}

// Whether what the request is given is printed; the words of requests that alternate fonts stick together.
bool prints(std::string_view name) {
  constexpr std::array<std::string_view, 24> printing{"SH", "SS", "B",  "I",  "SM", "SB", "IP", "TP", "Sh", "Ss", "It", "Nm",
                                                      "Fl", "Ar", "Op", "Pa", "Xr", "Cm", "Ic", "Li", "Ql", "Em", "Dq", "Sq"};
  return std::ranges::find(printing, name) != printing.end();
}

bool alternates(std::string_view name) {
  constexpr std::array<std::string_view, 6> alternating{"BR", "RB", "BI", "IB", "IR", "RI"};
  return std::ranges::find(alternating, name) != alternating.end();
}

std::string printed(const RoffLine& line) {
  if (line.name.empty()) return plain(line.rest);
  const std::string text = plain(line.rest);
  if (prints(line.name)) return without_quotes(text);
  if (!alternates(line.name)) return "";
  std::string out;
  bool quoted = false;
  for (const char c : text) {
    quoted ^= c == '"';
    if (c != '"' && (c != ' ' || quoted)) out += c;
  }
  return out;
}

// "name, other \- what they do": what stands behind the first dash that blanks surround.
std::string description_of(const std::string& name_section) {
  for (const char* dash : {" - ", " -- "})
    if (const std::size_t at = name_section.find(dash); at != name_section.npos)
      return std::string(trim(std::string_view(name_section).substr(at + std::string_view(dash).size())));
  return "";
}

}  // namespace

std::optional<TextPair> manual_page(std::string_view roff) {
  enum class Place { before, name, behind } place = Place::before;
  std::string names;
  TextPair out;
  for (const std::string& text : split(roff, '\n')) {
    const RoffLine line = split_line(text);
    if (line.name == "so") return std::nullopt;
    if (line.name == "SH" || line.name == "Sh") {
      std::string title = without_quotes(plain(line.rest));
      std::ranges::transform(title, title.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
      place = title == "NAME" ? Place::name : place == Place::before ? place : Place::behind;
    }
    if (place == Place::name && line.name == "Nd") out.target = without_quotes(plain(line.rest));
    const std::string shown = printed(line);
    if (shown.empty() || place == Place::before) continue;
    if (place == Place::name) {
      if (line.name != "SH" && line.name != "Sh") names += concat(names.empty() ? "" : " ", shown);
    } else {
      out.input += concat(shown, "\n");
    }
  }
  if (out.target.empty()) out.target = description_of(names);
  if (out.input.empty() || out.target.empty()) return std::nullopt;
  return out;
}

}  // namespace penstock
