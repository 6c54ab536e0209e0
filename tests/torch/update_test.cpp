// SPDX-License-Identifier: Apache-2.0
// Stages updated as soon as their gradients are complete: the same training, bit by bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "base/text.h"
#include "driver/check.h"
#include "driver/training.h"
#include "models/registry.h"
#include "support/sample.h"
#include "torch/test_cluster.h"

namespace penstock {
namespace {

struct Trained {
  std::map<std::string, std::vector<std::byte>> state;
  int updates = 0;                                                          // of states, in runs of U
  std::vector<std::map<std::string, std::vector<std::byte>>> outputs = {};  // of each step
};

constexpr int kSteps = 5;

Trained train_steps(const std::string& model, const std::vector<std::string>& settings) {
  std::vector<Override> overrides = {parse_override("model.name=" + model)};
  for (const char* setting : {"width=16", "heads=2", "context=8", "vocabulary=32", "batch=8", "microbatches=4"})
    overrides.push_back(parse_override(setting));
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  const Config config = load_config("", overrides, builtin_models());
  const Prepared prepared = prepare(config, builtin_models());
  const Program program = compile_training(config, prepared);
  const auto data = std::make_shared<RandomBatch>(text_ports(context_of(config)), vocabulary_of(config));
  const auto cluster = test::make_test_cluster(program.devices.size(), data);
  const std::uint64_t key = cluster->load(program);
  cluster->set_state(fresh_start(config, prepared).state);
  Trained out;
  for (std::int64_t step = 1; step <= kSteps; ++step) out.outputs.push_back(cluster->step(key, {step, 0, false, {}}).outputs);
  out.state = test::state_of(*cluster, program);
  for (const DeviceProgram& device : program.devices) {
    for (const Instruction& i : device.instructions)
      for (const Result& result : device.results_of(i))
        out.updates += i.action && i.kind == Kind::U && device.slots[result.slot.index()].kind == SlotClass::state;
  }
  return out;
}

TEST(Updates, PerStageChangeNothing) {
  for (const char* model : {"gpt", "two-branch"})
    for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "interleaved-1f1b"})
      for (const char* clip : {"clip=0", "clip=1"})
        for (const char* tied : {"tied=0", "tied=1"}) {
          if (model == std::string("two-branch") && tied == std::string("tied=1")) continue;  // it has nothing to tie
          std::vector<std::string> settings = {concat("schedule=", schedule), clip,
                                               schedule == std::string("interleaved-1f1b") ? "chunks=2" : "chunks=1"};
          if (model == std::string("gpt")) settings.insert(settings.end(), {"layers=4", tied});
          SCOPED_TRACE(concat(model, " ", join(settings, ", ")));
          const Trained expected = train_steps(model, settings);
          settings.push_back("update=stage");
          const Trained found = train_steps(model, settings);
          EXPECT_EQ(found.state, expected.state);
          EXPECT_EQ(expected.updates, 0);
          // The global norm needs every gradient: a U then adds up its stage's share of it, and the updates stay at the end.
          EXPECT_EQ(found.updates > 0, clip == std::string("clip=0"));
        }
}

std::vector<double> values_of(const std::vector<std::byte>& bytes) {
  std::vector<double> out(bytes.size() / sizeof(double));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

// Devices that hold their group's state in shares train as one that holds it all: groups that the sample takes.
int expect_same_training(const std::string& model, const std::vector<std::string>& settings, test::Sample& sample) {
  SCOPED_TRACE(concat(model, " ", join(settings, ", ")));
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), settings.begin(), settings.end());
    return train_steps(model, more);
  };
  const Trained expected = with({"pipeline.data=1"});
  int done = 0;
  const auto expect_same = [&](const std::vector<std::string>& groups) {
    if (!sample.takes()) return;
    SCOPED_TRACE(join(groups, ", "));
    ++done;
    const Trained found = with(groups);
    ASSERT_EQ(found.state.size(), expected.state.size());
    for (const auto& [name, bytes] : expected.state) {
      const std::vector<double> a = values_of(found.state.at(name)), b = values_of(bytes);
      ASSERT_EQ(a.size(), b.size()) << name;
      double difference = 0;
      for (std::size_t i = 0; i < a.size() && name != "step"; ++i) difference = std::max(difference, std::abs(a[i] - b[i]));
      EXPECT_LE(difference, 1e-9) << name;
    }
  };
  for (const char* data : {"2", "4"})
    for (const char* zero : {"0", "1", "2", "3"}) expect_same({concat("pipeline.data=", data), concat("zero=", zero)});
  expect_same({"pipeline.data=2", "pipeline.local=2", "zero=3"});
  return done;
}

