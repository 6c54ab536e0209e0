// SPDX-License-Identifier: Apache-2.0
#include "data/byte_level_bpe.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <queue>
#include <set>
#include <tuple>
#include <unordered_map>

#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "data/split_words.h"

namespace penstock {
namespace {

// The letter that stands for each byte in the file: the byte's own where it is printable in Latin-1, else the next from U+0100 on.
std::array<std::string, 256> byte_letters() {
  std::array<std::string, 256> out;
  utf8proc_int32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
    utf8proc_uint8_t letter[4];
    const utf8proc_ssize_t length = utf8proc_encode_char(printable ? byte : next++, letter);
    out[byte] = std::string(reinterpret_cast<const char*>(letter), static_cast<std::size_t>(length));
  }
  return out;
}

// A text in canonical composition; one that is no UTF-8 stays as it is.
std::string composed(std::string_view text) {
  utf8proc_uint8_t* made = nullptr;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()), &made, options);
  if (length < 0) return std::string(text);
  std::string out(reinterpret_cast<const char*>(made), static_cast<std::size_t>(length));
  std::free(made);
  return out;
}

struct AddedToken {
  std::string text;
  std::int32_t token = 0;
};
using AddedTokens = std::array<std::vector<AddedToken>, 256>;  // by their first byte, the longest first

// The contents of the file.
struct Description {
  std::vector<std::string> pieces;  // the bytes of each token; "": no token has this number
  std::array<std::int32_t, 256> bytes{};
  std::unordered_map<std::string, std::int32_t> tokens;  // by their bytes
  struct Merge {
    std::int32_t rank = 0, token = 0;
  };
  std::unordered_map<std::uint64_t, Merge> merges;  // of two tokens; the lowest rank goes first
  AddedTokens verbatim;                             // found in the text as it is, before all else
  AddedTokens normalised;                           // found, as their normal forms, in the normal forms of what lies between those
  WordRules words;
  bool composes = false, whole_words = false;  // whole_words: a word that is a token is not made by merges
  std::optional<std::int32_t> end;

  static std::uint64_t pair(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  }
};

class ByteLevelBpe : public Tokenizer {
 public:
  ByteLevelBpe(Description description, std::uint64_t fingerprint) : d_(std::move(description)), fingerprint_(fingerprint) {}

  std::int64_t size() const override { return std::ssize(d_.pieces); }
  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> tokens) const override {
    return join(tokens, "", [&](std::int32_t token) { return d_.pieces[token]; });
  }
  std::optional<std::int32_t> end_of_text() const override { return d_.end; }
  std::uint64_t fingerprint() const override { return fingerprint_; }

 private:
  void encode_plain(std::string_view text, std::vector<std::int32_t>& out) const;
  void encode_word(std::string_view word, std::vector<std::int32_t>& out) const;

  Description d_;
  std::uint64_t fingerprint_;
};

const AddedToken* added_at(const AddedTokens& tokens, std::string_view text, std::size_t at) {
  for (const AddedToken& added : tokens[static_cast<unsigned char>(text[at])])
    if (text.substr(at).starts_with(added.text)) return &added;
  return nullptr;
}

// Puts the added tokens of the text, the leftmost first and of several the longest, into `out`; `encode` does so with what lies between.
template <class Encode>
void encode_between(const AddedTokens& tokens, std::string_view text, std::vector<std::int32_t>& out, Encode&& encode) {
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* added = added_at(tokens, text, at);
    if (added == nullptr) {
      ++at;
      continue;
    }
    encode(text.substr(begin, at - begin));
    out.push_back(added->token);
    begin = at += added->text.size();
  }
  encode(text.substr(begin));
}

std::vector<std::int32_t> ByteLevelBpe::encode(std::string_view text) const {
  std::vector<std::int32_t> out;
  encode_between(d_.verbatim, text, out, [&](std::string_view part) {
    const std::string changed = d_.composes ? composed(part) : std::string();
    encode_between(d_.normalised, d_.composes ? changed : part, out, [&](std::string_view plain) { encode_plain(plain, out); });
  });
  return out;
}

