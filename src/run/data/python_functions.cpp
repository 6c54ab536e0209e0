#include <algorithm>
#include <cctype>

#include "base/text.h"
#include "data/text_pairs.h"

namespace penstock {
namespace {

// A logical line: lines that brackets, strings or backslashes join count as one. Lines without code are none.
struct LogicalLine {
  std::size_t begin = 0, end = 0;  // from the first character of code to behind the last, in the source
  std::size_t line = 0;            // where the physical line begins
  int indent = 0;                  // columns
};

// The end of the string whose quotes begin at `at`; a string in single quotes ends with its line at the latest.
std::size_t end_of_string(std::string_view text, std::size_t at) {
  const std::string_view triple = text.substr(at, 3);
  const bool is_long = triple == "'''" || triple == "\"\"\"";
  const std::string_view close = is_long ? triple : text.substr(at, 1);
  for (at += close.size(); at < text.size(); ++at) {
    if (text.substr(at).starts_with(close)) return at + close.size();
    if (text[at] == '\\')
      ++at;
    else if (text[at] == '\n' && !is_long)
      return at;
  }
  return text.size();
}

// The end of the logical line whose code begins at `at`, and where the physical line after it begins.
std::pair<std::size_t, std::size_t> end_of_line(std::string_view text, std::size_t at) {
  int depth = 0;
  std::size_t end = at;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '\n' && depth <= 0) return {end, at + 1};
    if (c == '\'' || c == '"') {
      end = at = end_of_string(text, at);
      continue;
    }
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    depth += (c == '(' || c == '[' || c == '{') - (c == ')' || c == ']' || c == '}');
    at += c == '\\' ? 2 : 1;
    if (std::isspace(static_cast<unsigned char>(c)) == 0) end = std::min(at, text.size());
  }
  return {end, text.size()};
}

std::vector<LogicalLine> lines_of(std::string_view text) {
  std::vector<LogicalLine> out;
  for (std::size_t line = 0; line < text.size();) {
    std::size_t at = line;
    int indent = 0;
    for (; at < text.size() && (text[at] == ' ' || text[at] == '\t' || text[at] == '\f'); ++at)
      indent = text[at] == '\t' ? (indent / 8 + 1) * 8 : indent + 1;
    if (at >= text.size()) break;
    if (text[at] == '\n' || text[at] == '\r' || text[at] == '#') {
      line = std::min(text.find('\n', at), text.size() - 1) + 1;
      continue;
    }
    const auto [end, next] = end_of_line(text, at);
    out.push_back({at, end, line, indent});
    line = next;
  }
  return out;
}

bool begins_function(std::string_view code) {
  return code.starts_with("def ") || code.starts_with("async def ");
}

// The content of the string that the code consists of, whose escapes mean what they say; "" where it is something else.
std::string only_string(std::string_view code) {
  const bool raw = code.starts_with('r') || code.starts_with('R');
  if (raw || code.starts_with('u') || code.starts_with('U')) code.remove_prefix(1);
  if (code.empty() || (code[0] != '"' && code[0] != '\'') || end_of_string(code, 0) != code.size()) return "";
  const std::size_t quotes = code.starts_with("'''") || code.starts_with("\"\"\"") ? 3 : 1;
  if (code.size() < 2 * quotes || !code.ends_with(code.substr(0, quotes))) return "";  // the file ends inside of it
  code = code.substr(quotes, code.size() - 2 * quotes);
  std::string out;
  for (std::size_t i = 0; i < code.size(); ++i) {
    const char next = i + 1 < code.size() ? code[i + 1] : '\0';
    const bool escape = code[i] == '\\' && !raw && (next == '\\' || next == '\'' || next == '"' || next == '\n' || next == 'n');
    i += escape;
    if (!escape || next != '\n') out += escape && next == 'n' ? '\n' : code[i];
  }
  return out;
}

// The lines up to the first one that is blank, in one.
std::string first_paragraph(std::string_view text) {
  std::string out;
  for (const std::string& line : split(text, '\n')) {
    const std::string_view words = trim(line);
    if (words.empty() && !out.empty()) break;
    out += concat(out.empty() || words.empty() ? "" : " ", words);
  }
  return out;
}

// The whole lines from `begin` to `end`, without so many blanks at their begins and without blank lines at the end.
std::string moved_left(std::string_view text, std::size_t blanks) {
  std::string out;
  for (const std::string& line : split(text, '\n'))
    out += line.substr(std::min({blanks, line.find_first_not_of(" \t"), line.size()})) + '\n';
  while (out.ends_with('\n')) out.pop_back();
  return out;
}

}  // namespace

std::vector<TextPair> python_functions(std::string_view source) {
  const std::vector<LogicalLine> lines = lines_of(source);
  const auto line_behind = [&](std::size_t at) { return std::min(source.find('\n', at), source.size() - 1) + 1; };
  std::vector<TextPair> out;
  for (std::size_t i = 0; i + 1 < lines.size(); ++i) {
    const LogicalLine& head = lines[i];
    const LogicalLine& first = lines[i + 1];
    if (!begins_function(source.substr(head.begin)) || first.indent <= head.indent) continue;
    const std::string docstring = first_paragraph(only_string(source.substr(first.begin, first.end - first.begin)));
    if (docstring.empty()) continue;
    std::size_t last = i + 1;
    while (last + 1 < lines.size() && lines[last + 1].indent > head.indent) ++last;
    const std::string_view before = source.substr(head.line, first.line - head.line);
    const std::string_view after =
        last == i + 1 ? "" : source.substr(line_behind(first.end), line_behind(lines[last].end) - line_behind(first.end));
    out.push_back({moved_left(concat(before, after), head.begin - head.line), docstring});
  }
  return out;
}

}  // namespace penstock
