// SPDX-License-Identifier: Apache-2.0
// Pipelined steps against the sequential one: every schedule, number of actors, micro-batches and chunks.
#include "driver/check.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "config/compile.h"
#include "models/registry.h"
#include "penstock/error.h"
#include "penstock/step.h"
#include "support/random_schedule.h"
#include "support/sample.h"
#include "torch/run_step.h"

namespace penstock {
namespace {

using test::sequential_step;
using test::step_of;

// 56 sequences: divisible into 4, 7 and 8 micro-batches; 8 layers: 4 actors times 2 chunks.
Config small(const std::string& model, const std::vector<std::string>& settings) {
  std::vector<Override> overrides = {parse_override("model.name=" + model)};
  for (const char* setting : {"width=16", "heads=2", "context=8", "vocabulary=32", "batch=56", "microbatches=4"})
    overrides.push_back(parse_override(setting));
  overrides.push_back(parse_override(model == "gpt" ? "layers=8" : "layers=3"));
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  return load_config("", overrides, builtin_models());
}

// Nothing where the schedule refuses these numbers.
std::optional<StepGradients> pipelined_step(const Config& config) {
  if (config.pipeline.schedule == "bidirectional") return std::nullopt;  // these models have one backbone (OfTwoBackbones)
  std::optional<Prepared> prepared;
  try {
    prepared = prepare(config, builtin_models());
  } catch (const Error&) {
    return std::nullopt;
  }
  return step_of(config, *prepared, compile_gradients(config, *prepared));
}

void expect_equal(const StepGradients& found, const StepGradients& expected, double tolerance) {
  const Comparison comparison = compare(found, expected);
  EXPECT_LE(comparison.loss_difference, tolerance);
  EXPECT_LE(comparison.gradient_difference, tolerance) << comparison.worst;
}

class Schedules : public testing::TestWithParam<std::string> {};

TEST_P(Schedules, EqualTheSequentialStepInF64) {
  const StepGradients expected = sequential_step(small(GetParam(), {"dtype=f64"}));
  test::Sample sample(4);
  int done = 0;
  for (const ScheduleInfo& schedule : schedules()) {
    for (int actors : {1, 2, 3, 4}) {
      for (int microbatches : {4, 7, 8}) {
        for (int chunks : {1, 2}) {
          if (!sample.takes()) continue;
          const std::string shape = concat(schedule.name, ", ", actors, " actors, ", microbatches, " micro-batches, ", chunks, " chunks");
          SCOPED_TRACE(shape);
          const auto found = pipelined_step(small(GetParam(), {"dtype=f64", "schedule=" + schedule.name, concat("actors=", actors),
                                                               concat("microbatches=", microbatches), concat("chunks=", chunks)}));
          if (!found) continue;
          expect_equal(*found, expected, 1e-10);
          ++done;
        }
      }
    }
  }
  EXPECT_GE(done, test::is_soak() ? 400 : test::rounds(60));
}

INSTANTIATE_TEST_SUITE_P(Models, Schedules, testing::Values("gpt", "two-branch"),
                         [](const auto& test) { return test.param == "gpt" ? "gpt" : "two_branch"; });

TEST_P(Schedules, AreTheSameToTheBitOnDevicesThatWaitByThemselves) {
  test::Sample sample(2);
  int done = 0;
  for (const ScheduleInfo& schedule : schedules())
    for (const char* settings : {"pipeline.data=1", "pipeline.data=2"}) {
      SCOPED_TRACE(concat(schedule.name, ", ", settings));
      if (schedule.name == "bidirectional" || !sample.takes()) continue;
      std::optional<Prepared> prepared;
      const Config config =
          small(GetParam(), {"schedule=" + schedule.name, "actors=2", settings, schedule.chunked ? "chunks=2" : "chunks=1"});
      try {
        prepared = prepare(config, builtin_models());
      } catch (const Error&) {
        continue;
      }
      const Program program = compile_gradients(config, *prepared);
      const StepGradients host = step_of(config, *prepared, program), lanes = step_of(config, *prepared, program, /*on_lanes=*/true);
      EXPECT_EQ(host.loss, lanes.loss);
      EXPECT_EQ(host.gradients, lanes.gradients);
      ++done;
    }
  EXPECT_GE(done, test::is_soak() ? 10 : test::rounds(10));
}

// Actors of several devices, each with a part of every micro-batch.
TEST_P(Schedules, OfGroupsEqualTheSequentialStepInF64) {
  const StepGradients expected = sequential_step(small(GetParam(), {"dtype=f64"}));
  test::Sample sample(3);
  int done = 0;
  for (const ScheduleInfo& schedule : schedules())
    for (int actors : {1, 2, 4})
      for (int data : {2, 4})
        for (int microbatches : {2, 7}) {
          if (!sample.takes()) continue;
          SCOPED_TRACE(concat(schedule.name, ", pipe=", actors, ",data=", data, ", ", microbatches, " micro-batches"));
          const auto found = pipelined_step(
              small(GetParam(), {"dtype=f64", "schedule=" + schedule.name, concat("actors=", actors), concat("pipeline.data=", data),
                                 concat("microbatches=", microbatches), schedule.chunked ? "chunks=2" : "chunks=1"}));
          if (!found) continue;
          expect_equal(*found, expected, 1e-10);
          ++done;
        }
  EXPECT_GE(done, test::is_soak() ? 100 : 25);
}

// The same with state in shares, and with as many units of ZeroPP as there can be.
TEST_P(Schedules, OfShardedGroupsEqualTheSequentialStepInF64) {
  const StepGradients expected = sequential_step(small(GetParam(), {"dtype=f64"}));
  test::Sample sample(8);
  int done = 0;
  const auto expect_sharded = [&](int actors, int data, int zero, const std::vector<std::string>& more) {
    if (!sample.takes()) return;
    std::vector<std::string> settings = {"dtype=f64", concat("actors=", actors), concat("pipeline.data=", data), concat("zero=", zero)};
    settings.insert(settings.end(), more.begin(), more.end());
    SCOPED_TRACE(join(settings, ", "));
    const auto found = pipelined_step(small(GetParam(), settings));
    if (!found) return;
    expect_equal(*found, expected, 1e-10);
    ++done;
  };
  for (int actors : {1, 2, 4})
    for (int data : {2, 4})
      for (int zero : {1, 2, 3}) {
        for (const ScheduleInfo& schedule : schedules())
          expect_sharded(actors, data, zero, {"schedule=" + schedule.name, "microbatches=7", schedule.chunked ? "chunks=2" : "chunks=1"});
        for (int unit = 1; unit <= 7; ++unit)
          expect_sharded(actors, data, zero, {"schedule=zeropp", "microbatches=7", concat("unit=", unit), "chunks=2"});
      }
  EXPECT_GE(done, test::is_soak() ? 300 : 30);
  for (const int data : {2, 4})  // nodes of two devices
    for (const ScheduleInfo& schedule : schedules())
      expect_sharded(2, data, 3,
                     {"schedule=" + schedule.name, "microbatches=7", schedule.chunked ? "chunks=2" : "chunks=1", "pipeline.local=2"});
  EXPECT_GE(done, test::is_soak() ? 320 : 32);
}

// Groups of different sizes: what flows between them is cut on the way.
TEST_P(Schedules, OfUnequalGroupsEqualTheSequentialStepInF64) {
  const Config base = small(GetParam(), {"dtype=f64"});
  const StepGradients expected = sequential_step(base);
  for (const std::vector<int>& devices : std::vector<std::vector<int>>{{1, 2}, {2, 1}, {4, 2}, {1, 7}, {2, 1, 4}})
    for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "eager-1f1b"})
      for (const int microbatches : {1, 2}) {
        const int parts = shares_of(devices);
        const Config config = small(GetParam(), {"dtype=f64", concat("schedule=", schedule), concat("actors=", devices.size()),
                                                 concat("microbatches=", microbatches)});
        const Prepared prepared = prepare(config, builtin_models());
        SCOPED_TRACE(concat(schedule, ", ", microbatches, " micro-batches, devices ", join(devices, ",", [](int d) { return concat(d); })));
        const Graph step = gradient_step(*prepared.model, {56, 8, microbatches * parts});
        for (const int zero : {0, 2}) {
          const Program program = lower(step, prepared.schedule, {.devices = devices, .zero = zero});
          expect_equal(step_of(config, prepared, program), expected, 1e-10);
        }
      }
}

