#include "runtime/byte_dataset.h"

#include <gtest/gtest.h>

#include <set>

#include "base/text.h"
#include "support/errors.h"
#include "support/temporary.h"

namespace penstock {
namespace {

using test::message_of;
using test::TemporaryFolder;

// 26 letters, over and over: byte b follows byte a.
std::string letters(std::size_t size) {
  std::string out;
  for (std::size_t i = 0; i < size; ++i) out += static_cast<char>('a' + i % 26);
  return out;
}

std::vector<std::int64_t> values(const ByteDataset& data, const std::string& port, const StepInput& input, std::int64_t first,
                                 std::int64_t rows, std::size_t count) {
  std::vector<std::int64_t> out(count);
  data.fill({port, {DType::i64, {}}, true}, input, first, rows, std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(ByteDataset, TargetsAreTheNextBytesAcrossFiles) {
  const TemporaryFolder folder;
  const std::string text = letters(26 * 10);
  write_file(folder.file("a.txt"), text.substr(0, 101));
  write_file(folder.file("b.txt"), text.substr(101));
  const ByteDataset data({folder.path().string()}, 8, 4, 0.1, 0);
  EXPECT_EQ(data.bytes(), 260);
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

TEST(ByteDataset, AnEpochVisitsEachTrainingSampleOnce) {
  const TemporaryFolder folder;
  write_file(folder.file("a.txt"), letters(1601));
  const ByteDataset data({folder.file("a.txt")}, 16, 5, 0.2, 3);
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
  EXPECT_EQ(data.validation_samples(0), ByteDataset({folder.file("a.txt")}, 16, 5, 0.2, 4).validation_samples(0));
}

TEST(ByteDataset, FoldersGiveTextOnly) {
  const TemporaryFolder folder;
  for (const char* name : {"src", "build-x", ".git"}) std::filesystem::create_directories(folder.path() / name);
  write_file(folder.file("src/a.cpp"), letters(200));
  write_file(folder.file("src/image.png"), std::string("\x89PNG\0\0", 6) + letters(100));
  write_file(folder.file("src/.hidden"), letters(100));
  write_file(folder.file("src/empty"), "");
  write_file(folder.file("build-x/b.cpp"), letters(100));
  write_file(folder.file(".git/config"), letters(100));
  EXPECT_EQ(ByteDataset({folder.path().string()}, 8, 1, 0, 0).bytes(), 200);
}

TEST(ByteDataset, BadTextIsNamed) {
  const TemporaryFolder folder;
  write_file(folder.file("empty"), "");
  write_file(folder.file("short"), letters(50));
  std::filesystem::create_directories(folder.path() / "nothing");
  const auto failure = [](const std::vector<std::string>& paths) { return message_of([&] { ByteDataset(paths, 16, 4, 0.1, 0); }); };
  EXPECT_EQ(failure({"/nonexistent/a"}), "cannot read /nonexistent/a: No such file or directory");
  EXPECT_EQ(failure({folder.file("empty")}), concat(folder.file("empty"), " is empty\n  hint: name a text of some kilobytes"));
  EXPECT_EQ(failure({folder.file("nothing")}), concat("no text in ", folder.file("nothing"), "\n  hint: --text takes files and folders"));
  EXPECT_EQ(failure({folder.file("short")}), concat("the text is shorter than one batch: 50 bytes in ", folder.file("short"),
                                                    "\n  one batch takes 4 sequences of 16 bytes; 2 sequences are there beside validation"
                                                    "\n  hint: name more text, or lower train.batch or model.context"));
}

TEST(ByteDataset, TheDefaultTextIsThere) {
  const ByteDataset data(default_text(), 128, 16, 0.05, 0);
  EXPECT_GT(data.bytes(), 100'000);
}

}  // namespace
}  // namespace penstock
