// SPDX-License-Identifier: Apache-2.0
#include "data/synthetic.h"

#include <gtest/gtest.h>

#include <cmath>

#include "config/compile.h"
#include "models/support.h"
#include "penstock/error.h"
#include "state/initialise.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;
using Kind = DataPort::Kind;

const std::vector<DataPort> kPorts = {
    {"class", {DType::i64, {}}, Kind::indices, 4, {}},          {"image", {DType::f32, {3, 8, 8}}, Kind::normal, 0, {"class"}},
    {"features", {DType::f64, {20}}, Kind::normal, 0, {}},      {"share", {DType::f64, {20}}, Kind::uniform, 0, {}},
    {"words", {DType::i64, {5}}, Kind::indices, 100, {}},       {"answer", {DType::f64, {2}}, Kind::response, 0, {"features", "words"}},
    {"label", {DType::f32, {1}}, Kind::labels, 3, {"features"}}};

// Rows [first, first + rows) of a batch of samples 0, 1, ...
std::vector<double> values(const std::string& name, std::int64_t first, std::int64_t rows, std::int64_t seed = 0) {
  const SyntheticDataset data(kPorts, 512, seed);
  StepInput input;
  input.samples = data.training_samples(0);
  const TensorType type = find_port(kPorts, name).type;
  std::vector<std::byte> bytes(static_cast<std::size_t>(type.bytes() * rows));
  Port port{name, type, true};
  port.type.shape.insert(port.type.shape.begin(), 512);
  data.fill(port, input, first, rows, bytes);
  std::vector<double> out;
  for (std::int64_t i = 0; i < type.elements() * rows; ++i) out.push_back(load_element(type.dtype, bytes, static_cast<std::size_t>(i)));
  return out;
}

TEST(Synthetic, RowsDoNotDependOnHowTheyAreAskedFor) {
  for (const DataPort& port : kPorts) {
    const std::vector<double> together = values(port.name, 0, 8), apart = values(port.name, 5, 2);
    const auto elements = static_cast<std::size_t>(port.type.elements());
    EXPECT_EQ(apart, std::vector<double>(together.begin() + static_cast<std::ptrdiff_t>(5 * elements),
                                         together.begin() + static_cast<std::ptrdiff_t>(7 * elements)))
        << port.name;
    EXPECT_NE(together, values(port.name, 0, 8, 1)) << port.name;
  }
}

TEST(Synthetic, DrawsAreOfTheirKind) {
  double sum = 0, squares = 0;
  const std::vector<double> features = values("features", 0, 512);
  for (const double value : features) sum += value, squares += value * value;
  const auto count = static_cast<double>(features.size());
  EXPECT_NEAR(sum / count, 0, 0.05);
  EXPECT_NEAR(squares / count, 1, 0.05);
  for (const double value : values("share", 0, 512)) EXPECT_TRUE(value >= 0 && value < 1);
  for (const double value : values("words", 0, 512)) EXPECT_TRUE(value >= 0 && value < 100 && value == std::floor(value));
}

TEST(Synthetic, LabelsAreEquallyManyOfEachClass) {
  std::vector<int> found(3);
  for (const double value : values("label", 0, 512)) ++found.at(static_cast<std::size_t>(value));
  for (const int number : found) EXPECT_NEAR(number, 512 / 3, 60);
}

// Features and weights are equal for both: what differs is what the words add.
TEST(Synthetic, ResponsesAreALinearFunctionOfTheirPorts) {
  double squares = 0;
  const std::vector<double> answers = values("answer", 0, 512);
  for (const double value : answers) squares += value * value;
  EXPECT_NEAR(squares / static_cast<double>(answers.size()), 1, 0.3);
}

// Returns what is left of the last of `read` + 1 answers to `width` features when it is solved for the others, with the weights of the
// first `read`.
double left_of_answer(std::int64_t width, std::size_t read) {
  const std::vector<DataPort> ports = {{"features", {DType::f64, {width}}, Kind::normal, 0, {}},
                                       {"answer", {DType::f64, {1}}, Kind::response, 0, {"features"}}};
  std::vector<std::byte> features(static_cast<std::size_t>(width) * sizeof(double)), answer(sizeof(double));
  std::vector<std::vector<double>> rows;
  for (std::size_t sample = 0; sample <= read; ++sample) {
    fill_synthetic(ports, ports[0], 7, static_cast<std::int64_t>(sample), features);
    fill_synthetic(ports, ports[1], 7, static_cast<std::int64_t>(sample), answer);
    std::vector<double>& row = rows.emplace_back();
    for (std::size_t i = 0; i < read; ++i) row.push_back(load_element(DType::f64, features, i));
    row.push_back(load_element(DType::f64, answer, 0));
  }
  for (std::size_t pivot = 0; pivot < read; ++pivot)
    for (std::size_t r = pivot + 1; r <= read; ++r) {
      const double factor = rows[r][pivot] / rows[pivot][pivot];
      for (std::size_t c = pivot; c <= read; ++c) rows[r][c] -= factor * rows[pivot][c];
    }
  return rows[read][read];
}