void ByteLevelBpe::encode_plain(std::string_view text, std::vector<std::int32_t>& out) const {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = end_of_word(d_.words, text, begin);
    encode_word(text.substr(begin, end - begin), out);
    begin = end;
  }
}

// Merges the pair of lowest rank, the leftmost of several, until none is left. Candidates wait in a heap: a word may be a long run of
// signs.
void ByteLevelBpe::encode_word(std::string_view word, std::vector<std::int32_t>& out) const {
  if (d_.whole_words)
    if (const auto whole = d_.tokens.find(std::string(word)); whole != d_.tokens.end()) return out.push_back(whole->second);
  struct Symbol {
    std::int32_t token, previous, next;  // places of the neighbours; -1, or the number of symbols: none. A token of -1 is merged away.
  };
  const auto count = static_cast<std::int32_t>(word.size());
  std::vector<Symbol> symbols;
  for (std::int32_t i = 0; i < count; ++i) symbols.push_back({d_.bytes[static_cast<unsigned char>(word[i])], i - 1, i + 1});
  using Candidate = std::tuple<std::int32_t, std::int32_t, std::uint64_t>;  // rank, place of the left one, the pair
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto pair_at = [&](std::int32_t left) { return Description::pair(symbols[left].token, symbols[symbols[left].next].token); };
  const auto add = [&](std::int32_t left) {
    if (left < 0 || symbols[left].next >= count) return;
    if (const auto merge = d_.merges.find(pair_at(left)); merge != d_.merges.end())
      candidates.emplace(merge->second.rank, left, merge->first);
  };
  for (std::int32_t i = 0; i + 1 < count; ++i) add(i);
  for (; !candidates.empty();) {
    const auto [rank, left, pair] = candidates.top();
    candidates.pop();
    if (symbols[left].token < 0 || symbols[left].next >= count || pair_at(left) != pair) continue;  // one of the two was merged since
    const std::int32_t right = symbols[left].next;
    symbols[left].token = d_.merges.at(pair).token;
    symbols[left].next = symbols[right].next;
    symbols[right].token = -1;
    if (symbols[left].next < count) symbols[symbols[left].next].previous = left;
    add(symbols[left].previous);
    add(left);
  }
  for (const Symbol& symbol : symbols)
    if (symbol.token >= 0) out.push_back(symbol.token);
}

[[noreturn]] void fail_component(const JsonNode& node, const std::string& found) {
  node.fail(concat("is ", found, ", which is not known"), "byte-level BPE is read, as GPT-2, Llama 3 and Qwen have it");
}

void check_type(const JsonNode& node, const std::string& wanted) {
  node.check_object();
  if (!node.has("type") || node.value()["type"] != wanted)
    fail_component(node, node.has("type") ? shown(node.value()["type"]) : "of no type");
}

bool is_set(const JsonNode& node, const char* key) {
  if (!node.has(key)) return false;
  const nlohmann::json& value = node.value()[key];
  return !value.is_null() && value != false && value != "";
}

// Throws Error where one of these keys has another value than null, false or "".
void check_unset(const JsonNode& node, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (is_set(node, key)) fail_component(node.at(key), shown(node.value()[key]));
}

WordRules words_of_pre_tokenizer(const JsonNode& node) {
  node.check_object();
  if (!node.has("type") || node.value()["type"] != "Sequence") {
    check_type(node, "ByteLevel");
    check_unset(node, {"add_prefix_space"});
    if (node.has("use_regex") && !node.at("use_regex").flag()) fail_component(node.at("use_regex"), "false");
    return gpt2_words();
  }
  const JsonNode parts = node.at("pretokenizers");
  parts.check_list();
  if (parts.value().size() != 2) fail_component(parts, concat("a list of ", parts.value().size()));
  WordRules out;
  std::size_t number = 0;
  parts.each_element([&](const JsonNode& part) {
    check_type(part, number == 0 ? "Split" : "ByteLevel");
    if (number++ == 1) return check_unset(part, {"add_prefix_space", "use_regex"});
    check_unset(part, {"invert"});
    if (part.at("behavior").text() != "Isolated") fail_component(part.at("behavior"), quote(part.at("behavior").text()));
    const JsonNode regex = part.at("pattern").at("Regex");
    const WordRules* known = words_of(regex.text());
    if (known == nullptr) fail_component(regex, shown(regex.value()));
    out = *known;
  });
  return out;
}