TEST(Check, RecomputationAndDropoutChangeNothing) {
  for (const char* dropout : {"dropout=0.0", "dropout=0.2"}) {
    const StepGradients expected = sequential_step(small("gpt", {"dtype=f64", dropout}));
    for (const char* recompute : {"recompute=none", "recompute=selective", "recompute=inputs"}) {
      for (const char* schedule : {"schedule=gpipe", "schedule=1f1b", "schedule=zb-h1"}) {
        SCOPED_TRACE(concat(dropout, " ", recompute, " ", schedule));
        expect_equal(pipelined_step(small("gpt", {"dtype=f64", dropout, recompute, schedule})).value(), expected, 1e-10);
      }
    }
  }
  const double with = sequential_step(small("gpt", {"dtype=f64", "dropout=0.2"})).loss;
  EXPECT_NE(with, sequential_step(small("gpt", {"dtype=f64"})).loss);
}

void expect_same_bits(const StepGradients& found, const StepGradients& expected) {
  EXPECT_EQ(found.loss, expected.loss);
  EXPECT_EQ(found.gradients, expected.gradients);
}

TEST(Check, RecomputingActionsChangeNoBit) {
  const std::uint64_t seed = 11;
  test::Random random(seed);
  test::Sample sample(1);
  int done = 0;
  for (const auto& [model, dropout] : {std::pair{"gpt", "dropout=0.2"}, {"gpt", "dropout=0.0"}, {"two-branch", "dtype=f64"}}) {
    for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "interleaved-1f1b"}) {
      if (!sample.takes()) continue;
      const bool interleaved = std::string_view(schedule) == "interleaved-1f1b";
      const Config config = small(model, {"dtype=f64", dropout, concat("schedule=", schedule), "microbatches=8", "actors=2",
                                          concat("chunks=", interleaved ? 2 : 1)});
      Prepared prepared = prepare(config, builtin_models());
      const Schedule kept = prepared.schedule;
      const StepGradients expected = step_of(config, prepared, compile_gradients(config, prepared));
      for (double share : {0.4, 1.0}) {
        prepared.schedule = test::with_recomputation(random, kept, share);
        SCOPED_TRACE(concat(model, ", ", dropout, ", seed ", seed, "\n", print(prepared.schedule)));
        expect_same_bits(step_of(config, prepared, compile_gradients(config, prepared)), expected);
        ++done;
      }
    }
  }
  EXPECT_GT(done, test::rounds(24) - 2);  // none may be among a twentieth
}

