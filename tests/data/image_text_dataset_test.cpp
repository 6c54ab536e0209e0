// SPDX-License-Identifier: Apache-2.0
// Texts with images: what their ports get in programs of one shape and in those whose micro-batches have shapes of their own.
#include "data/image_text_dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "support/temporary.h"

namespace penstock {
namespace {

// Images of 2 x 2 pixels in patches of 1 x 1, at most two, each 3 tokens.
ImagePorts small_ports() {
  return {.size = 2, .patch = 1, .most = 2, .tokens = 3, .context = 16, .dtype = DType::f64};
}

StepInput step_of(std::vector<std::int64_t> samples) {
  StepInput input;
  input.samples = std::move(samples);
  return input;
}

std::vector<std::int64_t> filled(const Dataset& data, const Port& port, const StepInput& input, std::int64_t rows) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(port.type.elements()));
  data.fill(port, input, std::max<std::int64_t>(port.row, 0), rows, std::as_writable_bytes(std::span(out)));
  return out;
}

std::vector<double> filled_images(const Dataset& data, const Port& port, const StepInput& input) {
  std::vector<double> out(static_cast<std::size_t>(port.type.elements()));
  data.fill(port, input, std::max<std::int64_t>(port.row, 0), port.type.shape[0], std::as_writable_bytes(std::span(out)));
  return out;
}

// A grey and a coloured image, and three texts: with both, with none, with the first.
class ImageFiles : public testing::Test {
 protected:
  void SetUp() override {
    write_file(folder_.file("grey.pgm"), std::string("P5 2 2\n255\n") + std::string("\x00\xff\x00\xff", 4));
    write_file(folder_.file("red.ppm"),
               std::string("P6\n# red\n2 2\n255\n") + std::string("\xff\x00\x00\xff\x00\x00\xff\x00\x00\xff\x00\x00", 12));
    write_file(folder_.file("texts.jsonl"),
               "{\"images\": [\"grey.pgm\", \"red.ppm\"], \"text\": \"ab\"}\n{\"text\": \"cde\"}\n{\"images\": [\"grey.pgm\"], "
               "\"text\": \"fg\"}\n");
    data_.emplace(std::vector<std::string>{folder_.file("texts.jsonl")}, small_ports(), SampleDraw{});
  }

  test::TemporaryFolder folder_;
  std::optional<ImageFilesDataset> data_;
};

TEST_F(ImageFiles, CountsImagesAndTokens) {
  EXPECT_EQ(data_->summary(), "3 texts with 3 images");
  EXPECT_EQ(data_->images(0), 2);
  EXPECT_EQ(data_->images(1), 0);
  EXPECT_EQ(data_->length(0), 6 + 1);
  EXPECT_EQ(data_->length(1), 2);
  EXPECT_EQ(filled(*data_, {"count", {DType::i64, {}}}, step_of({0, 1, 2}), 1), (std::vector<std::int64_t>{2 + 2 + 2}));
}

TEST_F(ImageFiles, TextsFollowOnImageTokens) {
  const StepInput input = step_of({2, 1});
  const std::int64_t ignored = kIgnored;
  EXPECT_EQ(filled(*data_, {"tokens", {DType::i64, {2, 5}}}, input, 2), (std::vector<std::int64_t>{0, 0, 0, 'f', 0, 'c', 'd', 0, 0, 0}));
  EXPECT_EQ(filled(*data_, {"targets", {DType::i64, {2, 5}}}, input, 2),
            (std::vector<std::int64_t>{ignored, ignored, 'f', 'g', ignored, 'd', 'e', ignored, ignored, ignored}));
}

// In a program of one shape each sample has places for two images; where micro-batches have shapes of their own only those that are there.
TEST_F(ImageFiles, SlotsNameTheImagesRows) {
  const StepInput input = step_of({1, 2, 0});
  const TensorType type{DType::i64, {3, 7}};
  EXPECT_EQ(filled(*data_, {"slots", type}, input, 3),
            (std::vector<std::int64_t>{0, 0, 0, 0, 0, 0, 0, 7, 8, 9, 0, 0, 0, 0, 13, 14, 15, 16, 17, 18, 0}));
  EXPECT_EQ(filled(*data_, {"slots.0", type, false, 0}, input, 3),
            (std::vector<std::int64_t>{0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 0, 0, 0, 0, 4, 5, 6, 7, 8, 9, 0}));
}

TEST_F(ImageFiles, ImagesLieOneAfterTheOther) {
  const std::vector<double> grey = {-1, -1, -1, 1, 1, 1, -1, -1, -1, 1, 1, 1}, red = {1, -1, -1, 1, -1, -1, 1, -1, -1, 1, -1, -1};
  std::vector<double> there = grey;
  there.insert(there.end(), grey.begin(), grey.end());
  there.insert(there.end(), red.begin(), red.end());
  const StepInput input = step_of({1, 2, 0});
  EXPECT_EQ(filled_images(*data_, {"images.1", {DType::f64, {3, 4, 3}}, false, 1}, input), there);
  std::vector<double> padded(2 * 12, 0);
  padded.insert(padded.end(), grey.begin(), grey.end());
  padded.insert(padded.end(), 12, 0);
  padded.insert(padded.end(), there.begin() + 12, there.end());
  EXPECT_EQ(filled_images(*data_, {"images", {DType::f64, {6, 4, 3}}, true}, input), padded);
}

TEST(DrawnImages, TextsSayWhatImagesShow) {
  const DrawnImagesDataset data({.size = 8, .patch = 4, .most = 3, .tokens = 1, .context = 64, .dtype = DType::f32}, 4, 5);
  std::vector<std::int64_t> counts(4, 0);
  for (std::int64_t sample = 0; sample < 400; ++sample) {
    ++counts.at(static_cast<std::size_t>(data.images(sample)));
    std::vector<std::int64_t> tokens = filled(data, {"tokens", {DType::i64, {1, 64}}}, step_of({sample}), 1);
    const std::string text(tokens.begin() + data.images(sample), tokens.begin() + data.length(sample));
    EXPECT_EQ(data.images(sample) == 0, text == "nothing") << text;
    EXPECT_EQ(data.images(sample), std::ranges::count(text, ',') + (data.images(sample) > 0)) << text;
  }
  for (const std::int64_t count : counts) EXPECT_NEAR(static_cast<double>(count), 100, 40);
  EXPECT_NE(data.training_samples(0), data.validation_samples(0));
  EXPECT_NE(data.fingerprint(), DrawnImagesDataset({.size = 8, .patch = 4, .most = 3, .tokens = 1, .context = 64}, 4, 6).fingerprint());
}

}  // namespace
}  // namespace penstock
