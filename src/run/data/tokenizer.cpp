// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer.h"

#include "base/text.h"
#include "data/byte_level_bpe.h"
#include "data/sentence_piece.h"
#include "penstock/error.h"

namespace penstock {
namespace {

class ByteTokenizer : public Tokenizer {
 public:
  std::int64_t size() const override { return 256; }
  std::vector<std::int32_t> encode(std::string_view text) const override {
    const std::span<const std::uint8_t> bytes(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
    return {bytes.begin(), bytes.end()};
  }
  std::string decode(std::span<const std::int32_t> tokens) const override {
    std::string out;
    for (const std::int32_t token : tokens) out += static_cast<char>(token);
    return out;
  }
  std::uint64_t fingerprint() const override { return 0; }
  std::unique_ptr<TokenSource> tokens_of(const SteadyFile& file) const override { return std::make_unique<FileBytes>(file); }
};

}  // namespace

std::unique_ptr<TokenSource> Tokenizer::tokens_of(const SteadyFile& file) const {
  return std::make_unique<HeldTokens>(encode(read_all(file)));
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_shared<ByteTokenizer>();
  if (name.ends_with(".json")) return parse_byte_level_bpe(read_file(name), name);
  if (name.ends_with(".model")) return load_sentence_piece(name);
  throw Error(concat("there is no tokenizer ", quote(name)), {},
              "bytes, or a file: a Hugging Face tokenizer.json, or a SentencePiece model named *.model");
}

}  // namespace penstock