// Numbers are nearly dense, so that a table by number is never much larger than the file.
std::int64_t most_tokens(const JsonNode& vocabulary, std::size_t added) {
  constexpr std::size_t kHoles = 4096;
  return static_cast<std::int64_t>(2 * vocabulary.value().size() + added + kHoles);
}

void set_piece(Description& d, const JsonNode& node, std::int64_t token, const std::string& bytes) {
  if (std::ssize(d.pieces) <= token) d.pieces.resize(token + 1);
  if (!d.pieces[token].empty() && d.pieces[token] != bytes)
    node.fail(concat("stands for two tokens, ", quote(d.pieces[token]), " and ", quote(bytes)));
  d.pieces[token] = bytes;
}

// The bytes that the letters of a token stand for; none where one of them stands for no byte, which `stray` then is.
std::optional<std::string> bytes_of(const std::string& letters, const std::unordered_map<std::string, char>& bytes, std::string& stray) {
  std::string out;
  for (std::size_t at = 0; at < letters.size();) {
    std::size_t end = at + 1;
    while (end < letters.size() && (static_cast<unsigned char>(letters[end]) & 0xc0) == 0x80) ++end;
    const auto byte = bytes.find(stray = letters.substr(at, end - at));
    if (byte == bytes.end()) return std::nullopt;
    out += byte->second;
    at = end;
  }
  return out;
}

// Returns what a token is decoded to: also an added one stands for bytes, where all its letters do; else for itself.
std::string decoded(const std::string& text, const std::unordered_map<std::string, char>& bytes) {
  std::string stray;
  return bytes_of(text, bytes, stray).value_or(text);
}

// Sorts by length, and refuses two of one text.
void sort_added(AddedTokens& tokens, const JsonNode& list) {
  for (std::vector<AddedToken>& same : tokens) {
    std::ranges::stable_sort(same, std::greater<>(), [](const AddedToken& added) { return std::pair(added.text.size(), added.text); });
    const auto twice = std::ranges::adjacent_find(same, {}, &AddedToken::text);
    if (twice != same.end())
      list.fail(concat("has two tokens, ", twice->token, " and ", std::next(twice)->token, ", that are found as ", quote(twice->text)),
                "leave one of them out");
  }
}

std::set<std::string> added_texts(const JsonNode& root) {
  std::set<std::string> out;
  if (!root.has("added_tokens")) return out;
  root.at("added_tokens").each_element([&](const JsonNode& node) {
    const std::string& text = node.at("content").text();
    if (text.empty()) node.at("content").fail("is empty");
    if (!out.insert(text).second)
      node.at("content").fail(concat("is ", quote(text), ", as that of a token before it"), "leave one of them out");
  });
  return out;
}

// Hugging Face's library takes an added token's number from the vocabulary or, where it is not there, the next free one: the file's `id`
// is not asked, and must be that.
void read_added(Description& d, const JsonNode& root, const std::unordered_map<std::string, char>& bytes) {
  if (!root.has("added_tokens")) return;
  const JsonNode list = root.at("added_tokens"), vocabulary = root.at("model").at("vocab");
  std::int64_t next = std::ssize(vocabulary.value());
  list.each_element([&](const JsonNode& node) {
    check_unset(node, {"single_word", "lstrip", "rstrip"});
    const std::string& text = node.at("content").text();
    const std::int64_t token = node.at("id").whole(0, most_tokens(vocabulary, list.value().size()));
    const std::int64_t meant =
        vocabulary.has(text.c_str()) ? vocabulary.at(text.c_str()).whole(0, most_tokens(vocabulary, list.value().size())) : next;
    if (token != meant)
      node.at("id").fail(concat("is ", token, ", and the library that made the file gives ", quote(text), " the number ", meant));
    next = std::max(next, token + 1);
    const bool normalised = node.at("normalized").flag();
    const std::string found = normalised && d.composes ? composed(text) : text;
    set_piece(d, node.at("id"), token, decoded(found, bytes));
    (normalised ? d.normalised : d.verbatim)[static_cast<unsigned char>(found[0])].push_back({found, static_cast<std::int32_t>(token)});
    if (text == "<|endoftext|>" || text == "<|end_of_text|>") d.end = static_cast<std::int32_t>(token);
  });
  sort_added(d.verbatim, list);
  sort_added(d.normalised, list);
}

