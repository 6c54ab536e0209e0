#include <algorithm>
#include <cctype>

#include "base/text.h"
#include "data/text_pairs.h"

namespace penstock {
namespace {

bool is_blank(char c) {
  return std::isspace(static_cast<unsigned char>(c)) != 0;
}

// A documenting comment's text, and where it ends.
struct Comment {
  std::string text;
  std::size_t end = 0;
};

// The lines of a /** ... */ without the stars in front of them.
Comment block_comment(std::string_view header, std::size_t at) {
  const std::size_t close = std::min(header.find("*/", at + 2), header.size());
  Comment out{"", std::min(close + 2, header.size())};
  for (const std::string& line : split(header.substr(at + 3, close - std::min(close, at + 3)), '\n')) {
    std::string_view words = trim(line);
    while (words.starts_with('*')) words.remove_prefix(1);
    out.text += concat(trim(words), "\n");
  }
  return out;
}

// Lines that begin with ///, one behind the other.
Comment line_comments(std::string_view header, std::size_t at) {
  Comment out{"", at};
  while (header.substr(at).starts_with("///")) {
    const std::size_t end = std::min(header.find('\n', at), header.size());
    out.text += concat(trim(header.substr(at + 3, end - at - 3)), "\n");
    out.end = at = end;
    while (at < header.size() && is_blank(header[at])) ++at;
  }
  return out;
}

// A word that marks the one behind it (@a, @c, @p): 1 or 2 letters, or "ref".
bool is_mark(std::string_view word) {
  return word.size() > 1 && (word[0] == '@' || word[0] == '\\') && (word.size() <= 2 || word.substr(1) == "ref");
}

// The brief text of a comment; "" where it is about a file or a group, or belongs to what is before it.
std::string brief_of(const std::string& comment) {
  for (const char* other : {"@file", "@defgroup", "@addtogroup", "@ingroup", "@{", "@}", "@cond", "@page", "@namespace"})
    if (trim(comment).starts_with(other)) return "";
  if (comment.starts_with('<')) return "";
  const std::size_t brief = comment.find("@brief");
  std::string out;
  for (const std::string& line : split(brief == comment.npos ? comment : comment.substr(brief + 6), '\n')) {
    const std::vector<std::string> words = split(line, ' ');
    const bool is_command = (line.starts_with('@') || line.starts_with('\\')) && !is_mark(words[0]);
    if (is_command || (line.empty() && !out.empty())) break;
    for (const std::string& word : words)
      if (!word.empty() && !is_mark(word)) out += concat(out.empty() ? "" : " ", word);
  }
  return out;
}

// The text from `at` to the ';' or '{' that ends it, in one line; "" where a comment, a directive or nothing follows.
std::string declaration_at(std::string_view header, std::size_t at) {
  std::string out;
  int depth = 0;
  for (; at < header.size(); ++at) {
    const char c = header[at];
    if (header.substr(at).starts_with("//")) {
      if (out.empty()) return "";
      at = std::min(header.find('\n', at), header.size());
      continue;
    }
    if (header.substr(at).starts_with("/*") || c == '#') return out.empty() || c == '#' ? "" : out;
    depth += (c == '(' || c == '[') - (c == ')' || c == ']');
    if (depth <= 0 && (c == ';' || c == '{' || c == '}')) break;
    const bool gap = is_blank(c);
    if (!gap)
      out += c;
    else if (!out.empty() && out.back() != ' ')
      out += ' ';
  }
  while (out.ends_with(' ')) out.pop_back();
  return out;
}

}  // namespace

std::vector<TextPair> cpp_declarations(std::string_view header) {
  std::vector<TextPair> out;
  for (std::size_t at = 0; (at = header.find('/', at)) != header.npos;) {
    const std::string_view here = header.substr(at);
    const bool is_block = here.starts_with("/**") || here.starts_with("/*!");
    if (!is_block && !here.starts_with("///")) {
      at = here.starts_with("//") ? std::min(header.find('\n', at), header.size()) : at + 1;
      continue;
    }
    const Comment comment = is_block ? block_comment(header, at) : line_comments(header, at);
    at = comment.end;
    std::string brief = brief_of(comment.text), declaration = brief.empty() ? "" : declaration_at(header, at);
    if (!declaration.empty()) out.push_back({std::move(declaration), std::move(brief)});
  }
  return out;
}

}  // namespace penstock