TEST(Shares, TrainAlike) {
  const std::vector<std::string> base = {"dtype=f64", "batch=16", "microbatches=2"};
  const std::vector<std::vector<std::string>> ways = {
      {"schedule=gpipe", "actors=1"},
      {"schedule=1f1b", "clip=0.01"},
      {"schedule=1f1b", "clip=0", "update=stage"},
      {"schedule=zb-h1", "clip=0.01", "update=validated"},
      {"schedule=zb-h1", "optimiser=sgd"},
      {"schedule=interleaved-1f1b", "chunks=2", "update=stage"},
      {"schedule=zeropp", "chunks=2", "clip=0.01"},
      {"schedule=zeropp", "chunks=2", "clip=0", "update=stage"},
      {"schedule=chimera"},
      {"schedule=1f1b", "recompute=inputs"},
      {"schedule=zb-h1", "recompute=selective"},
  };
  test::Sample sample(3);
  int done = 0;
  for (const std::vector<std::string>& way : ways)
    for (const char* model : {"gpt", "two-branch"}) {
      std::vector<std::string> settings = base;
      settings.insert(settings.end(), way.begin(), way.end());
      if (model == std::string("gpt")) settings.push_back("layers=4");
      done += expect_same_training(model, settings, sample);
    }
  EXPECT_GE(done, test::is_soak() ? 180 : test::rounds(50));
}

std::vector<double> norms(const Trained& trained) {
  std::vector<double> out;
  for (const auto& step : trained.outputs) {
    const std::vector<std::byte>& bytes = step.at("gradient_norm");
    float narrow = 0;
    double wide = 0;
    if (bytes.size() == sizeof wide)
      std::memcpy(&wide, bytes.data(), sizeof wide);
    else
      std::memcpy(&narrow, bytes.data(), sizeof narrow);
    out.push_back(bytes.size() == sizeof wide ? wide : narrow);
  }
  return out;
}

// Trains with updates at the end and with validated ones; how many steps were clipped.
std::ptrdiff_t expect_validated_equal(const std::string& model, std::vector<std::string> settings, double clip) {
  settings.push_back(concat("clip=", clip));
  SCOPED_TRACE(concat(model, " ", join(settings, ", ")));
  const Trained expected = train_steps(model, settings);
  settings.push_back("update=validated");
  const Trained found = train_steps(model, settings);
  EXPECT_TRUE(found.state == expected.state);
  EXPECT_TRUE(found.outputs == expected.outputs);
  EXPECT_GT(found.updates, 0);
  return std::ranges::count_if(norms(expected), [&](double norm) { return !(norm <= clip); });
}

TEST(Updates, ValidatedChangeNothing) {
  test::Sample sample(2);
  int done = 0;
  for (const std::string model : {"gpt", "two-branch"})
    for (const std::string schedule : {"1f1b", "zb-h1", "zb-h2", "interleaved-1f1b"})
      for (const char* dtype : {"f64", "f32"})
        for (const char* tied : {"tied=0", "tied=1"}) {
          if (model == "two-branch" && tied == std::string("tied=1")) continue;  // it has nothing to tie
          if (!sample.takes()) continue;
          ++done;
          std::vector<std::string> settings = {concat("schedule=", schedule), concat("dtype=", dtype),
                                               schedule == "interleaved-1f1b" ? "chunks=2" : "chunks=1"};
          if (model == "gpt") settings.insert(settings.end(), {"layers=4", tied});
          std::vector<double> unclipped = norms(train_steps(model, settings));
          std::ranges::sort(unclipped);
          EXPECT_EQ(expect_validated_equal(model, settings, unclipped.front() / 10), kSteps);
          EXPECT_EQ(expect_validated_equal(model, settings, unclipped.back() * 10), 0);
          const std::ptrdiff_t some = expect_validated_equal(model, settings, unclipped[kSteps / 2]);
          EXPECT_TRUE(some > 0 && some < kSteps) << some;
        }
  EXPECT_GE(done, test::is_soak() ? 24 : 8);
}

// The f32 tensors of a state, with every NaN made the same one: IEEE 754 leaves its sign open.
std::map<std::string, std::vector<std::uint32_t>> with_one_nan(const Trained& trained) {
  std::map<std::string, std::vector<std::uint32_t>> out;
  for (const auto& [name, bytes] : trained.state) {
    std::vector<std::uint32_t>& words = out[name];
    words.resize(bytes.size() / sizeof(std::uint32_t));
    std::memcpy(words.data(), bytes.data(), bytes.size());
    for (std::uint32_t& word : words)
      if (std::isnan(std::bit_cast<float>(word))) word = 0x7fc00000;
  }
  return out;
}

// A rate that throws the parameters out of f32 in the first step: later norms are infinite or no numbers.
TEST(Updates, ValidatedTakeOnWhatIsNotFinite) {
  for (const char* schedule : {"schedule=1f1b", "schedule=zb-h2"})
    for (const char* rate : {"learning_rate=1e9", "learning_rate=1e38"}) {
      std::vector<std::string> settings = {schedule, rate, "layers=4", "tied=0", "warmup=0"};
      const Trained expected = train_steps("gpt", settings);
      settings.push_back("update=validated");
      EXPECT_TRUE(with_one_nan(train_steps("gpt", settings)) == with_one_nan(expected)) << join(settings, ", ");
      EXPECT_FALSE(std::isfinite(norms(expected).back()));
    }
}

}  // namespace
}  // namespace penstock
