#include "profile/race.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "config/compile.h"
#include "devices/fake_device.h"
#include "driver/check.h"
#include "driver/thread_cluster.h"
#include "driver/training.h"
#include "models/registry.h"

namespace penstock {
namespace {

// Steps take as long as they are told to, and what was asked of it is written down.
class ScriptedCluster : public Cluster {
 public:
  // seconds[program][round]
  explicit ScriptedCluster(std::vector<std::vector<double>> seconds) : seconds_(std::move(seconds)) {}

  int devices() const override { return 1; }
  std::uint64_t load(const Program&) override { return loaded_++; }
  void set_state(const StateSource&) override {
    ++round_;
    story += "|";
  }
  StepResult step(std::uint64_t program, const StepInput& input, bool) override {
    story += concat(" ", program);
    EXPECT_EQ(input.step, ++step_);
    StepResult result;
    result.seconds = seconds_.at(program).at(static_cast<std::size_t>(round_));
    return result;
  }
  std::vector<std::string> save_state(const std::string&) override { return {}; }
  std::vector<std::byte> state(const std::string&) override { return {}; }

  std::string story;

 private:
  std::vector<std::vector<double>> seconds_;
  std::uint64_t loaded_ = 0;
  std::int64_t step_ = 0;
  int round_ = -1;
};

RaceOptions options(int rounds, std::int64_t steps, std::int64_t warm_up) {
  RaceOptions out;
  out.rounds = rounds;
  out.steps = steps;
  out.warm_up = warm_up;
  out.input = [](std::int64_t step) { return StepInput{step, 0, false, {}}; };
  return out;
}

TEST(Race, EveryProgramRunsOnceInEachRound) {
  ScriptedCluster cluster({{1.0, 1.1, 1.2}, {1.1, 1.0, 1.0}});
  std::string progress;
  RaceOptions race_options = options(3, 2, 1);
  race_options.progress = [&](const std::string& text) { progress += text + "\n"; };
  const std::vector<Sample> samples = race(cluster, std::vector<Program>(2), {}, race_options);
  EXPECT_EQ(cluster.story, "| 0 0 0 1 1 1| 0 0 0 1 1 1| 0 0 0 1 1 1");
  EXPECT_EQ(progress, "round 1 of 3: 2 tables\nround 2 of 3: 2 tables\nround 3 of 3: 2 tables\n");
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].median, 1.1);
  EXPECT_EQ(samples[1].median, 1.0);
  EXPECT_EQ(samples[1].count, 3);
  EXPECT_TRUE(is_ahead(samples[1], samples[0]));
}

// The one that left is not ahead, whatever the machine did to the others since.
TEST(Race, WhatIsClearlyBehindLeaves) {
  ScriptedCluster cluster({{1.0, 2.0, 2.0}, {1.2, 0, 0}, {1.05, 2.1, 2.1}});
  const std::vector<Sample> samples = race(cluster, std::vector<Program>(3), {}, options(3, 1, 0));
  EXPECT_EQ(cluster.story, "| 0 1 2| 0 2| 0 2");
  EXPECT_EQ(samples[1].count, 1);
  EXPECT_EQ(samples[1].median, 1.2);
  EXPECT_TRUE(is_ahead(samples[0], samples[2]));
  EXPECT_TRUE(is_ahead(samples[2], samples[1]));
}

// One lucky round sends no more than half of the others away.
TEST(Race, TheFasterHalfStays) {
  ScriptedCluster cluster({{2.0, 1.0}, {1.0, 2.0}, {4.0, 0}, {3.0, 0}});
  const std::vector<Sample> samples = race(cluster, std::vector<Program>(4), {}, options(2, 1, 0));
  EXPECT_EQ(cluster.story, "| 0 1 2 3| 0 1");
}

// Tables with other numbers of stages, one after the other on the same devices.
TEST(Race, RunsTablesOfOneModel) {
  std::vector<Override> overrides;
  for (const char* small : {"width=16", "heads=2", "context=8", "batch=4", "microbatches=4"}) overrides.push_back(parse_override(small));
  const Config config = load_config("", overrides, builtin_models());
  std::vector<Program> programs;
  StateSource state;
  for (const auto& [name, chunks] : {std::pair("1f1b", 1), std::pair("interleaved-zb", 2), std::pair("zb-v", 2)}) {
    const Schedule table = make_schedule(name, {.actors = 2, .microbatches = 4, .chunks = chunks});
    const Prepared prepared = prepare(config, table, 4, builtin_models());
    programs.push_back(compile_training(config, prepared));
    state = fresh_start(config, prepared).state;
  }
  const auto data = std::make_shared<RandomBatch>(text_ports(context_of(config)), vocabulary_of(config));
  const auto cluster = make_thread_cluster(2, [](int device) { return make_fake_executor({static_cast<std::uint64_t>(device)}); }, data);
  const std::vector<Sample> samples = race(*cluster, programs, state, options(2, 2, 1));
  ASSERT_EQ(samples.size(), 3u);
  for (const Sample& sample : samples) {
    EXPECT_GT(sample.median, 0);
    EXPECT_GE(sample.count, 1);
  }
}

}  // namespace
}  // namespace penstock
