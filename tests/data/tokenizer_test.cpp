// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "base/json.h"
#include "base/text.h"
#include "data/byte_level_bpe.h"
#include "support/errors.h"
#include "support/paths.h"
#include "support/temporary.h"

namespace penstock {
namespace {

using test::message_of;
using test::TemporaryFolder;

std::string golden(const std::string& name) {
  return test::tests_folder() + "/golden/tokenizer/" + name;
}

class GoldenTokenizer : public testing::TestWithParam<const char*> {};

// The cases are what the packages tokenizers and sentencepiece made of the same texts: golden/tokenizer/make.py.
TEST_P(GoldenTokenizer, GivesTheSameTokensAndTexts) {
  const std::string kind = GetParam();
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(golden(kind + (kind == "pieces" ? ".model" : ".json")));
  const nlohmann::json cases = nlohmann::json::parse(read_file(golden(kind + "_cases.json")));
  ASSERT_GT(cases.size(), 70u);
  for (const nlohmann::json& one : cases) {
    const std::string text = one["text"];
    const std::vector<std::int32_t> tokens = one["tokens"];
    EXPECT_EQ(tokenizer->encode(text), tokens) << quote(text);
    EXPECT_EQ(tokenizer->decode(tokens), one.value("decoded", text)) << quote(text);
  }
}
INSTANTIATE_TEST_SUITE_P(Kinds, GoldenTokenizer, testing::Values("gpt2", "llama", "qwen", "pieces"));

// The same of drawn added tokens: those that are normalised and those that are not, parts of one another, special ones.
TEST(Tokenizer, AddedTokensAreThoseOfTheLibrary) {
  nlohmann::json file = nlohmann::json::parse(read_file(golden("gpt2.json")));
  int texts = 0, refused = 0;
  for (const nlohmann::json& one : nlohmann::json::parse(read_file(golden("added_cases.json")))) {
    file["normalizer"] = one["normalizer"];
    file["added_tokens"] = one["added_tokens"];
    std::shared_ptr<const Tokenizer> tokenizer;
    const std::string message = message_of([&] { tokenizer = parse_byte_level_bpe(file.dump(), "t.json"); });
    if (one.contains("refused")) {
      EXPECT_TRUE(message.starts_with("t.json: added_tokens")) << message << one["added_tokens"];
      ++refused;
      continue;
    }
    ASSERT_NE(tokenizer, nullptr) << message << one["added_tokens"];
    for (const nlohmann::json& text : one["texts"]) {
      EXPECT_EQ(tokenizer->encode(text[0].get<std::string>()), text[1].get<std::vector<std::int32_t>>()) << text[0] << one["added_tokens"];
      ++texts;
    }
    for (const nlohmann::json& ids : one["decoded"])
      EXPECT_EQ(tokenizer->decode(ids[0].get<std::vector<std::int32_t>>()), ids[1].get<std::string>()) << ids[0] << one["added_tokens"];
  }
  EXPECT_GT(texts, 300);
  EXPECT_GT(refused, 20);
}

TEST(Tokenizer, AddedTokensThatTheLibraryReadsOtherwiseAreRefused) {
  const auto message = [](const nlohmann::json& changed, bool composes) {
    nlohmann::json file = nlohmann::json::parse(read_file(golden("gpt2.json")));
    if (composes) file["normalizer"] = {{"type", "NFC"}};
    for (const nlohmann::json& token : changed) {
      nlohmann::json all = {{"special", false}, {"normalized", true}, {"lstrip", false}, {"rstrip", false}, {"single_word", false}};
      all.update(token);
      file["added_tokens"].push_back(all);
    }
    return message_of([&] { parse_byte_level_bpe(file.dump(), "t.json"); });
  };
  const nlohmann::json composed = {{"id", 482}, {"content", "a\u00e9"}}, apart = {{"id", 483}, {"content", "ae\u0301"}};
  EXPECT_EQ(message({composed, apart}, false), "no error");
  EXPECT_EQ(message({composed, apart}, true),
            "t.json: added_tokens has two tokens, 482 and 483, that are found as \"a\\xc3\\xa9\"\n  hint: leave one of them out");
  EXPECT_EQ(message({{{"id", 500}, {"content", "xyx"}}}, false).substr(0, 71),
            "t.json: added_tokens[3].id is 500, and the library that made the file g");
  EXPECT_EQ(message({{{"id", 482}, {"content", "<pad>"}}}, false),
            "t.json: added_tokens[3].content is \"<pad>\", as that of a token before it\n  hint: leave one of them out");
  EXPECT_EQ(message({{{"id", 482}, {"content", "xy"}, {"lstrip", true}}}, false).substr(0, 47),
            "t.json: added_tokens[3].lstrip is true, which i");
}

TEST(Tokenizer, BytesAreTheirOwnTokens) {
  const std::shared_ptr<const Tokenizer> bytes = load_tokenizer("bytes");
  EXPECT_EQ(bytes->size(), 256);
  EXPECT_EQ(bytes->encode("a\xff"), (std::vector<std::int32_t>{97, 255}));
  EXPECT_EQ(bytes->decode(std::vector<std::int32_t>{97, 255}), "a\xff");
  EXPECT_EQ(bytes->end_of_text(), std::nullopt);
}

TEST(Tokenizer, SizesAndEnds) {
  EXPECT_EQ(load_tokenizer(golden("gpt2.json"))->size(), 482) << "480, and two that were added";
  EXPECT_EQ(load_tokenizer(golden("gpt2.json"))->end_of_text(), 0);
  EXPECT_EQ(load_tokenizer(golden("llama.json"))->end_of_text(), 0);
  EXPECT_EQ(load_tokenizer(golden("pieces.model"))->size(), 400);
  EXPECT_EQ(load_tokenizer(golden("pieces.model"))->end_of_text(), 2);
  EXPECT_NE(load_tokenizer(golden("gpt2.json"))->fingerprint(), load_tokenizer(golden("llama.json"))->fingerprint());
}

// Also of what is no UTF-8.
TEST(Tokenizer, AnyBytesComeBack) {
  for (const unsigned seed : {1u, 2u, 3u}) {
    std::mt19937 random(seed);
    for (const char* kind : {"gpt2.json", "llama.json"}) {
      const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(golden(kind));
      for (int i = 0; i < 200; ++i) {
        std::string text(random() % 100, '\0');
        for (char& c : text) c = static_cast<char>(i % 2 == 0 ? random() : "'s \n1e<|>"[random() % 9]);
        EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << quote(text) << " seed " << seed;
      }
    }
  }
}

// Megabytes without a blank take as long as others.
TEST(Tokenizer, LongWords) {
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(golden("gpt2.json"));
  const std::string text(std::size_t{1} << 20, '-');
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
}

// The smallest tokenizer that is one, with a change.
std::string refusal(const nlohmann::json& change) {
  nlohmann::json file = nlohmann::json::parse(read_file(golden("gpt2.json")));
  file.merge_patch(change);
  return message_of([&] { parse_byte_level_bpe(file.dump(), "t.json"); });
}

TEST(Tokenizer, RefusesWhatItDoesNotKnow) {
  const std::string hint = "\n  hint: byte-level BPE is read, as GPT-2, Llama 3 and Qwen have it";
  EXPECT_EQ(refusal(nlohmann::json::object()), "no error");
  EXPECT_EQ(refusal({{"model", {{"type", "WordPiece"}}}}), "t.json: model is \"WordPiece\", which is not known" + hint);
  EXPECT_EQ(refusal({{"model", {{"byte_fallback", true}}}}), "t.json: model.byte_fallback is true, which is not known" + hint);
  EXPECT_EQ(refusal({{"model", {{"dropout", 0.1}}}}), "t.json: model.dropout is 0.1, which is not known" + hint);
  EXPECT_EQ(refusal({{"normalizer", {{"type", "Lowercase"}}}}), "t.json: normalizer is \"Lowercase\", which is not known" + hint);
  EXPECT_EQ(refusal({{"pre_tokenizer", {{"type", "Metaspace"}}}}), "t.json: pre_tokenizer is \"Metaspace\", which is not known" + hint);
  EXPECT_EQ(refusal({{"pre_tokenizer", {{"add_prefix_space", true}}}}),
            "t.json: pre_tokenizer.add_prefix_space is true, which is not known" + hint);
  EXPECT_EQ(refusal({{"decoder", {{"type", "WordPiece"}}}}), "t.json: decoder is \"WordPiece\", which is not known" + hint);
  nlohmann::json split = nlohmann::json::parse(read_file(golden("llama.json")))["pre_tokenizer"];
  split["pretokenizers"][0]["pattern"]["Regex"] = "\\w+";
  EXPECT_EQ(refusal({{"pre_tokenizer", split}}),
            "t.json: pre_tokenizer.pretokenizers[0].pattern.Regex is \"\\\\w+\", which is not known" + hint);
}

TEST(Tokenizer, RefusesWhatContradictsItself) {
  EXPECT_EQ(refusal({{"model", {{"merges", {"a bc"}}}}}), "t.json: model.merges[0] merges \"a\" and \"bc\", and \"bc\" is no token");
  EXPECT_EQ(refusal({{"model", {{"merges", {"abc"}}}}}), "t.json: model.merges[0] is \"abc\"; it must be two tokens");
  EXPECT_EQ(refusal({{"model", {{"vocab", {{"b", 67}}}}}}).substr(0, 40), "t.json: model.vocab.c stands for two tok");
  EXPECT_EQ(refusal({{"model", {{"vocab", {{"a", nullptr}}}}}}), "t.json: model.vocab has no token for byte 97, \"a\"");
  EXPECT_EQ(refusal({{"model", {{"vocab", {{"\u2581the", 200}}}}}}).substr(0, 56),
            "t.json: model.vocab has the token \"\\xe2\\x96\\x81the\", and");
  EXPECT_EQ(refusal({{"model", {{"vocab", {{"ab", 100'000'000}}}}}}),
            "t.json: model.vocab.ab is 100000000; it must be a whole number from 0 to 5061");
}

TEST(Tokenizer, RefusesFilesThatAreNone) {
  const TemporaryFolder folder;
  EXPECT_EQ(
      message_of([] { load_tokenizer("words"); }),
      "there is no tokenizer \"words\"\n  hint: bytes, or a file: a Hugging Face tokenizer.json, or a SentencePiece model named *.model");
  EXPECT_EQ(message_of([] { load_tokenizer("/nonexistent/t.json"); }),
            "cannot read /nonexistent/t.json: No such file or directory\n  hint: there is no folder /nonexistent");
  EXPECT_EQ(message_of([] { parse_byte_level_bpe("{}", "t.json"); }),
            "t.json has no key \"model\"\n  hint: the file is damaged, or of another version: a Hugging Face tokenizer.json has a model, a "
            "pre_tokenizer and a decoder");
  EXPECT_TRUE(message_of([] { parse_byte_level_bpe("hello", "t.json"); }).starts_with("t.json:1:1: this is not JSON"));
  for (const char* content : {"", "hello"}) {
    write_file(folder.file("x.model"), content);
    const std::string message = message_of([&] { load_tokenizer(folder.file("x.model")); });
    EXPECT_TRUE(message.starts_with(folder.file("x.model") + " is no SentencePiece model\n  ")) << message;
  }
}

}  // namespace
}  // namespace penstock
