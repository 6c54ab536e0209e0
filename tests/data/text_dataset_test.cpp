// SPDX-License-Identifier: Apache-2.0
#include "data/text_dataset.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/text.h"
#include "support/errors.h"
#include "support/paths.h"
#include "support/temporary.h"

namespace penstock {
namespace {

using test::message_of;
using test::TemporaryFolder;

const std::shared_ptr<const Tokenizer> bytes = load_tokenizer("bytes");

// 26 letters, over and over: byte b follows byte a.
std::string letters(std::size_t size) {
  std::string out;
  for (std::size_t i = 0; i < size; ++i) out += static_cast<char>('a' + i % 26);
  return out;
}

std::vector<std::int64_t> values(const TextDataset& data, const std::string& port, const StepInput& input, std::int64_t first,
                                 std::int64_t rows, std::size_t count) {
  std::vector<std::int64_t> out(count);
  data.fill({port, {DType::i64, {}}, true}, input, first, rows, std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(TextDataset, TargetsAreTheNextBytesAcrossFiles) {
  const TemporaryFolder folder;
  const std::string text = letters(26 * 10);
  write_file(folder.file("a.txt"), text.substr(0, 101));
  write_file(folder.file("b.txt"), text.substr(101));
  const TextDataset data({folder.path().string()}, *bytes, 8, {4, 0.1, 0});
  EXPECT_EQ(data.size(), 260);
  EXPECT_EQ(data.files(), 2);
  StepInput input;
  input.samples = data.training_samples(0);
  const auto tokens = values(data, "tokens", input, 0, 4, 32), targets = values(data, "targets", input, 0, 4, 32);
  for (std::size_t i = 0; i < tokens.size(); ++i) EXPECT_EQ(targets[i], 'a' + (tokens[i] - 'a' + 1) % 26);
  // A device that reads rows 2 and 3 sees the same bytes.
  EXPECT_EQ(values(data, "tokens", input, 2, 2, 16), std::vector<std::int64_t>(tokens.begin() + 16, tokens.end()));
  EXPECT_EQ(values(data, "rows", input, 2, 2, 2), (std::vector<std::int64_t>{2, 3}));
  input.seed = 9;
  EXPECT_EQ(values(data, "seed", input, 0, 1, 1), (std::vector<std::int64_t>{9}));
  EXPECT_EQ(message_of([&] { values(data, "images", input, 0, 1, 1); }),
            "text has no data for port \"images\"\n  it gives tokens, targets, rows and seed");
}

TEST(TextDataset, WindowsOfTokens) {
  const TemporaryFolder folder;
  const std::string text = letters(300);
  write_file(folder.file("a.txt"), text);
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(test::tests_folder() + "/golden/tokenizer/gpt2.json");
  const std::vector<std::int32_t> tokens = tokenizer->encode(text);
  const TextDataset data({folder.file("a.txt")}, *tokenizer, 8, {1, 0, 0});
  EXPECT_EQ(data.size(), std::ssize(tokens));
  EXPECT_EQ(data.summary(), concat("300 B of text in 1 file, ", tokens.size(), " tokens"));
  StepInput input;
  input.samples = {2};
  EXPECT_EQ(values(data, "targets", input, 0, 1, 8), std::vector<std::int64_t>(tokens.begin() + 17, tokens.begin() + 25));
  EXPECT_NE(data.fingerprint(), TextDataset({folder.file("a.txt")}, *bytes, 8, {1, 0, 0}).fingerprint());
}

// The refusal of a file that holds `content`, named itself; "no error" where it is text.
std::string verdict(const std::string& content) {
  const TemporaryFolder folder;
  write_file(folder.file("x"), content);
  const std::string message = message_of([&] { TextDataset({folder.file("x")}, *bytes, 8, {4, 0.1, 0}); });
  return message.substr(0, message.find('\n')).substr(message.starts_with(folder.file("x")) ? folder.file("x").size() : 0);
}

TEST(TextDataset, RefusesWhatIsNoText) {
  std::string tokens;
  for (int i = 0; i < 4000; ++i) {
    const int token = 300 + i * 7919 % 40000;  // as two bytes each, none of which is zero
    if (token % 256 != 0) tokens += {static_cast<char>(token % 256), static_cast<char>(token / 256)};
  }
  EXPECT_TRUE(verdict(tokens).starts_with(" is no text: ")) << verdict(tokens);
  EXPECT_EQ(verdict(letters(300) + std::string("\0", 1)), " is no text: it has zero bytes");
  EXPECT_EQ(verdict(std::string("\x40\0\0\0\0\0\0\0", 8) + "{\"wte.weight\": {}}" + letters(300)), " is no text: it is a safetensors file");
  for (const char* text : {"\xef\xbb\xbf", "\t\r\n\f", "\x1b[31m", "na\xc3\xafve \xd0\xb4\xd0\xb0", "\xe4\xf6\xfc"})
    EXPECT_EQ(verdict(text + letters(300)), "no error") << text;
}

TEST(TextDataset, CountsWhatItLeavesOutOfAFolder) {
  const TemporaryFolder folder;
  write_file(folder.file("a.txt"), letters(600));
  EXPECT_EQ(TextDataset({folder.path().string()}, *bytes, 8, {4, 0.1, 0}).summary(), "600 B of text in 1 file");
  write_file(folder.file("b.bin"), std::string(100, '\0'));
  write_file(folder.file("c"), std::string(100, '\x01'));
  const TextDataset data({folder.path().string()}, *bytes, 8, {4, 0.1, 0});
  EXPECT_EQ(data.size(), 600);
  EXPECT_EQ(data.summary(), "600 B of text in 1 file (2 files without text left out)");
}

TEST(TextDataset, AnEpochVisitsEachTrainingSampleOnce) {
  const TemporaryFolder folder;
  write_file(folder.file("a.txt"), letters(1601));
  const TextDataset data({folder.file("a.txt")}, *bytes, 16, {5, 0.2, 3});
  ASSERT_EQ(data.training_size(), 80);
  ASSERT_EQ(data.validation_size(), 20);
  std::set<std::int64_t> training, validation;
  for (std::int64_t position = 0; position < 80; position += 5)
    for (std::int64_t sample : data.training_samples(position)) EXPECT_TRUE(training.insert(sample).second);
  for (std::int64_t batch = 0; batch < 4; ++batch)
    for (std::int64_t sample : data.validation_samples(batch)) validation.insert(sample);
  EXPECT_EQ(training.size(), 80u);
  EXPECT_EQ(validation.size(), 20u);
  for (std::int64_t sample : validation) EXPECT_FALSE(training.contains(sample));
  EXPECT_NE(data.training_samples(0), data.training_samples(80));  // the next epoch has its own order
  EXPECT_EQ(data.validation_samples(0), TextDataset({folder.file("a.txt")}, *bytes, 16, {5, 0.2, 4}).validation_samples(0));
}

TEST(TextDataset, FoldersGiveTextOnly) {
  const TemporaryFolder folder;
  for (const char* name : {"src", "build-x", ".git"}) std::filesystem::create_directories(folder.path() / name);
  write_file(folder.file("src/a.cpp"), letters(200));
  write_file(folder.file("src/image.png"), std::string("\x89PNG\0\0", 6) + letters(100));
  write_file(folder.file("src/.hidden"), letters(100));
  write_file(folder.file("src/empty"), "");
  write_file(folder.file("build-x/b.cpp"), letters(100));
  write_file(folder.file(".git/config"), letters(100));
  EXPECT_EQ(TextDataset({folder.path().string()}, *bytes, 8, {1, 0, 0}).size(), 200);
}

TEST(TextDataset, BadTextIsNamed) {
  const TemporaryFolder folder;
  write_file(folder.file("empty"), "");
  write_file(folder.file("short"), letters(50));
  std::filesystem::create_directories(folder.path() / "nothing");
  const auto failure = [](const std::vector<std::string>& paths) {
    return message_of([&] { TextDataset(paths, *bytes, 16, {4, 0.1, 0}); });
  };
  EXPECT_EQ(failure({"/nonexistent/a"}), "cannot read /nonexistent/a: No such file or directory\n  hint: there is no folder /nonexistent");
  EXPECT_EQ(failure({folder.file("empty")}), concat(folder.file("empty"), " is empty\n  hint: name a text of some kilobytes"));
  EXPECT_EQ(failure({folder.file("nothing")}), concat("no text in ", folder.file("nothing"), "\n  hint: --text takes files and folders"));
  EXPECT_EQ(failure({folder.file("short")}), concat("the text is shorter than one batch: 50 tokens in ", folder.file("short"),
                                                    "\n  one batch takes 4 sequences of 16 tokens; 2 sequences are there beside validation"
                                                    "\n  hint: name more text, or lower train.batch or model.context"));
}

TEST(TextDataset, TheFingerprintIsOfTheContents) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.txt"), text = letters(200'000);
  const auto fingerprint = [&](const std::string& content) {
    write_file(path, content);
    return TextDataset({path}, *bytes, 8, {1, 0, 0}).fingerprint();
  };
  const std::uint64_t first = fingerprint(text);
  EXPECT_EQ(fingerprint(text), first);
  for (const std::size_t changed : {std::size_t{0}, std::size_t{70'001}, text.size() - 1}) {
    std::string other = text;
    other[changed] = 'Z';
    EXPECT_NE(fingerprint(other), first) << changed;
  }
  EXPECT_NE(fingerprint(text.substr(1)), first);
}

// Cut off, it would end a process that has it mapped.
TEST(TextDataset, AFileThatIsChangedMeanwhileIsNamed) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.txt");
  const auto read = [&](auto&& change) {
    write_file(path, letters(26 * 10));
    const TextDataset data({path}, *bytes, 8, {4, 0.1, 0});
    StepInput input;
    input.samples = data.training_samples(0);
    change();
    return message_of([&] { values(data, "tokens", input, 0, 4, 32); });
  };
  const std::string changed = concat(path, " was changed while the run read it\n  hint: train on a copy that stays as it is");
  EXPECT_EQ(read([] {}), "no error");
  EXPECT_EQ(read([&] { std::filesystem::resize_file(path, 20); }), changed);
  EXPECT_EQ(read([&] { std::ofstream(path) << std::string(26 * 10, 'x'); }), changed);
  EXPECT_EQ(read([&] { write_file(path, letters(26 * 10)); }), changed);
  EXPECT_EQ(read([&] { std::filesystem::remove(path); }),
            concat("cannot read ", path, ": No such file or directory\n  hint: name a file that is in ",
                   std::filesystem::path(path).parent_path().string(), ", or another folder"));
}

// Rank 0's sample numbers may be meant for a longer text.
TEST(TextDataset, SamplesThatThereAreNot) {
  const TemporaryFolder folder;
  write_file(folder.file("a.txt"), letters(26 * 10));
  const TextDataset data({folder.file("a.txt")}, *bytes, 8, {4, 0.1, 0});
  StepInput input;
  for (const std::int64_t sample : {std::int64_t{32}, std::int64_t{-1}, std::int64_t{1} << 60}) {
    input.samples = {sample};
    EXPECT_EQ(message_of([&] { values(data, "tokens", input, 0, 1, 8); }), concat("sample ", sample, " was asked for, the text has 32"));
  }
  input.step = 3;
  EXPECT_EQ(message_of([&] { values(data, "targets", input, 1, 1, 8); }), "step 3 has a batch of 1, its row 1 was asked for");
}

TEST(TextDataset, TheDefaultTextIsThere) {
  const TextDataset data(default_text(), *bytes, 128, {16, 0.05, 0});
  EXPECT_GT(data.size(), 100'000);
}

}  // namespace
}  // namespace penstock
