// SPDX-License-Identifier: Apache-2.0
#include "profile/profile.h"
#include "profile/line.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/text.h"
#include "driver/check.h"
#include "driver/training.h"
#include "models/registry.h"
#include "simulate/durations.h"
#include "support/fake_device.h"
#include "support/random_program.h"

namespace penstock {
namespace {

using std::chrono::microseconds;
using Transfers = Isolation::Transfers;

Config config(const std::vector<std::string>& settings = {}) {
  std::vector<Override> overrides;
  for (const char* small : {"width=16", "heads=2", "context=8", "batch=4", "microbatches=4"}) overrides.push_back(parse_override(small));
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  return load_config("", overrides, builtin_models());
}

std::vector<Program> programs_of(const Config& config) {
  Prepared prepared = prepare(config, builtin_models());
  std::vector<Program> programs;
  for (Schedule& table : profiled_tables(prepared.schedule)) {
    prepared.schedule = std::move(table);
    programs.push_back(compile_training(config, prepared));
  }
  return programs;
}

ExecutorFactory fake_executors(microseconds longest) {
  return [longest](int device) { return make_fake_executor({static_cast<std::uint64_t>(device), longest}); };
}

ClusterOptions fake_transports(microseconds longest) {
  ClusterOptions options;
  options.wrap = [longest](int device, std::unique_ptr<Transport> inner) {
    return make_fake_transport(std::move(inner), {static_cast<std::uint64_t>(device) + 100, longest});
  };
  return options;
}

TEST(Profile, Samples) {
  const Sample odd = sample_of({5, 1, 3}), even = sample_of({4, 1, 2, 8});
  EXPECT_EQ(odd.median, 3);
  EXPECT_EQ(odd.spread, 2);
  EXPECT_EQ(odd.count, 3);
  EXPECT_EQ(even.median, 3);
  EXPECT_EQ(even.spread, 1.5);
}

// Communication is left out and the values are still those of the whole program.
TEST(Profile, ALineThroughTimes) {
  const auto line = [](std::vector<MeasuredTime> times) {
    const Line found = fit(times);
    return concat(std::round(found.fixed * 1e6) / 1e6, " + ", std::round(found.per_byte * 1e6) / 1e6, " bytes");
  };
  EXPECT_EQ(line({{0, 2}, {10, 7}}), "2 + 0.5 bytes");
  EXPECT_EQ(line({{10, 7}, {10, 7}}), "7 + 0 bytes") << "one size says nothing of bytes";
  EXPECT_EQ(line({{0, 4}, {10, 4}, {20, 4}}), "4 + 0 bytes");
  EXPECT_TRUE(line({{10, 4}, {20, 2}}).ends_with("+ 0 bytes")) << "no byte gives time back";
  EXPECT_EQ(line({}), "0 + 0 bytes");
}

TEST(Profile, ReplayedStepsGiveWhatTheCapturedStepGave) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const microseconds longest(seed % 2 == 0 ? 0 : 100);
    const int devices = 1 + static_cast<int>(seed % 4);
    const Program program = test::random_program(seed, devices, 80);
    const ProfileCluster profiled = make_profile_cluster(devices, fake_executors(longest), std::make_shared<test::HashData>(),
                                                         longest.count() > 0 ? fake_transports(longest) : ClusterOptions{});
    const std::uint64_t key = profiled.cluster->load(program);
    profiled.cluster->set_state({});
    *profiled.isolation = {Transfers::capture, -1};
    const auto expected = profiled.cluster->step(key, {}).outputs;
    for (int again = 0; again < 2; ++again) {
      profiled.cluster->set_state({});
      *profiled.isolation = {Transfers::replay, -1};
      EXPECT_EQ(profiled.cluster->step(key, {}).outputs, expected);
    }
    profiled.cluster->set_state({});
    *profiled.isolation = {};
    EXPECT_EQ(profiled.cluster->step(key, {}).outputs, expected);
  }
}

TEST(Profile, OneDeviceAloneComputes) {
  const Program program = test::random_program(3, 3, 80);
  const ProfileCluster profiled = make_profile_cluster(3, fake_executors(microseconds(0)), std::make_shared<test::HashData>());
  const std::uint64_t key = profiled.cluster->load(program);
  profiled.cluster->set_state({});
  *profiled.isolation = {Transfers::capture, -1};
  const auto whole = profiled.cluster->step(key, {}).outputs;
  const auto updated = profiled.cluster->state("state0");
  profiled.cluster->set_state({});
  const auto untouched = profiled.cluster->state("state0");
  EXPECT_NE(updated, untouched);
  *profiled.isolation = {Transfers::replay, 1};
  const auto outputs = profiled.cluster->step(key, {}).outputs;
  EXPECT_EQ(outputs.at("out1"), whole.at("out1"));
  EXPECT_EQ(profiled.cluster->state("state0"), untouched);
}

std::string kinds_of(const Schedule& schedule) {
  std::string out;
  for (const auto& row : schedule.actors)
    for (const Action& action : row)
      if (out.find(name(action.kind)) == std::string::npos) out += name(action.kind);
  return out;
}

