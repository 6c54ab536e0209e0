// SPDX-License-Identifier: Apache-2.0
// Golden programs of small models, and what every lowered program must satisfy whatever the schedule.
#include "lower/lower.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/text.h"
#include "models/registry.h"
#include "penstock/step.h"
#include "program/verify.h"
#include "stage/stages.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/random_schedule.h"
#include "support/rounds.h"
#include "transform/passes.h"

namespace penstock {
namespace {

using test::expect_golden;
using test::message_of;

std::unique_ptr<Model> tiny(const std::string& name, int stages) {
  ModelOptions options;
  options.stages = stages;
  options.numbers = {{"width", 8}, {"context", 4}, {"vocabulary", 16}};
  if (name == "gpt") options.numbers.insert({{"heads", 2}, {"layers", 4}});
  return make_model(builtin_models(), name, options);
}

Schedule table(const std::string& name, int actors, int microbatches, int chunks = 1, bool forward_only = false) {
  ScheduleOptions options;
  options.actors = actors;
  options.microbatches = microbatches;
  options.chunks = chunks;
  options.forward_only = forward_only;
  return make_schedule(name, options);
}

StageDag dag_of(const Graph& step, bool split) {
  const StagedStep staged = assign_stages(hoist_invariants(eliminate_dead_code(step)));
  return cut(staged, std::vector<bool>(staged.stages.size(), split));
}

TEST(Cut, PerceptronWithWholeBackward) {
  expect_golden("stage/perceptron.txt", print(dag_of(gradient_step(*tiny("mlp", 2), {4, 4, 2}), false)));
}

TEST(Cut, PerceptronWithSplitBackward) {
  expect_golden("stage/perceptron_split.txt", print(dag_of(gradient_step(*tiny("mlp", 2), {4, 4, 2}), true)));
}

TEST(Cut, TiedWeightsHaveAnAccumulatorPerStage) {
  const StageDag dag = dag_of(gradient_step(*tiny("gpt", 4), {4, 4, 2}), false);
  int shared = 0;
  for (const Bundle& bundle : dag.bundles)
    if (bundle.source == Bundle::Source::accumulator && bundle.producers.size() > 1) {
      ++shared;
      EXPECT_EQ(bundle.types[0].text(), "f32[16,8]");  // the token embedding, used by the first and the last stage
    }
  EXPECT_EQ(shared, 1);
}

TEST(Cut, BranchesStayBranches) {
  const StageDag dag = dag_of(gradient_step(*tiny("two-branch", 4), {4, 4, 2}), false);
  EXPECT_EQ(dag.shape.predecessors[1], std::vector<std::int32_t>{0});
  EXPECT_EQ(dag.shape.predecessors[2], std::vector<std::int32_t>{0});
  EXPECT_EQ(dag.shape.predecessors[3], (std::vector<std::int32_t>{0, 1, 2}));  // both branches and the skip edge
}

TEST(Lower, PerceptronOnTwoActors) {
  expect_golden("lower/perceptron_gpipe.txt", print(lower(training_step(*tiny("mlp", 2), {4, 4, 2}, {}), table("gpipe", 2, 2))));
}

TEST(Lower, PerceptronZeroBubble) {
  expect_golden("lower/perceptron_zb.txt", print(lower(gradient_step(*tiny("mlp", 2), {4, 4, 2}), table("zb-h1", 2, 2))));
}

TEST(Lower, PerceptronOnTwoActorsOfTwoDevices) {
  const Graph step = training_step(*tiny("mlp", 2), {4, 4, 4}, {});
  expect_golden("lower/perceptron_groups.txt", print(lower(step, table("gpipe", 2, 2), {.devices = {2, 2}})));
}

TEST(Lower, RefusesMicroBatchesThatNoTableHas) {
  const Graph step = training_step(*tiny("mlp", 2), {9, 4, 3}, {});
  EXPECT_EQ(message_of([&] { lower(step, table("gpipe", 2, 1), {.devices = {2, 2}}); }),
            "the step has 3 micro-batches, and each of the table's is 2 of them\n  hint: trace the step with a multiple of 2");
}

// Bytes that each device gives to collectives in a step.
std::vector<std::int64_t> reduced_bytes(const Program& program) {
  std::vector<std::int64_t> out;
  for (const DeviceProgram& device : program.devices) {
    std::int64_t& bytes = out.emplace_back(0);
    for (const Instruction& i : device.instructions)
      if (is_collective(i.opcode))
        for (const TensorType& part : device.slots[device.operands_of(i)[0].index()].parts) bytes += part.bytes();
  }
  return out;
}

// One reduction of all that the step sums, the gradients and the loss, however many micro-batches there are; and the update sends nothing.
TEST(Lower, GroupsReduceEachGradientOnce) {
  for (const char* schedule : {"1f1b", "zb-h1", "gpipe"})
    for (const int microbatches : {2, 8}) {
      const auto model = tiny("mlp", 2);
      const Graph step = training_step(*model, {4 * microbatches, 4, 2 * microbatches}, {});
      const Program program = lower(step, table(schedule, 2, microbatches), {.devices = {2, 2}});
      ASSERT_EQ(program.devices.size(), 4u);
      std::int64_t gradients = 0;
      for (const ParameterSpec& spec : model->parameters()) gradients += spec.type.bytes();
      const std::vector<std::int64_t> bytes = reduced_bytes(program);
      EXPECT_EQ(bytes[0] + bytes[2], gradients + byte_size(DType::f32)) << schedule;  // of plane 0; the loss is a scalar
      EXPECT_EQ(bytes[0], bytes[1]);
      EXPECT_EQ(bytes[2], bytes[3]);
    }
}

// Two devices feed one, then one feeds two: each transfer is one part of a micro-batch.
TEST(Lower, UnequalGroupsSendPartsOnly) {
  for (const std::vector<int>& devices : {std::vector<int>{2, 1}, {1, 2}, {2, 4}}) {
    const int parts = shares_of(devices);
    const Graph step = gradient_step(*tiny("mlp", 2), {8 * parts, 4, 2 * parts});
    const Program program = lower(step, table("gpipe", 2, 2), {.devices = devices});
    ASSERT_EQ(program.devices.size(), static_cast<std::size_t>(devices[0] + devices[1]));
    EXPECT_EQ(print(parse_program(print(program))), print(program));
    std::map<std::int32_t, int> forwards, sent;  // of each device of actor 0: runs of F, activations sent
    for (std::int32_t d = 0; d < devices[0]; ++d)
      for (const Instruction& i : program.devices[static_cast<std::size_t>(d)].instructions) {
        forwards[d] += i.opcode == Opcode::run && i.action && i.kind == Kind::F;
        sent[d] += i.opcode == Opcode::send && program.devices[static_cast<std::size_t>(d)].slots[i.slot.index()].name.starts_with("F0");
      }
    for (std::int32_t d = 0; d < devices[0]; ++d) {
      EXPECT_EQ(forwards[d], 2 * parts / devices[0]);
      EXPECT_EQ(sent[d], forwards[d]);
    }
  }
}

TEST(Lower, AllMembersUpdateAndTheFirstOwns) {
  const Program program = lower(training_step(*tiny("gpt", 2), {8, 4, 4}, {}), table("1f1b", 2, 2), {.devices = {2, 2}});
  for (std::size_t d = 0; d < 4; ++d) {
    std::set<std::string> updated, held;
    const DeviceProgram& device = program.devices[d];
    for (const Slot& slot : device.slots) {
      if (holds_state(slot.kind)) held.insert(slot.names[0]);
      EXPECT_FALSE(d % 2 == 1 && slot.kind == SlotClass::state) << slot.name;
    }
    for (const Instruction& i : device.instructions)
      for (const Result& result : device.results_of(i))
        if (result.mode == ResultMode::update && holds_state(device.slots[result.slot.index()].kind))
          updated.insert(device.slots[result.slot.index()].names[0]);
    if (d >= 2) held.erase("wte.weight");  // tied: the first actor's update is sent
    EXPECT_EQ(updated, held) << d;
  }
}

struct Case {
  const char* model;
  int stages;
  const char* schedule;
  int actors, microbatches, chunks;
};

class EverySchedule : public testing::TestWithParam<Case> {};

// lower() verifies what it makes; here also the other steps, and what the text form says.
TEST_P(EverySchedule, TrainsEvaluatesAndReadsBack) {
  const Case& c = GetParam();
  const std::unique_ptr<Model> model = tiny(c.model, c.stages);
  const Schedule schedule = table(c.schedule, c.actors, c.microbatches, c.chunks);
  const int batch = 2 * c.microbatches;
  for (const Graph& step : {training_step(*model, {batch, 4, c.microbatches}, {}), gradient_step(*model, {batch, 4, c.microbatches})}) {
    const Program program = lower(step, schedule);
    EXPECT_EQ(program.devices.size(), static_cast<std::size_t>(c.actors));
    EXPECT_EQ(print(parse_program(print(program))), print(program));
  }
  lower(evaluation_step(*model, {batch, 4, c.microbatches}), table(c.schedule, c.actors, c.microbatches, c.chunks, true));
}

INSTANTIATE_TEST_SUITE_P(Lower, EverySchedule,
                         testing::Values(Case{"mlp", 2, "gpipe", 2, 3, 1}, Case{"gpt", 1, "sequential", 1, 4, 1},
                                         Case{"gpt", 2, "1f1b", 2, 7, 1}, Case{"gpt", 3, "eager-1f1b", 3, 4, 1},
                                         Case{"gpt", 4, "zb-h1", 4, 8, 1}, Case{"gpt", 4, "interleaved-1f1b", 2, 4, 2},
                                         Case{"two-branch", 4, "gpipe", 4, 4, 1}, Case{"two-branch", 4, "1f1b", 4, 7, 1},
                                         Case{"two-branch", 4, "zb-h1", 4, 4, 1}, Case{"two-branch", 4, "interleaved-1f1b", 2, 4, 2}));

// With one queue for the transfers of a pair, both directions: random tables, also those whose stages run on several actors.
TEST(Lower, RandomTablesFinishOnSerialChannels) {
  std::size_t crossing = 0;  // pairs that send both ways
  for (std::uint64_t seed = 0; seed < test::rounds(200u); ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    test::Random random(seed);
    const auto model = tiny("two-branch", 4);
    const int microbatches = test::draw(random, 1, 5), actors = test::draw(random, 2, 4);
    const Graph step = training_step(*model, {4 * microbatches, 4, 2 * microbatches}, {});
    const StageShape shape = dag_of(step, true).shape;
    const Schedule schedule = test::random_schedule(random, shape, actors, 2 * microbatches, {.foreign_weight = 0.2, .replica = 0.2});
    const Program program = lower(step, schedule, {.receive_ahead = test::draw(random, 0, 5)});
    EXPECT_EQ(message_of([&] { verify(program, {ChannelModel::serial, -1}); }), "no error");
    EXPECT_EQ(message_of([&] { verify(program); }), "no error");
    std::set<std::pair<std::int32_t, std::int32_t>> ways;
    for (std::size_t d = 0; d < program.devices.size(); ++d)
      for (const Instruction& i : program.devices[d].instructions)
        if (i.opcode == Opcode::send) ways.emplace(d, i.peer);
    for (const auto& [from, to] : ways) crossing += from < to && ways.contains({to, from});
  }
  EXPECT_GT(crossing, test::rounds(200));
}

TEST(Lower, EveryStateHasOneOwner) {
  const Program program = lower(training_step(*tiny("gpt", 4), {8, 4, 4}, {}), table("1f1b", 4, 4));
  std::map<std::string, int> owners;
  for (const DeviceProgram& device : program.devices)
    for (const Slot& slot : device.slots)
      if (slot.kind == SlotClass::state) ++owners[slot.names[0]];
  EXPECT_EQ(owners.size(), 3 * tiny("gpt", 4)->parameters().size() + 1);
  for (const auto& [name, count] : owners) EXPECT_EQ(count, 1) << name;
}

TEST(Lower, CopiesOfTiedWeightsAreRefreshed) {
  const Program program = lower(training_step(*tiny("gpt", 2), {4, 4, 2}, {}), table("gpipe", 2, 2));
  const DeviceProgram& last = program.devices[1];
  int refreshed = 0;
  for (const Instruction& i : last.instructions)
    if (i.opcode == Opcode::recv && last.slots[i.slot.index()].kind == SlotClass::copy) {
      EXPECT_EQ(last.slots[i.slot.index()].names[0], "wte.weight");
      ++refreshed;
    }
  EXPECT_EQ(refreshed, 1);
}

TEST(Lower, EqualLayersShareATask) {
  const Program program = lower(gradient_step(*tiny("gpt", 4), {8, 4, 4}), table("1f1b", 4, 4));
  int forward = 0;
  for (const Task& task : program.tasks) forward += task.name[0] == 'F';
  EXPECT_EQ(forward, 3);  // the first, the last, and one for both in the middle
}

TEST(Lower, TheTableMustFitTheModel) {
  EXPECT_EQ(message_of([] { lower(gradient_step(*tiny("mlp", 2), {4, 4, 2}), table("gpipe", 4, 2)); }),
            "schedule gpipe is for 4 stages; the model has 2\n  the model's stages: 0, 1\n  hint: mark 4 stages in the model, or make the "
            "table for 2");
}

TEST(Lower, CollectivesOfTheModelNeedTheirAxis) {
  Graph step = gradient_step(*tiny("mlp", 2), {4, 4, 2});
  Op& loop = *std::ranges::find(step.ops, "accumulate", &Op::name);
  auto body = std::make_shared<Graph>(*loop.body);
  Op& op = *std::ranges::find(body->ops, "relu", &Op::name);
  op.name = "all_reduce";
  op.attributes = {{"axis", std::string("tensor")}, {"size", std::int64_t{4}}};
  op.origin = "layers.0";
  loop.body = body;
  EXPECT_EQ(message_of([&] { lower(step, table("gpipe", 2, 2)); }),
            "graph @body: all_reduce is along axis \"tensor\" of 4 members, which the mesh does not have\n"
            "  the mesh has no axes inside an actor\n"
            "  made in layers.0\n"
            "  hint: --mesh tensor=4");
}

TEST(Cut, PerceptronThatRecomputes) {
  const StagedStep staged = prepare_stages(gradient_step(*tiny("mlp", 2), {4, 4, 2}));
  expect_golden("stage/perceptron_recomputed.txt", print(cut(staged, {false, true}, {true, true})));
}

// Stage 0 recomputes one of its micro-batches, so that it has both kinds of F; stage 1 all of them, both by one action.
TEST(Lower, PerceptronThatRecomputes) {
  const Schedule schedule = parse_schedule("0F0,0F1,0B0,0R1,0B1\n1F0,1F1,1x2R0,1B0,1B1\n", "again.csv");
  expect_golden("lower/perceptron_recomputed.txt", print(lower(gradient_step(*tiny("mlp", 2), {4, 4, 2}), schedule)));
}

TEST(Lower, RecomputationNeedsABackwardThatLeavesItToR) {
  const Schedule forward = parse_schedule("0F0,0R0\n1F0\n", "forward.csv"), both = parse_schedule("0F0,0B0\n1F0,1R0,1B0\n", "both.csv");
  EXPECT_EQ(message_of([&] { lower(evaluation_step(*tiny("mlp", 2), {2, 4, 1}), forward); }),
            "forward.csv:1:2: 0R0 prepares a backward of a stage without\n"
            "  stage 0 only runs forward\n"
            "  hint: leave it out, or use a table made with --forward-only");
  EXPECT_EQ(message_of([&] { lower(gradient_step(*tiny("mlp", 2), {2, 4, 1}), both, {.recompute = Recompute::inputs}); }),
            "schedule both.csv: 1R0 has nothing to recompute\n"
            "  pipeline.recompute = \"inputs\": the backward of stage 1 (\"1\") recomputes by itself\n"
            "  hint: set pipeline.recompute = \"none\", or take the R actions out of the table");
}

// Bytes of what one R makes, at most, and of the largest step of a device.
std::int64_t largest_recomputed(const Program& program) {
  std::int64_t most = 0;
  for (const DeviceProgram& device : program.devices)
    for (const Instruction& i : device.instructions) {
      if (i.opcode != Opcode::run || i.kind != Kind::R) continue;
      std::int64_t bytes = 0;
      for (const Result& result : device.results_of(i)) bytes += slot_bytes(device.slots[result.slot.index()]);
      most = std::max(most, bytes);
    }
  return most;
}

TEST(Lower, RecomputationSavesMemoryAndNeverCostsMoreThanOneMicrobatch) {
  const int microbatches = 8;
  const Graph step = gradient_step(*tiny("gpt", 4), {2 * microbatches, 4, microbatches});
  const std::uint64_t seed = 5;
  test::Random random(seed);
  for (const char* name : {"gpipe", "1f1b", "zb-h1", "interleaved-1f1b"}) {
    const bool interleaved = std::string_view(name) == "interleaved-1f1b";
    const Schedule kept = table(name, interleaved ? 2 : 4, microbatches, interleaved ? 2 : 1);
    const Program without = lower(step, kept);
    for (double share : {0.3, 0.7, 1.0}) {
      SCOPED_TRACE(concat(name, ", seed ", seed, ", share ", share));
      const Program with = lower(step, test::with_recomputation(random, kept, share));
      for (std::size_t d = 0; d < with.devices.size(); ++d)
        EXPECT_LE(with.devices[d].step_bytes, without.devices[d].step_bytes + largest_recomputed(with)) << "device " << d;
    }
  }
  const Schedule gpipe = table("gpipe", 4, microbatches);
  const Program with = lower(step, test::with_recomputation(random, gpipe, 1, /*late=*/true)), without = lower(step, gpipe);
  for (std::size_t d = 0; d < with.devices.size(); ++d) {
    SCOPED_TRACE(concat("device ", d));
    const auto bytes = [d](const Program& program) { return program.devices[d].step_bytes + program.devices[d].scratch_bytes; };
    EXPECT_LT(2 * bytes(with), bytes(without));
  }
}

// Bytes that the step slots of a device take at most at once, by instructions.
std::int64_t most_live_bytes(const DeviceProgram& device) {
  std::int64_t live = 0, most = 0;
  const auto change = [&](SlotId id, int sign) {
    const Slot& slot = device.slots[id.index()];
    if (slot.kind == SlotClass::step) most = std::max(most, live += sign * slot_bytes(slot));
  };
  for (const Instruction& i : device.instructions) {
    if (i.opcode == Opcode::recv || i.opcode == Opcode::input) change(i.slot, 1);
    for (const Result& result : device.results_of(i))
      if (result.mode == ResultMode::store) change(result.slot, 1);
    if (i.opcode == Opcode::free) change(i.slot, -1);
  }
  return most;
}

const char* const kOffloaded = "0F0,0OFFLOAD0,0F1,0OFFLOAD1,0F2,0F3,0B3,0B2,0RELOAD1,0B1,0RELOAD0,0B0\n1F0,1F1,1F2,1F3,1B3,1B2,1B1,1B0\n";

TEST(Lower, OffloadedResidualsGoOverTheHost) {
  expect_golden("lower/perceptron_offload.txt",
                print(lower(gradient_step(*tiny("mlp", 2), {4, 4, 2}),
                            parse_schedule("0F0,0OFFLOAD0,0F1,0B1,0RELOAD0,0B0\n1F0,1F1,1B1,1B0\n", "offload.csv"))));
}

TEST(Lower, OffloadingFreesDeviceMemory) {
  std::string plain = kOffloaded;
  for (const char* action : {"0OFFLOAD0,", "0OFFLOAD1,", "0RELOAD0,", "0RELOAD1,"}) plain.erase(plain.find(action), std::strlen(action));
  const auto step = gradient_step(*tiny("gpt", 2), {8, 4, 4});
  const DeviceProgram without = lower(step, parse_schedule(plain, "plain.csv")).devices[0];
  const DeviceProgram with = lower(step, parse_schedule(kOffloaded, "offload.csv")).devices[0];
  std::int64_t offloaded = 0;
  for (const Slot& slot : with.slots)
    if (slot.kind == SlotClass::host) offloaded += slot_bytes(slot);
  EXPECT_GT(offloaded, 0);
  EXPECT_EQ(with.host_bytes, offloaded);  // both micro-batches are there at once
  EXPECT_EQ(without.host_bytes, 0);
  EXPECT_EQ(most_live_bytes(without) - most_live_bytes(with), offloaded);
  EXPECT_EQ(without.step_bytes - with.step_bytes, offloaded);
  EXPECT_EQ(without.state_bytes, with.state_bytes);
}

// Each result of a marked op is moved, so all ops marked are as none; a stage without marks has all moved that it leaves.
TEST(Lower, OffloadMovesWhatMarkedOpsMake) {
  const auto with_marks = [](Graph step, auto&& is_marked) {
    for (Op& loop : step.ops) {
      if (!loop.body) continue;
      Graph body = *loop.body;
      for (Op& op : body.ops)
        if (op.phase == Phase::forward && is_marked(op)) op.attributes[kOffload] = true;
      loop.body = std::make_shared<const Graph>(std::move(body));
    }
    return step;
  };
  const Graph plain = gradient_step(*tiny("gpt", 2), {8, 4, 4});
  const auto lowered = [&](auto&& is_marked) { return lower(with_marks(plain, is_marked), parse_schedule(kOffloaded, "offload.csv")); };
  const Program none = lowered([](const Op&) { return false; }), all = lowered([](const Op&) { return true; }),
                norms = lowered([](const Op& op) { return op.stage == "0" && op.name == "native_layer_norm"; }),
                others = lowered([](const Op& op) { return op.stage == "0" && op.name != "native_layer_norm"; }),
                elsewhere = lowered([](const Op& op) { return op.stage == "1"; });
  EXPECT_EQ(print(none), print(all));
  EXPECT_EQ(print(none), print(elsewhere));  // stage 1 offloads nothing
  EXPECT_GT(norms.devices[0].host_bytes, 0);
  EXPECT_GT(others.devices[0].host_bytes, 0);
  EXPECT_EQ(norms.devices[0].host_bytes + others.devices[0].host_bytes, none.devices[0].host_bytes);
  EXPECT_EQ(most_live_bytes(norms.devices[0]) - most_live_bytes(none.devices[0]), others.devices[0].host_bytes);
}

TEST(Lower, WithoutResidualsNothingIsOffloaded) {
  const Schedule schedule = parse_schedule("0F0,0OFFLOAD0,0RELOAD0,0B0\n1F0,1B0\n", "offload.csv");
  const Program program = lower(gradient_step(*tiny("gpt", 2), {2, 4, 1}), schedule, {.recompute = Recompute::inputs});
  for (const DeviceProgram& device : program.devices) EXPECT_EQ(device.host_bytes, 0);
}

TEST(Lower, InstructionsGrowLinearlyWithMicrobatches) {
  const auto count = [](int m) {
    std::size_t total = 0;
    for (const DeviceProgram& device : lower(gradient_step(*tiny("mlp", 2), {2 * m, 4, m}), table("zb-h1", 2, m)).devices)
      total += device.instructions.size();
    return total;
  };
  const std::size_t at8 = count(8), at16 = count(16), at32 = count(32);
  EXPECT_EQ(at32 - at16, 2 * (at16 - at8));
}

}  // namespace
}  // namespace penstock
