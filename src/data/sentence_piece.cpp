#include "data/sentence_piece.h"

#include <sentencepiece_processor.h>

#include <algorithm>

#include "base/hash.h"
#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

class SentencePiece : public Tokenizer {
 public:
  explicit SentencePiece(const std::string& path) {
    const std::string model = read_file(path);
    const auto status = model.empty() ? sentencepiece::util::Status() : processor_.LoadFromSerializedProto(model);
    if (model.empty() || !status.ok())
      throw Error(concat(path, " is no SentencePiece model"), {model.empty() ? "it is empty" : status.ToString()},
                  "penstock reads the *.model file that SentencePiece's trainer wrote");
    Hash hash;
    hash.add(model);
    fingerprint_ = hash.value();
  }

  std::int64_t size() const override { return processor_.GetPieceSize(); }
  std::vector<std::int32_t> encode(std::string_view text) const override { return processor_.EncodeAsIds({text.data(), text.size()}); }
  std::string decode(std::span<const std::int32_t> tokens) const override {
    return processor_.DecodeIds(std::vector<int>(tokens.begin(), tokens.end()));
  }
  std::optional<std::int32_t> end_of_text() const override {
    return processor_.eos_id() < 0 ? std::nullopt : std::optional(processor_.eos_id());
  }
  std::uint64_t fingerprint() const override { return fingerprint_; }

 private:
  sentencepiece::SentencePieceProcessor processor_;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace

std::shared_ptr<const Tokenizer> load_sentence_piece(const std::string& path) {
  return std::make_shared<SentencePiece>(path);
}

}  // namespace penstock