TEST(Synthetic, ResponsesReadTheFirst32Elements) {
  EXPECT_NEAR(left_of_answer(20, 20), 0, 1e-9);
  EXPECT_NEAR(left_of_answer(40, 32), 0, 1e-9);
  EXPECT_GT(std::abs(left_of_answer(40, 31)), 1e-6);
}

TEST(Synthetic, ClassesHavePatternsOfTheirOwn) {
  const std::vector<double> classes = values("class", 0, 512), images = values("image", 0, 512);
  std::vector<std::vector<double>> means(4, std::vector<double>(192));
  std::vector<int> count(4);
  for (std::size_t row = 0; row < 512; ++row) {
    const auto of = static_cast<std::size_t>(classes[row]);
    ++count[of];
    for (std::size_t i = 0; i < 192; ++i) means[of][i] += images[row * 192 + i];
  }
  double apart = 0;
  for (std::size_t i = 0; i < 192; ++i) apart += std::pow(means[0][i] / count[0] - means[1][i] / count[1], 2) / 192;
  EXPECT_GT(apart, 0.5);
}

TEST(Synthetic, ValidationSamplesAreOthers) {
  const SyntheticDataset data(kPorts, 4, 0);
  EXPECT_EQ(data.training_samples(8), (std::vector<std::int64_t>{8, 9, 10, 11}));
  EXPECT_GT(data.validation_samples(0).front(), std::int64_t{1} << 39);
  EXPECT_EQ(data.validation_samples(1).front(), data.validation_samples(0).back() + 1);
}

TEST(Synthetic, FingerprintsTellPortsAndSeedsApart) {
  const std::uint64_t one = SyntheticDataset(kPorts, 4, 0).fingerprint();
  EXPECT_EQ(SyntheticDataset(kPorts, 8, 0).fingerprint(), one);
  EXPECT_NE(SyntheticDataset(kPorts, 4, 1).fingerprint(), one);
  EXPECT_NE(SyntheticDataset({kPorts[2]}, 4, 0).fingerprint(), one);
}

Config config_of(const std::string& model, const std::vector<std::string>& settings) {
  std::vector<Override> overrides = {parse_override("model.name=" + model)};
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  return load_config("", overrides, builtin_models());
}

TEST(MakeDataset, FollowsTheModelsPorts) {
  const auto made = [](const std::string& model) { return make_dataset(config_of(model, {"context=16"}), *test::model(model)); };
  EXPECT_EQ(counted(*made("gpt")), "tokens");
  EXPECT_NE(made("gpt")->summary().find(" of text in "), std::string::npos);
  const auto synthetic = make_dataset(config_of("candle-uno", {"seed=3"}), *test::model("candle-uno"));
  EXPECT_EQ(counted(*synthetic), "samples");
  EXPECT_EQ(synthetic->summary(), "synthetic data (seed 3)");
}

class Mixed : public Model {
 public:
  std::vector<ParameterSpec> parameters() const override { return {}; }
  std::vector<DataPort> data(std::int64_t context) const override {
    std::vector<DataPort> ports = text_ports(context);
    ports.push_back(kPorts[2]);
    return ports;
  }
  Tensor loss(const Parameters&, const Batch& batch) const override { return sum(batch["features"]); }
};

TEST(MakeDataset, NamesWhatDoesNotFit) {
  EXPECT_EQ(message_of([] { make_dataset(config_of("candle-uno", {"data.text=[\"a.txt\"]"}), *test::model("candle-uno")); }),
            "model \"candle-uno\" reads no text, but data.text names a.txt\n"
            "  hint: leave out data.text: its data is synthetic");
  EXPECT_EQ(message_of([] { make_dataset(config_of("candle-uno", {"data.pairs=[\"a.jsonl\"]"}), *test::model("candle-uno")); }),
            "model \"candle-uno\" reads no text, but data.pairs names a.jsonl\n"
            "  hint: leave out data.pairs: its data is synthetic");
  EXPECT_EQ(message_of([] { make_dataset(config_of("gpt", {}), Mixed()); }),
            "data port \"features\" is not text; a model reads text or synthetic data, not both");
  EXPECT_EQ(message_of([] { values("imag", 0, 1); }),
            "the data has no port \"imag\"\n  there are class, image, features, share, words, answer, label, rows and seed");
  EXPECT_EQ(message_of([] { data_of(config_of("candle-uno", {}), *test::model("gpt")); }),
            "model \"candle-uno\" needs a positive number context: the length of a sequence");
}

}  // namespace
}  // namespace penstock
