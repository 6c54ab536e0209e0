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
  EXPECT_EQ(refusal(good + "{\"text\": \"a\"}\n"), "p.jsonl:2 has an unknown key \"text\"\n  hint: known: input, target");
  EXPECT_EQ(refusal(good + "{\"input\": \"\", \"target\": \"b\"}\n"), "p.jsonl:2: input is empty");
  EXPECT_EQ(refusal("{\"input\": \"a\", \"target\": \"\"}\n"),
            "no pair has a target, of 1 in p.jsonl\n  hint: nothing can be learnt from them");
  EXPECT_EQ(refusal(""), "p.jsonl is empty\n  hint: name a text of some kilobytes");
  EXPECT_EQ(refusal("words", "p.txt"), "p.txt has no pairs\n  hint: they are lines of a file named *.jsonl, or in a file of tokens");
  EXPECT_EQ(refusal(good + "{\"input\": \"a\"\n").substr(0, 33), "p.jsonl:2:1:14: this is not JSON\n");
}

}  // namespace
}  // namespace penstock
