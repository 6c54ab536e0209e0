// Golden programs of small models, and what every lowered program must satisfy whatever the schedule.
#include "lower/lower.h"

#include <gtest/gtest.h>

#include <map>

#include "base/text.h"
#include "models/registry.h"
#include "program/verify.h"
#include "stage/stages.h"
#include "support/errors.h"
#include "support/golden.h"
#include "trace/step.h"
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
  expect_golden("stage/perceptron.txt", print(dag_of(gradient_step(*tiny("mlp", 2), 4, 4, 2), false)));
}

TEST(Cut, PerceptronWithSplitBackward) {
  expect_golden("stage/perceptron_split.txt", print(dag_of(gradient_step(*tiny("mlp", 2), 4, 4, 2), true)));
}

TEST(Cut, TiedWeightsHaveAnAccumulatorPerStage) {
  const StageDag dag = dag_of(gradient_step(*tiny("gpt", 4), 4, 4, 2), false);
  int shared = 0;
  for (const Bundle& bundle : dag.bundles)
    if (bundle.source == Bundle::Source::accumulator && bundle.producers.size() > 1) {
      ++shared;
      EXPECT_EQ(bundle.types[0].text(), "f32[16,8]");  // the token embedding, used by the first and the last stage
    }
  EXPECT_EQ(shared, 1);
}

TEST(Cut, BranchesStayBranches) {
  const StageDag dag = dag_of(gradient_step(*tiny("two-branch", 4), 4, 4, 2), false);
  EXPECT_EQ(dag.shape.predecessors[1], std::vector<std::int32_t>{0});
  EXPECT_EQ(dag.shape.predecessors[2], std::vector<std::int32_t>{0});
  EXPECT_EQ(dag.shape.predecessors[3], (std::vector<std::int32_t>{0, 1, 2}));  // both branches and the skip edge
}

TEST(Lower, PerceptronOnTwoActors) {
  expect_golden("lower/perceptron_gpipe.txt", print(lower(training_step(*tiny("mlp", 2), 4, 4, 2, {}), table("gpipe", 2, 2))));
}

TEST(Lower, PerceptronZeroBubble) {
  expect_golden("lower/perceptron_zb.txt", print(lower(gradient_step(*tiny("mlp", 2), 4, 4, 2), table("zb-h1", 2, 2))));
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
  for (const Graph& step : {training_step(*model, batch, 4, c.microbatches, {}), gradient_step(*model, batch, 4, c.microbatches)}) {
    const Program program = lower(step, schedule);
    EXPECT_EQ(program.devices.size(), static_cast<std::size_t>(c.actors));
    EXPECT_EQ(print(parse_program(print(program))), print(program));
  }
  lower(evaluation_step(*model, batch, 4, c.microbatches), table(c.schedule, c.actors, c.microbatches, c.chunks, true));
}

INSTANTIATE_TEST_SUITE_P(Lower, EverySchedule,
                         testing::Values(Case{"mlp", 2, "gpipe", 2, 3, 1}, Case{"gpt", 1, "sequential", 1, 4, 1},
                                         Case{"gpt", 2, "1f1b", 2, 7, 1}, Case{"gpt", 3, "eager-1f1b", 3, 4, 1},
                                         Case{"gpt", 4, "zb-h1", 4, 8, 1}, Case{"gpt", 4, "interleaved-1f1b", 2, 4, 2},
                                         Case{"two-branch", 4, "gpipe", 4, 4, 1}, Case{"two-branch", 4, "1f1b", 4, 7, 1},
                                         Case{"two-branch", 4, "zb-h1", 4, 4, 1}, Case{"two-branch", 4, "interleaved-1f1b", 2, 4, 2}));

TEST(Lower, EveryStateHasOneOwner) {
  const Program program = lower(training_step(*tiny("gpt", 4), 8, 4, 4, {}), table("1f1b", 4, 4));
  std::map<std::string, int> owners;
  for (const DeviceProgram& device : program.devices)
    for (const Slot& slot : device.slots)
      if (slot.kind == SlotClass::state) ++owners[slot.names[0]];
  EXPECT_EQ(owners.size(), 3 * tiny("gpt", 4)->parameters().size() + 1);
  for (const auto& [name, count] : owners) EXPECT_EQ(count, 1) << name;
}

TEST(Lower, CopiesOfTiedWeightsAreRefreshed) {
  const Program program = lower(training_step(*tiny("gpt", 2), 4, 4, 2, {}), table("gpipe", 2, 2));
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
  const Program program = lower(gradient_step(*tiny("gpt", 4), 8, 4, 4), table("1f1b", 4, 4));
  int forward = 0;
  for (const Task& task : program.tasks) forward += task.name[0] == 'F';
  EXPECT_EQ(forward, 3);  // the first, the last, and one for both in the middle
}

TEST(Lower, TheTableMustFitTheModel) {
  EXPECT_EQ(message_of([] { lower(gradient_step(*tiny("mlp", 2), 4, 4, 2), table("gpipe", 4, 2)); }),
            "schedule gpipe is for 4 stages; the model has 2\n  the model's stages: 0, 1\n  hint: mark 4 stages in the model, or make the "
            "table for 2");
}

TEST(Lower, ActionsItCannotKeepAreRefused) {
  EXPECT_EQ(message_of([] { lower(gradient_step(*tiny("mlp", 2), 2, 4, 1), parse_schedule("0F0,0R0,0B0\n1F0,1B0\n", "again.csv")); }),
            "schedule again.csv: 0R0 cannot be lowered\n"
            "  recomputation follows the configuration, and nothing is offloaded\n"
            "  hint: take the R actions out of the table");
}

TEST(Lower, InstructionsGrowLinearlyWithMicrobatches) {
  const auto count = [](int m) {
    std::size_t total = 0;
    for (const DeviceProgram& device : lower(gradient_step(*tiny("mlp", 2), 2 * m, 4, m), table("zb-h1", 2, m)).devices)
      total += device.instructions.size();
    return total;
  };
  const std::size_t at8 = count(8), at16 = count(16), at32 = count(32);
  EXPECT_EQ(at32 - at16, 2 * (at16 - at8));
}

}  // namespace
}  // namespace penstock
