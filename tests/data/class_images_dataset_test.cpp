// SPDX-License-Identifier: Apache-2.0
// Images with a class each, from files.
#include "data/class_images_dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/text.h"
#include "models/layers.h"
#include "support/temporary.h"

namespace penstock {
namespace {

// Five images of 2 x 2 pixels in two files; all bytes of image i are 51 i, and its class is i mod 3.
class ClassImages : public testing::Test {
 protected:
  void SetUp() override {
    write_file(folder_.file("a.bin"), images(0, 2));
    write_file(folder_.file("b.bin"), images(2, 5));
    std::vector<DataPort> ports = image_ports(2, 3, DType::f64);
    ports.push_back({.name = "noise", .type = {DType::f64, {}}, .kind = DataPort::Kind::normal, .below = 0, .of = {}});
    data_.emplace(std::vector<std::string>{folder_.file("a.bin"), folder_.file("b.bin")}, ports, SampleDraw{2, 0.2, 0});
  }

  static std::string images(int begin, int end) {
    std::string out;
    for (int i = begin; i < end; ++i) {
      out += static_cast<char>(i % 3);
      out += std::string(3 * 2 * 2, static_cast<char>(51 * i));
    }
    return out;
  }

  template <class T>
  std::vector<T> filled(const char* name, TensorType type, const std::vector<std::int64_t>& samples) const {
    StepInput input;
    input.samples = samples;
    type.shape.insert(type.shape.begin(), std::ssize(samples));
    Port port;
    port.name = name;
    port.type = type;
    std::vector<T> out(static_cast<std::size_t>(type.elements()));
    data_->fill(port, input, 0, std::ssize(samples), std::as_writable_bytes(std::span(out)));
    return out;
  }

  test::TemporaryFolder folder_;
  std::optional<ClassImagesDataset> data_;
};

TEST_F(ClassImages, AreReadFromAllFiles) {
  EXPECT_EQ(data_->summary(), "5 images in 2 files");
  EXPECT_EQ(filled<std::int64_t>("label", {DType::i64, {}}, {0, 1, 2, 3, 4, 9}), (std::vector<std::int64_t>{0, 1, 2, 0, 1, 1}));
  const std::vector<double> found = filled<double>("image", {DType::f64, {3, 2, 2}}, {4, 0});
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], i < 12 ? (0.8 - 0.5) * kImageSpread : -0.5 * kImageSpread, 1e-12);
}

// An epoch has each image once but for those of validation, and draws other noise for it than the one before.
TEST_F(ClassImages, ComeOnceInEachEpoch) {
  const std::vector<std::int64_t> kept = data_->validation_samples(0);
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::set<std::int64_t> images;
    for (int batch = 0; batch < 2; ++batch)
      for (const std::int64_t sample : data_->training_samples(4 * epoch + 2 * batch)) {
        EXPECT_EQ(sample / 5, epoch);
        images.insert(sample % 5);
      }
    EXPECT_EQ(images.size(), 4U);
    EXPECT_FALSE(images.contains(kept[0]));
  }
  const std::vector<double> noise = filled<double>("noise", {DType::f64, {}}, {1, 6, 1});
  EXPECT_NE(noise[0], noise[1]);
  EXPECT_EQ(noise[0], noise[2]);
}

}  // namespace
}  // namespace penstock
