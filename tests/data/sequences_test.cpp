// SPDX-License-Identifier: Apache-2.0
#include "data/sequences.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "support/errors.h"
#include "support/paths.h"
#include "support/temporary.h"

namespace penstock {
namespace {

using test::message_of;
using test::TemporaryFolder;

std::string text_of(const Sequences& sequences, std::int64_t sequence, const Tokenizer& tokenizer) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(sequences.lengths(sequence).tokens()));
  sequences.copy(sequence, 0, tokens);
  return tokenizer.decode(std::vector<std::int32_t>(tokens.begin(), tokens.end()));
}

TEST(Sequences, PairsAreInputsAndTargets) {
  const TemporaryFolder folder;
  write_file(folder.file("p.jsonl"), "{\"input\": \"the stages\", \"target\": \"of a pipeline\"}\n{\"input\": \"ab\", \"target\": \"\"}\n");
  for (const std::string& name : {std::string("bytes"), test::tests_folder() + "/golden/tokenizer/gpt2.json"}) {
    const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(name);
    const Sequences pairs = Sequences::of_pairs({folder.file("p.jsonl")}, *tokenizer);
    ASSERT_EQ(pairs.size(), 2);
    EXPECT_EQ(pairs.lengths(0).input, std::ssize(tokenizer->encode("the stages"))) << "no token is of both";
    EXPECT_EQ(pairs.lengths(0).target, std::ssize(tokenizer->encode("of a pipeline")));
    EXPECT_EQ(text_of(pairs, 0, *tokenizer), "the stagesof a pipeline");
    EXPECT_EQ(pairs.lengths(1).target, 0);
    EXPECT_EQ(text_of(pairs, 1, *tokenizer), "ab");
  }
}

TEST(Sequences, DocumentsAreAllTarget) {
  const TemporaryFolder folder;
  write_file(folder.file("a.txt"), "abcd");
  write_file(folder.file("b.jsonl"), "{\"text\": \"xyz\"}\n");
  const std::shared_ptr<const Tokenizer> bytes = load_tokenizer("bytes");
  const Sequences documents = Sequences::of_documents({folder.path().string()}, *bytes);
  ASSERT_EQ(documents.size(), 2);
  EXPECT_EQ(documents.lengths(0).input, 0);
  EXPECT_EQ(documents.lengths(0).target, 4);
  EXPECT_EQ(text_of(documents, 1, *bytes), "xyz");
}

// Files of other programs say more of a line than is read here.
TEST(Sequences, FurtherKeysArePassedOver) {
  const TemporaryFolder folder;
  const std::shared_ptr<const Tokenizer> bytes = load_tokenizer("bytes");
  write_file(folder.file("d.jsonl"),
             "{\"id\": 7, \"text\": \"xyz\", \"meta\": {\"url\": null, \"texts\": [1]}}\r\n"
             "\r\n"
             "{\"input\": \"a\", \"target\": \"b\", \"test\": true}\n"
             "{\"target\": \"c\", \"input\": \"d\", \"text\": \"both\"}\n");
  const Sequences documents = Sequences::of_documents({folder.file("d.jsonl")}, *bytes);
  ASSERT_EQ(documents.size(), 3);
  EXPECT_EQ(text_of(documents, 0, *bytes), "xyz");
  EXPECT_EQ(documents.lengths(1).input, 1);
  EXPECT_EQ(text_of(documents, 2, *bytes), "both");
  EXPECT_EQ(documents.lengths(2).input, 0);
  write_file(folder.file("p.jsonl"), "{\"input\": \"a\", \"target\": \"bc\", \"text\": \"both\", \"source\": \"web\"}\n");
  const Sequences pairs = Sequences::of_pairs({folder.file("p.jsonl")}, *bytes);
  EXPECT_EQ(text_of(pairs, 0, *bytes), "abc");
  EXPECT_EQ(pairs.lengths(0).input, 1);
  const auto refusal = [&](const std::string& line) {
    write_file(folder.file("d.jsonl"), line);
    return message_of([&] { Sequences::of_documents({folder.file("d.jsonl")}, *bytes); }).substr(folder.path().string().size() + 1);
  };
  const std::string remake =
      "\n  hint: the file is damaged, or of another version: each line is an object with \"text\", or with \"input\" and \"target\"";
  EXPECT_EQ(refusal("{\"content\": \"a\", \"id\": 3}\n"), "d.jsonl:1 has no key \"text\"" + remake);
  EXPECT_EQ(refusal("{\"input\": \"a\", \"output\": \"b\"}\n"), "d.jsonl:1 has no key \"target\"" + remake);
  EXPECT_EQ(refusal("{\"text\": null}\n"), "d.jsonl:1: text is null; it must be a text");
  EXPECT_EQ(refusal("[\"text\"]\n").substr(0, 12), "d.jsonl:1 is");
}

TEST(Sequences, BadPairsAreNamed) {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& content, const std::string& name = "p.jsonl") {
    write_file(folder.file(name), content);
    std::string message = message_of([&] { Sequences::of_pairs({folder.file(name)}, *load_tokenizer("bytes")); });
    for (std::size_t at; (at = message.find(folder.path().string() + "/")) != message.npos;)
      message.erase(at, folder.path().string().size() + 1);
    return message;
  };
  const std::string good = "{\"input\": \"a\", \"target\": \"b\"}\n";
  EXPECT_EQ(refusal(good), "no error");
  EXPECT_EQ(
      refusal(good + "{\"input\": \"a\"}\n"),
      "p.jsonl:2 has no key \"target\"\n  hint: the file is damaged, or of another version: each line is an object with \"input\" and "
      "\"target\"");
  EXPECT_EQ(refusal(good + "{\"text\": \"a\"}\n").substr(0, 28), "p.jsonl:2 has no key \"input\"");
  EXPECT_EQ(refusal(good + "{\"input\": \"\", \"target\": \"b\"}\n"), "p.jsonl:2: input is empty");
  EXPECT_EQ(refusal("{\"input\": \"a\", \"target\": \"\"}\n"),
            "no pair has a target, of 1 in p.jsonl\n  hint: nothing can be learnt from them");
  EXPECT_EQ(refusal(""), "p.jsonl is empty\n  hint: name a text of some kilobytes");
  EXPECT_EQ(refusal("words", "p.txt"), "p.txt has no pairs\n  hint: they are lines of a file named *.jsonl, or in a file of tokens");
  EXPECT_EQ(refusal(good + "{\"input\": \"a\"\n").substr(0, 33), "p.jsonl:2:1:14: this is not JSON:");
}

}  // namespace
}  // namespace penstock