TEST(Profile, TablesCoverWholeAndSplitBackwards) {
  ScheduleOptions options;
  options.actors = 3;
  options.microbatches = 5;
  for (const auto& [name, other] : {std::pair("1f1b", "FIW"), std::pair("gpipe", "FIW"), std::pair("zb-h1", "FB")}) {
    const auto tables = profiled_tables(make_schedule(name, options));
    ASSERT_EQ(tables.size(), 2u) << name;
    EXPECT_EQ(kinds_of(tables[1]), other);
    validate(tables[1], chain(3), 5);
  }
  options.chunks = 2;
  options.microbatches = 6;
  const auto chunked = profiled_tables(make_schedule("interleaved-1f1b", options));
  ASSERT_EQ(chunked.size(), 2u);
  EXPECT_EQ(kinds_of(chunked[1]), "FIW");
  validate(chunked[1], chain(6), 6);
  // A stage away from home that recomputes everything: its whole F is in the other table.
  const auto again = profiled_tables(parse_schedule("1F0,1R0,1B0\n0F0,0R0,0B0\n", "again.csv"));
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(kinds_of(again[1]), "FIW");
  // And back.
  const auto back = profiled_tables(chunked[1]);
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(back[1].actors, chunked[0].actors);
}

TEST(Profile, AStageWithoutABackwardHasNoneInAnyTable) {
  const auto tables = profiled_tables(parse_schedule("0F0,0F1\n1F0,1B0,1F1,1B1\n", "first.csv"));
  ASSERT_EQ(tables.size(), 2u);
  EXPECT_EQ(print(tables[1]), "0F0,0F1\n1F0,1I0,1F1,1I1,1W0,1W1\n");
}

TEST(Profile, AWeightGradientElsewhereStaysSplit) {
  // Stage s on actor s: the usual tables; elsewhere there is none to be made.
  EXPECT_EQ(profiled_tables(parse_schedule("0F0,0I0,1W0\n1F0,1I0,0W0\n", "foreign.csv")).size(), 2u);
  EXPECT_EQ(profiled_tables(parse_schedule("1F0,1I0,0W0\n0F0,0I0,1W0\n", "foreign.csv")).size(), 1u);
  EXPECT_EQ(profiled_tables(parse_schedule("1F0,1I0,1W0\n0F0,0I0,0W0\n", "turned.csv")).size(), 2u);
  EXPECT_EQ(profiled_tables(parse_schedule("0F0,0B0\n1F0,1I0,1W0\n", "mixed.csv")).size(), 3u);
}

// Whatever the table, its tasks are in the costs of any other table on the same stages.
TEST(Profile, TheCostsOfOneTableAreThoseOfAll) {
  const Config one = config({"schedule=1f1b"});
  const auto data = std::make_shared<RandomBatch>(text_ports(context_of(one)), vocabulary_of(one));
  const std::vector<Program> programs = programs_of(one);
  const ProfileCluster devices = make_profile_cluster(2, fake_executors(microseconds(0)), data);
  std::string progress;
  ProfileOptions options;
  options.rounds = 2;
  options.input = [](std::int64_t step, const Program&) { return StepInput{step, 0, false, {}}; };
  options.progress = [&](const std::string& text) { progress += text + "\n"; };
  const StateSource state = fresh_start(one, prepare(one, builtin_models())).state;
  const Costs costs = measure_costs(*devices.cluster, devices.isolation.get(), programs, state, options);
  EXPECT_EQ(progress, "program 1 of 2: tasks\nprogram 2 of 2: tasks\nlinks\n");

  for (const TaskCost& task : costs.tasks) {
    EXPECT_TRUE(task.alone && task.busy) << task.name;
    EXPECT_EQ(task.beside.size(), 1u);
    EXPECT_EQ(task.stages, task.stage < 0 ? 0 : 2);
  }
  EXPECT_EQ(costs.input_seconds.size(), 2u);
  EXPECT_TRUE(costs.links.at("threads").second_end_copies);
  EXPECT_GT(costs.copy_bandwidth, 0);
  EXPECT_EQ(costs.step_overhead.size(), 1u);
  EXPECT_EQ(print(parse_costs(print(costs), "costs.json")), print(costs));

  for (const char* schedule : {"gpipe", "zb-h1", "eager-1f1b", "sequential"}) {
    const Config other = config({std::string("schedule=") + schedule, "steps=7", "learning_rate=0.5"});
    for (const Program& program : programs_of(other)) EXPECT_NO_THROW(durations_of(program, costs, {})) << schedule;
  }
  const Config split = config({"schedule=zb-h1", "width=32"});
  EXPECT_THROW(durations_of(programs_of(split)[0], costs, {}), Error);
}

TEST(Profile, OneDeviceHasNoLinksAndIsNeverBusyWithOthers) {
  const Program program = test::random_program(1, 1, 40);
  const ProfileCluster devices = make_profile_cluster(1, fake_executors(microseconds(0)), std::make_shared<test::HashData>());
  ProfileOptions options;
  options.rounds = 1;
  options.input = [](std::int64_t step, const Program&) { return StepInput{step, 0, false, {}}; };
  const Costs costs = measure_costs(*devices.cluster, devices.isolation.get(), {program}, {}, options);
  EXPECT_TRUE(costs.links.empty());
  ASSERT_FALSE(costs.tasks.empty());
  for (const TaskCost& task : costs.tasks) EXPECT_TRUE(task.alone && !task.busy);
  // Without isolation only whole steps are measured.
  const Costs whole = measure_costs(*devices.cluster, nullptr, {program}, {}, options);
  for (const TaskCost& task : whole.tasks) EXPECT_TRUE(!task.alone && !task.busy && task.beside.size() == 1);
}

TEST(Profile, Descriptions) {
  EXPECT_EQ(describe_model(config({"dtype=f64"})).substr(0, 24), "gpt, f64: context 8, dro");
  const MachineDescription machine = describe_machine("no libraries");
  EXPECT_GT(machine.cores, 0);
  EXPECT_GT(machine.memory_bytes, 0);
  EXPECT_EQ(machine.build, "penstock 0.2, no libraries");
}

}  // namespace
}  // namespace penstock
