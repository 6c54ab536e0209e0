// SPDX-License-Identifier: Apache-2.0
// Windows of drawn schedules, meshes, slices, workers, optimisers and lookups ahead: each leaves what its table says, or is refused before
// it runs. PENSTOCK_SEED chooses what is drawn; with PENSTOCK_SOAK there are 2,000 of them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "base/text.h"
#include "config/compile.h"
#include "config/mesh.h"
#include "driver/check_window.h"
#include "driver/outputs.h"
#include "driver/training.h"
#include "models/registry.h"
#include "penstock/error.h"
#include "schedule/in_one_row.h"
#include "state/initialise.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/rounds.h"
#include "support/sample.h"
#include "support/seed.h"
#include "torch/test_cluster.h"

namespace penstock {
namespace {

using test::coin;
using test::draw;
using test::Random;

std::string one_of(Random& random, const std::vector<std::string>& all) {
  return all[static_cast<std::size_t>(draw(random, 0, static_cast<int>(all.size()) - 1))];
}

struct Trial {
  std::map<std::string, std::string> settings;
  int pipe = 1, data = 1, context = 1, tensor = 1;

  std::string mesh() const { return concat("pipe=", pipe, ",data=", data, ",context=", context, ",tensor=", tensor); }
  std::string text() const {
    return concat("--mesh ", mesh(),
                  join(settings, "", [](const auto& setting) { return concat(" --set ", setting.first, "=", setting.second); }));
  }
  Config config() const {
    std::vector<Override> overrides;
    for (const auto& [key, value] : settings) overrides.push_back(parse_override(key + "=" + value));
    for (Override& axis : parse_mesh(mesh())) overrides.push_back(std::move(axis));
    return load_config("", overrides, builtin_models());
  }
  bool has_workers() const { return settings.at("pipeline.distance") != "-1"; }
};

// Whose steps all read what the step before has made.
const std::vector<std::string> kDrained = {"1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "nestpipe"};
const std::vector<std::string> kLate = {"hetpipe", "pipedream", "pipedream-2bw", "layerpipe", "xpipe", "pipeoptim"};

void draw_updates(Random& random, bool is_plain, Trial& trial) {
  auto& set = trial.settings;
  const bool is_sgd = is_plain || coin(random, 0.6);
  set["optimiser"] = is_sgd ? "sgd" : "adamw";
  set["momentum"] = is_plain || coin(random, 0.5) ? "0" : "0.9";
  set["weight_decay"] = coin(random, is_plain ? 0.8 : 0.5) ? "0" : "0.1";
  set["learning_rate"] = is_sgd ? "0.1" : "0.01";
  set["warmup"] = one_of(random, {"0", "3"});
  set["update"] = one_of(random, {"end", "end", "stage"});
  if (trial.data > 1 && coin(random, 0.3)) set["zero"] = std::to_string(draw(random, 1, 3));
}

void draw_model(Random& random, bool is_late, Trial& trial) {
  auto& set = trial.settings;
  if (coin(random, 0.25)) {
    trial.context = 1;
    for (const auto& [key, value] : {std::pair("model.name", "dlrm"), {"branches", "2"}, {"layers", "2"}, {"width", "8"}}) set[key] = value;
    set["rows"] = one_of(random, {"12", "400"});
    if (trial.tensor > 1) set[one_of(random, {"layout.rows", "layout.columns"})] = "tensor";
    set["pipeline.prefetch"] = coin(random, 0.7) ? "true" : "false";
    return;
  }
  for (const auto& [key, value] : {std::pair("layers", "4"), {"width", "8"}, {"heads", "2"}, {"context", "8"}, {"vocabulary", "16"}})
    set[key] = value;
  if (coin(random, 0.2)) set["heads"] = "3", set["width"] = "12";  // which two members have unequal parts of
  set["tied"] = coin(random, is_late ? 0.1 : 0.5) ? "1" : "0";
  set["slices"] = std::to_string(coin(random, 0.5) ? draw(random, 2, 3) : 1);
  if (coin(random, 0.2)) set["dropout"] = "0.2";
  if (coin(random, 0.2)) set["pipeline.recompute"] = one_of(random, {"inputs", "selective"});
  if (trial.pipe == 2 && trial.data == 2 && set["chunks"] == "1" && coin(random, 0.3))
    set["pipeline.workers"] = one_of(random, {"[[3, 1], [2, 2]]", "[[1, 3], [3, 1]]"});
  if (trial.tensor > 1 && trial.context == 1 && coin(random, 0.5)) set["layout.sequence"] = "tensor";
  if (trial.context > 1 && coin(random, 0.4)) set["attention"] = "heads";
}

Trial draw_trial(Random& random) {
  Trial trial;
  trial.pipe = draw(random, 1, 3);
  trial.data = coin(random, 0.6) ? draw(random, 2, trial.pipe > 2 ? 2 : 3) : 1;
  if (coin(random, 0.5)) (coin(random, 0.5) ? trial.context : trial.tensor) = 2;
  auto& set = trial.settings;
  const bool is_late = coin(random, 0.6);
  set["pipeline.distance"] = trial.data > 1 && coin(random, 0.6) ? std::to_string(draw(random, 0, 2)) : "-1";
  set["schedule"] = one_of(random, is_late ? kLate : kDrained);
  set["chunks"] = set["schedule"] == "interleaved-1f1b" ? "2" : "1";
  set["window"] = std::to_string(draw(random, 2, 4));
  const int microbatches = draw(random, 1, 3) * (set["schedule"] == "interleaved-1f1b" ? trial.pipe : 1);
  set["microbatches"] = std::to_string(microbatches);
  set["batch"] = std::to_string(microbatches * trial.data * draw(random, 1, 2));
  set["dtype"] = "f64";
  set["clip"] = coin(random, is_late || trial.has_workers() ? 0.1 : 0.5) ? "0.1" : "0";
  set["train.seed"] = std::to_string(draw(random, 0, 1000));
  draw_model(random, is_late, trial);
  draw_updates(random, trial.has_workers() || set.contains("pipeline.prefetch"), trial);
  return trial;
}

// The batch's rows from `begin` on.
class LaterRows : public RandomBatch {
 public:
  using RandomBatch::RandomBatch;
  void fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows, std::span<std::byte> out) const override {
    const bool counts = data_name(port) == "rows" || data_name(port) == "seed";  // in each step from 0
    RandomBatch::fill(port, input, first_row + (counts ? 0 : begin), rows, out);
  }

  std::int64_t begin = 0;
};

std::unique_ptr<Cluster> cluster_for(const Config& config, const Prepared& prepared, const Program& program,
                                     std::shared_ptr<const DataSource> data) {
  auto cluster = test::make_test_cluster(program.devices.size(), std::move(data));
  cluster->load(program);
  cluster->set_state(fresh_start(config, prepared).state);
  return cluster;
}

WindowEnd run(const Config& config, const Prepared& prepared) {
  const Program program = compile_training(config, prepared);
  const auto data = std::make_shared<RandomBatch>(data_of(config, *prepared.model), vocabulary_of(config));
  StepInput input;
  input.step = 1;
  input.seed = config.train.seed;
  input.steps = prepared.schedule.steps;
  return run_window(program, *cluster_for(config, prepared, program, data), prepared, input);
}

// The steps one after the other, each sequential.
WindowEnd step_by_step(const Config& config, std::int32_t steps) {
  const Prepared prepared = prepare_sequential(config, builtin_models());
  const Program program = compile_training(config, prepared);
  const auto data = std::make_shared<LaterRows>(data_of(config, *prepared.model), vocabulary_of(config));
  const auto cluster = cluster_for(config, prepared, program, data);
  WindowEnd out;
  for (std::int32_t step = 0; step < steps; ++step) {
    data->begin = step * config.train.batch;
    out.losses.push_back(scalar_output(program, cluster->step(hash(program), {step + 1, config.train.seed, false, {}}), "loss"));
  }
  for (const ParameterSpec& spec : prepared.parameters) {
    const std::vector<std::byte> bytes = cluster->state(spec.name);
    std::vector<double>& values = out.parameters.emplace_back(spec.name, std::vector<double>()).second;
    for (std::int64_t i = 0; i < spec.type.elements(); ++i)
      values.push_back(load_element(spec.type.dtype, bytes, static_cast<std::size_t>(i)));
  }
  return out;
}

// The table's actions in one row on one device.
WindowEnd in_a_row(Config config, const Prepared& prepared) {
  config.pipeline.program.prefetch = false;
  return run(config, prepare(config, in_one_row(prepared.schedule, shape_of(prepared.schedule)), prepared.microbatches, builtin_models()));
}

// Workers whose sequences, dims and lookups nobody has parts of. (window_test.cpp has them by hand.)
WindowEnd with_whole_workers(Trial trial) {
  trial.context = trial.tensor = 1;
  for (const char* key : {"slices", "layout.sequence", "layout.rows", "layout.columns", "attention", "pipeline.prefetch"})
    trial.settings.erase(key);
  const Config config = trial.config();
  return run(config, prepare(config, builtin_models()));
}

void expect_equal(const WindowEnd& found, const WindowEnd& expected, const char* what) {
  const Comparison comparison = compare(found, expected);
  EXPECT_LE(comparison.loss_difference, 1e-9) << what;
  EXPECT_LE(comparison.gradient_difference, 1e-9) << what << ", " << comparison.worst;
}

// What only lowering's own checks say is no reason for a user.
void expect_reason(const std::string& message) {
  for (const char* internal : {"device ", "draft after", "slot ", "task ", "two "}) EXPECT_FALSE(message.starts_with(internal)) << message;
  EXPECT_NE(message.find("\n"), std::string::npos) << message;
}

// Whether it ran.
bool expect_what_the_table_says(const Trial& trial, std::map<std::string, int>& refusals) {
  SCOPED_TRACE(trial.text());
  WindowEnd found;
  std::optional<Config> config;
  std::optional<Prepared> prepared;
  try {
    config = trial.config();
    prepared = prepare(*config, builtin_models());
    found = run(*config, *prepared);
  } catch (const Error& error) {
    expect_reason(error.what());
    ++refusals[std::string(error.what()).substr(0, 60)];
    return false;
  }
  const bool is_drained = std::ranges::find(kDrained, trial.settings.at("schedule")) != kDrained.end();
  if (trial.has_workers()) {
    expect_equal(found, with_whole_workers(trial), "workers without parts");
    return true;
  }
  expect_equal(found, in_a_row(*config, *prepared), "in one row");
  if (is_drained) expect_equal(found, step_by_step(*config, prepared->schedule.steps), "step by step");
  return true;
}

// In a window attention may be on several actors: whole, with weights (`qkv_in_attention`) or without, or blocks of it.
TEST(RandomWindows, OfAttentionOnOtherActorsAreStepByStep) {
  test::Sample sample(1);
  for (const char* attention : {"schedule=helixpipe", "schedule=helixpipe group=2 qkv_in_attention=1",
                                "schedule=slimpipe-exchange slices=4", "schedule=slimpipe-exchange slices=4 head_shards=2"})
    for (const auto& [updated, data] :
         {std::pair("momentum=0.9", 1), std::pair("clip=0.1", 1), std::pair("tied=1 update=stage", 1), std::pair("momentum=0.9", 2),
          std::pair("optimiser=adamw clip=0.1 zero=3 dropout=0.2 recompute=inputs", 2)}) {
      if (!sample.takes()) continue;
      Trial trial{.settings = {}, .pipe = 2, .data = data};
      const std::string all = concat("window=2 microbatches=4 batch=", 4 * data, " chunks=2 layers=4 width=8 heads=2 context=8 ",
                                     "vocabulary=16 tied=0 dtype=f64 optimiser=sgd ", attention, " ", updated);
      for (const std::string& setting : split(all, ' ')) {
        const std::size_t sign = setting.find('=');
        trial.settings[setting.substr(0, sign)] = setting.substr(sign + 1);
      }
      SCOPED_TRACE(trial.text());
      const Config config = trial.config();
      const Comparison found = compare(run(config, prepare(config, builtin_models())), step_by_step(config, 2));
      EXPECT_LE(found.loss_difference, 1e-10);
      EXPECT_LE(found.gradient_difference, 1e-10) << found.worst;
    }
}

// A backward of XPipe or PipeOptim reads other parameters than its forward read, so what it recomputed would be another's.
TEST(RandomWindows, RecomputeWhatTheirForwardsRead) {
  for (std::size_t i = 0; i < 2 * kLate.size(); ++i) {
    const std::string& schedule = kLate[i / 2];
    const Trial trial{{{"schedule", schedule},
                       {"window", "3"},
                       {"microbatches", "2"},
                       {"batch", "2"},
                       {"layers", "4"},
                       {"width", "8"},
                       {"heads", "2"},
                       {"context", "8"},
                       {"vocabulary", "16"},
                       {"tied", "0"},
                       {"clip", "0"},
                       {"pipeline.recompute", i % 2 == 0 ? "inputs" : "selective"}},
                      2};
    const Config config = trial.config();
    const Prepared prepared = prepare(config, builtin_models());
    const std::string message = test::message_of([&] { compile_training(config, prepared); });
    const bool predicts = schedule == "xpipe" || schedule == "pipeoptim";
    EXPECT_EQ(message.find("it would recompute its forward with other parameters than that had") != std::string::npos, predicts) << message;
    EXPECT_EQ(message == "no error", !predicts) << schedule;
  }
}

// One member has 2 of 3 heads: what all members hold alike has to be summed apart from what they have parts of.
TEST(RandomWindows, WorkersAlongAxesOfUnequalParts) {
  Trial trial;
  trial.data = 3, trial.tensor = 2;
  for (const char* setting :
       {"schedule=pipeoptim", "window=3", "pipeline.distance=0", "microbatches=2", "batch=6", "dtype=f64", "optimiser=sgd", "momentum=0",
        "layers=1", "heads=3", "width=12", "context=8", "vocabulary=16", "tied=0", "clip=0"})
    trial.settings.emplace(split(setting, '=')[0], split(setting, '=')[1]);
  std::map<std::string, int> refusals;
  EXPECT_TRUE(expect_what_the_table_says(trial, refusals));
  trial.settings["layout.sequence"] = "tensor";
  EXPECT_TRUE(expect_what_the_table_says(trial, refusals)) << refusals.begin()->first;
}

TEST(RandomWindows, AreWhatTheirTablesSayOrRefused) {
  const std::uint64_t seed = test::drawn_seed(5163);
  const int trials = test::is_soak() ? 2000 : test::rounds(30);
  int ran = 0;
  std::map<std::string, int> refusals;
  for (int trial = 0; trial < trials && !HasFailure(); ++trial) {
    Random random(seed + static_cast<std::uint64_t>(trial));
    SCOPED_TRACE(concat("seed ", seed, ", trial ", trial));
    ran += expect_what_the_table_says(draw_trial(random), refusals);
  }
  std::printf("%d of %d windows ran, seed %llu\n", ran, trials, static_cast<unsigned long long>(seed));
  for (const auto& [message, times] : refusals) std::printf("%5d refused: %s\n", times, split(message, '\n')[0].c_str());
  EXPECT_GE(ran, trials / 4);
}

}  // namespace
}  // namespace penstock
