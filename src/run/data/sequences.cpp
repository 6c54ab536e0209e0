// SPDX-License-Identifier: Apache-2.0
#include "data/sequences.h"

#include <algorithm>

#include "base/text.h"
#include "base/words.h"
#include "data/json_lines.h"
#include "data/text_files.h"
#include "penstock/error.h"

namespace penstock {
namespace {

bool has_lines(const SteadyFile& file) {
  return file.path().ends_with(".jsonl");
}

struct Texts {
  std::string input, target;
};

// Returns the texts of a line to learn from. Lines may have further keys, which are passed over.
Texts texts_of(const JsonNode& line, bool pairs) {
  const bool is_pair = pairs || (!line.has("text") && (line.has("input") || line.has("target")));
  if (!is_pair) {
    check_misspelt(line, "text");
    return {"", line.at("text").text()};
  }
  for (const char* key : {"input", "target"}) check_misspelt(line, key);
  if (pairs && line.at("input").text().empty()) line.at("input").fail("is empty");
  return {line.at("input").text(), line.at("target").text()};
}

}  // namespace

Sequences Sequences::of_documents(const std::vector<std::string>& paths, const Tokenizer& tokenizer) {
  return read(paths, tokenizer, false);
}

Sequences Sequences::of_pairs(const std::vector<std::string>& paths, const Tokenizer& tokenizer) {
  Sequences out = read(paths, tokenizer, true);
  if (std::ranges::all_of(out.places_, [](const Place& place) { return place.lengths.target == 0; }))
    throw Error(concat("no pair has a target, of ", out.size(), " in ", join(paths, ", ")), {}, "nothing can be learnt from them");
  return out;
}

Sequences Sequences::read(const std::vector<std::string>& paths, const Tokenizer& tokenizer, bool pairs) {
  Sequences out;
  std::vector<SteadyFile> all;
  for (const std::string& path : paths) {
    if (is_token_file(path)) {
      OpenedTokens opened = open_tokens(path, tokenizer);
      all.insert(all.end(), opened.files.begin(), opened.files.end());
      out.add_tokens(std::move(opened), pairs);
      continue;
    }
    for (const SteadyFile& file : open_text({path}).files) {
      all.push_back(file);
      if (has_lines(file)) {
        out.add_lines(file, tokenizer, pairs);
        continue;
      }
      if (pairs) throw Error(concat(file.path(), " has no pairs"), {}, "they are lines of a file named *.jsonl, or in a file of tokens");
      out.sources_.push_back(tokenizer.tokens_of(file));
      out.places_.push_back({out.sources_.size() - 1, 0, {0, out.sources_.back()->size()}});
    }
  }
  out.fingerprint_ = hash_of(all) ^ tokenizer.fingerprint();
  return out;
}

void Sequences::add_lines(const SteadyFile& file, const Tokenizer& tokenizer, bool pairs) {
  const std::string form = concat("each line is an object with ", pairs ? "" : "\"text\", or with ", "\"input\" and \"target\"");
  std::vector<std::int32_t> tokens;
  read_lines(file, form, [&](const JsonNode& line, const std::string&) {
    const Texts texts = texts_of(line, pairs);
    const std::vector<std::int32_t> input = tokenizer.encode(texts.input), target = tokenizer.encode(texts.target);
    places_.push_back({sources_.size(), std::ssize(tokens), {std::ssize(input), std::ssize(target)}});
    for (const auto* some : {&input, &target}) tokens.insert(tokens.end(), some->begin(), some->end());
  });
  sources_.push_back(std::make_unique<HeldTokens>(std::move(tokens)));
}

void Sequences::add_tokens(OpenedTokens opened, bool pairs) {
  const TokenIndex& index = opened.index;
  for (std::size_t d = 0; d + 1 < index.documents.size(); ++d) {
    const std::int64_t first = index.documents[d], count = index.documents[d + 1] - first;
    if (pairs && (count != 2 || index.lengths[first] == 0))
      throw Error(concat(opened.files[0].path(), ": document ", d,
                         count == 2 ? " has an empty input" : concat(" has ", counted(count, "sequence"), "; a pair has two")));
    if (count == 0) continue;
    const std::int64_t end = index.begins[first + count - 1] + index.lengths[first + count - 1];
    const std::int64_t input = pairs ? index.lengths[first] : 0;
    places_.push_back({sources_.size(), index.begins[first], {input, end - index.begins[first] - input}});
  }
  sources_.push_back(std::move(opened.tokens));
}

const Sequences::Place& Sequences::place(std::int64_t sequence) const {
  if (sequence < 0 || sequence >= size()) throw Error(concat("sequence ", sequence, " was asked for, there are ", size()));
  return places_[static_cast<std::size_t>(sequence)];
}

void Sequences::copy(std::int64_t sequence, std::int64_t begin, std::span<std::int64_t> out) const {
  const Place& from = place(sequence);
  sources_[from.source]->copy(from.begin + begin, out);
}

}  // namespace penstock