// Merges are lists of two, or texts with a blank between: no letter stands for a blank.
std::pair<std::string, std::string> parts_of_merge(const JsonNode& node) {
  if (node.value().is_string()) {
    const std::vector<std::string> parts = split(node.text(), ' ');
    if (parts.size() == 2) return {parts[0], parts[1]};
  } else if (node.value().is_array() && node.value().size() == 2 && node.value()[0].is_string() && node.value()[1].is_string()) {
    return {node.value()[0], node.value()[1]};
  }
  node.fail(concat("is ", shown(node.value()), "; it must be two tokens"));
}

void read_model(Description& d, const JsonNode& model, const std::unordered_map<std::string, char>& bytes,
                const std::set<std::string>& added) {
  model.check_object();
  if (model.has("type")) check_type(model, "BPE");
  check_unset(model, {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"});
  d.whole_words = is_set(model, "ignore_merges");
  const JsonNode vocabulary = model.at("vocab");
  std::unordered_map<std::string, std::int32_t> tokens;  // by their letters
  vocabulary.each_member([&](const std::string& text, const JsonNode& node) {
    const std::int64_t token = node.whole(0, most_tokens(vocabulary, added.size()));
    std::string stray;
    const std::optional<std::string> piece = bytes_of(text, bytes, stray);
    if (!piece && added.contains(text)) return;  // it stands for itself, and no merge makes it
    if (!piece)
      vocabulary.fail(concat("has the token ", quote(text), ", and ", quote(stray), " stands for no byte"),
                      "byte-level BPE is read, as GPT-2, Llama 3 and Qwen have it");
    if (!added.contains(text)) set_piece(d, node, token, *piece);
    tokens[text] = d.tokens[*piece] = static_cast<std::int32_t>(token);
  });
  const std::array<std::string, 256> letters = byte_letters();
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = tokens.find(letters[byte]);
    if (found == tokens.end()) vocabulary.fail(concat("has no token for byte ", byte, ", ", quote(letters[byte])));
    d.bytes[byte] = found->second;
  }
  std::int32_t rank = 0;
  model.at("merges").each_element([&](const JsonNode& node) {
    const auto [left, right] = parts_of_merge(node);
    const auto first = tokens.find(left), second = tokens.find(right), both = tokens.find(left + right);
    for (const auto& [text, found] : {std::pair(left, first), {right, second}, {left + right, both}})
      if (found == tokens.end()) node.fail(concat("merges ", quote(left), " and ", quote(right), ", and ", quote(text), " is no token"));
    d.merges[Description::pair(first->second, second->second)] = {rank++, both->second};
  });
}

}  // namespace

std::shared_ptr<const Tokenizer> parse_byte_level_bpe(std::string_view text, const std::string& file) {
  const JsonFile source{file, "a Hugging Face tokenizer.json has a model, a pre_tokenizer and a decoder"};
  const nlohmann::json content = parse_json(text, source);
  const JsonNode root(content, source);
  Description d;
  if (is_set(root, "normalizer")) {
    check_type(root.at("normalizer"), "NFC");
    d.composes = true;
  }
  const std::array<std::string, 256> letters = byte_letters();
  std::unordered_map<std::string, char> bytes;  // by their letters
  for (int byte = 0; byte < 256; ++byte) bytes[letters[byte]] = static_cast<char>(byte);
  read_model(d, root.at("model"), bytes, added_texts(root));
  read_added(d, root, bytes);
  d.words = words_of_pre_tokenizer(root.at("pre_tokenizer"));
  check_type(root.at("decoder"), "ByteLevel");
  Hash hash;
  hash.add(text);
  return std::make_shared<ByteLevelBpe>(std::move(d), hash.value());
}

}  // namespace penstock