// A cast commutes with a gather: parameters that travel in bf16 give the same bits as those that are held whole.
TEST(Check, GathersInBf16ChangeNoBit) {
  for (const char* model : {"gpt", "t5"})
    for (const char* schedule : {"schedule=1f1b", "schedule=breadth-first"}) {
      SCOPED_TRACE(concat(model, " ", schedule));
      const auto step = [&](const char* zero) {
        return pipelined_step(small(model, {schedule, "width=32", "dtype=bf16", "actors=2", "pipeline.data=2", zero})).value();
      };
      const StepGradients whole = step("zero=0"), gathered = step("zero=3");
      EXPECT_EQ(gathered.loss, whole.loss);
      for (std::size_t p = 0; p < whole.gradients.size(); ++p)
        EXPECT_TRUE(gathered.gradients[p].second == whole.gradients[p].second) << whole.gradients[p].first;
    }
}

TEST(Check, TheNumberOfMicrobatchesChangesNothing) {
  const StepGradients expected = sequential_step(small("gpt", {"dtype=f64"}));
  for (int microbatches : {1, 2, 4, 8}) {
    SCOPED_TRACE(microbatches);
    expect_equal(pipelined_step(small("gpt", {"dtype=f64", concat("microbatches=", microbatches)})).value(), expected, 1e-10);
  }
}

// As many stages as actors, and more than branches.
TEST(Check, ModelsOfBranchesAndOfImages) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> models = {
      {"candle-uno", {"branches=3", "layers=2", "width=8"}},
      {"dlrm", {"branches=3", "layers=2", "width=8", "rows=10"}},
      {"moe", {"layers=4", "width=8", "heads=2", "context=16", "vocabulary=32"}},
      {"multimodal", {"branches=3", "width=8", "context=16", "vocabulary=32"}},
      {"resnet", {"width=2"}},
      {"t5", {"width=8", "heads=2", "context=16", "vocabulary=32"}},
      {"vgg", {"width=2"}}};
  for (const auto& [model, sizes] : models) {
    const auto config = [&](std::vector<std::string> settings) {
      std::vector<Override> overrides = {parse_override("model.name=" + model), parse_override("batch=8"), parse_override("microbatches=4"),
                                         parse_override("dtype=f64")};
      settings.insert(settings.end(), sizes.begin(), sizes.end());
      for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
      return load_config("", overrides, builtin_models());
    };
    const bool equal_batches = prepare_sequential(config({}), builtin_models()).model->equal_batches();
    EXPECT_EQ(equal_batches, model == "resnet");
    const StepGradients whole = sequential_step(config({})), expected = equal_batches ? sequential_step(config({}), 4) : whole;
    EXPECT_EQ(compare(whole, expected).loss_difference > 1e-4, equal_batches);
    for (const char* schedule : {"schedule=gpipe", "schedule=1f1b", "schedule=zb-h1"}) {
      for (const char* actors : {"actors=2", "actors=4"}) {
        SCOPED_TRACE(concat(model, " ", schedule, " ", actors));
        expect_equal(pipelined_step(config({schedule, actors})).value(), expected, 1e-10);
      }
    }
  }
}

TEST(Check, LowerPrecisions) {
  for (const char* model : {"gpt", "two-branch"}) {
    for (const char* dtype : {"f32", "bf16"}) {
      SCOPED_TRACE(concat(model, " ", dtype));
      const std::string setting = concat("dtype=", dtype);
      expect_equal(pipelined_step(small(model, {setting, "schedule=zb-h1", "actors=3"})).value(), sequential_step(small(model, {setting})),
                   tolerance_of(dtype));
    }
  }
}

}  // namespace
}  // namespace penstock
