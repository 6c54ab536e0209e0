// SPDX-License-Identifier: Apache-2.0
// Random valid tables with everything that a table may hold (U, UNSHARD, RESHARD, REDUCE_GRAD, R, OFFLOAD, counts, fused pairs) train
// groups of devices as one device trains that holds everything, under every `update` and `zero`.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/text.h"
#include "driver/check.h"
#include "driver/training.h"
#include "program/piece.h"
#include "schedule/kinds.h"
#include "support/dag_model.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/rounds.h"
#include "torch/test_cluster.h"

namespace penstock {
namespace {

constexpr std::int64_t kSteps = 3;

ModelRegistry dag_registry(const StageShape& shape) {
  ModelEntry entry;
  entry.numbers = {{"context", test::kContext}, {"vocabulary", test::kVocabulary}};
  entry.make = [shape](const ModelOptions& options) { return std::make_unique<test::DagModel>(shape, options.stages > 1); };
  return {{"dag", entry}};
}

// The state after some steps, as f64 values by tensor.
std::map<std::string, std::vector<double>> trained(const Config& config, const Prepared& prepared) {
  const Program program = compile_training(config, prepared);
  const auto data = std::make_shared<RandomBatch>(text_ports(context_of(config)), vocabulary_of(config));
  const auto cluster = test::make_test_cluster(program.devices.size(), data);
  const std::uint64_t key = cluster->load(program);
  cluster->set_state(fresh_start(config, prepared).state);
  for (std::int64_t step = 1; step <= kSteps; ++step) cluster->step(key, {step, 0, false, {}});
  std::map<std::string, std::vector<double>> out;
  for (const DeviceProgram& device : program.devices)
    for (const Slot& slot : device.slots)
      for (const std::string& name : slot.names) {
        const std::string tensor = parse_piece(name).tensor;
        if (tensor == "step" || out.contains(tensor)) continue;
        const std::vector<std::byte> bytes = cluster->state(tensor);
        std::vector<double>& values = out[tensor];
        values.resize(bytes.size() / sizeof(double));
        std::memcpy(values.data(), bytes.data(), bytes.size());
      }
  return out;
}

void expect_same(const std::map<std::string, std::vector<double>>& found, const std::map<std::string, std::vector<double>>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, values] : expected) {
    const std::vector<double>& other = found.at(name);
    ASSERT_EQ(values.size(), other.size()) << name;
    double difference = 0;
    for (std::size_t i = 0; i < values.size(); ++i) difference = std::max(difference, std::abs(values[i] - other[i]));
    EXPECT_LE(difference, 1e-9) << name;
  }
}

int count(const Schedule& schedule, const std::function<bool(const Action&)>& test) {
  int found = 0;
  for (const auto& row : schedule.actors) found += static_cast<int>(std::count_if(row.begin(), row.end(), test));
  return found;
}

TEST(RandomTables, TrainGroupsAsOneDevice) {
  const std::uint64_t seed = 20261122;
  int updates = 0, gathers = 0, sums = 0, pairs = 0, counts = 0;
  const int rounds = test::rounds(100);
  for (int round = 0; round < rounds; ++round) {
    test::Random random(seed + static_cast<std::uint64_t>(round));
    const StageShape shape = test::with_one_end(test::random_shape(random, {.most_stages = 4}));
    const int actors = test::draw(random, 1, 3), microbatches = test::draw(random, 1, 4);
    test::RandomScheduleOptions ways;
    ways.mixed_split = test::coin(random, 0.3);
    ways.foreign_weight = test::coin(random, 0.3) ? 0.3 : 0;
    ways.replica = test::coin(random, 0.3) ? 0.3 : 0;
    ways.foreign_input = test::coin(random, 0.15) ? 0.3 : 0;
    Schedule schedule = test::random_schedule(random, shape, actors, microbatches, ways);
    if (test::coin(random, 0.7)) schedule = test::with_extras(random, std::move(schedule), shape);
    if (test::coin(random, 0.6)) schedule = test::with_counts(random, std::move(schedule), shape, 0.9);
    if (test::coin(random, 0.6)) schedule = test::with_pairs(random, std::move(schedule));

    const char* update = std::array{"end", "stage", "validated"}[static_cast<std::size_t>(test::draw(random, 0, 2))];
    const int zero = test::draw(random, 0, 3), data = 1 << test::draw(random, 0, 2), local = data == 2 && test::coin(random, 0.3) ? 2 : 1;
    const ModelRegistry models = dag_registry(shape);
    std::vector<Override> overrides;
    for (const std::string& setting :
         {std::string("model.name=dag"), std::string("dtype=f64"), concat("actors=", actors), concat("microbatches=", microbatches),
          concat("batch=", 4 * microbatches), concat("update=", update), concat("zero=", zero), concat("pipeline.data=", data),
          concat("pipeline.local=", local), std::string(test::coin(random, 0.5) ? "clip=0.01" : "clip=0")})
      overrides.push_back(parse_override(setting));
    SCOPED_TRACE(concat("seed ", seed, " round ", round, ": ",
                        join(overrides, ", ", [](const Override& o) { return o.key + "=" + o.value; }), "\n", print(schedule)));
    const Config config = load_config("", overrides, models);
    Prepared prepared = prepare(config, schedule, microbatches, models);
    spread_actors(config, prepared);
    // The output of `compile --emit schedule` reads back and is valid.
    const Schedule printed = parse_schedule(print(prepared.schedule), "printed.csv");
    ASSERT_EQ(printed.actors, prepared.schedule.actors);
    ASSERT_EQ(test::message_of([&] { validate(printed, shape, microbatches); }), "no error");
    expect_same(trained(config, prepared), trained(config, prepare_sequential(config, models)));

    updates += count(prepared.schedule, [](const Action& a) { return a.kind == Kind::U; });
    gathers += count(prepared.schedule, [](const Action& a) { return a.kind == Kind::UNSHARD; });
    sums += count(prepared.schedule, [](const Action& a) { return a.kind == Kind::REDUCE_GRAD; });
    pairs += count(prepared.schedule, [](const Action& a) { return a.fused_with_next; });
    counts += count(prepared.schedule, [](const Action& a) { return a.count > 1; });
  }
  for (const int found : {updates, gathers, sums, pairs, counts}) EXPECT_GE(found, rounds / 7);
}

}  // namespace
}  // namespace penstock
