// SPDX-License-Identifier: Apache-2.0
// compile() follows its options before the passes: the table's gathers, the parameters in shares, what recomputes.
#include "penstock/compile.h"

#include <gtest/gtest.h>

#include "lower/passes.h"
#include "models/registry.h"
#include "penstock/step.h"

namespace penstock {
namespace {

std::unique_ptr<Model> perceptron() {
  ModelOptions sizes;
  sizes.stages = 2;
  sizes.numbers = {{"width", 8}, {"context", 4}, {"vocabulary", 16}};
  return make_model(builtin_models(), "mlp", sizes);
}

const char* const kTable = "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n";
const char* const kGathers = "0UNSHARD,0F0,0F1,0B0,0B1,0REDUCE_GRAD\n1UNSHARD,1F0,1F1,1B0,1B1,1REDUCE_GRAD\n";

LowerInput training(const CompileOptions& options, const char* table = kTable) {
  return std::move(compile_lowering(training_step(*perceptron(), {8, 4, 4}, {}), parse_schedule(table, "table.csv"), options)[0].input);
}
LowerInput evaluation(const CompileOptions& options, const char* table = kTable) {
  return std::move(compile_lowering(evaluation_step(*perceptron(), {8, 4, 4}), parse_schedule(table, "table.csv"), options)[0].input);
}

// Their sums or parameters are in shares between the runs of a stage; a table that says itself when they are whole stays as it is.
TEST(CompileInput, GathersAreAddedWhereSharesNeedThem) {
  for (const int zero : {0, 1, 2, 3}) EXPECT_EQ(has_gathers(training({.devices = {2, 2}, .zero = zero}).schedule), zero >= 2) << zero;
  for (const int zero : {2, 3})
    EXPECT_EQ(print(training({.devices = {2, 2}, .zero = zero}, kGathers).schedule), print(parse_schedule(kGathers, "table.csv")));
  EXPECT_TRUE(has_gathers(evaluation({.devices = {2, 2}, .zero = 3}).schedule));
  EXPECT_FALSE(has_gathers(evaluation({.devices = {2, 2}, .zero = 2}).schedule));
}

// Moments and the count of steps are no parameters; named ones are taken as they are.
TEST(CompileInput, ParametersAreTheFloatingStatesOfTheLoop) {
  using Strings = std::vector<std::string>;
  EXPECT_EQ(training({.devices = {2, 2}, .zero = 1}).options.parameters,
            (Strings{"embedding.weight", "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"}));
  EXPECT_EQ(training({.devices = {2, 2}, .zero = 1, .parameters = {"layers.1.bias"}}).options.parameters, Strings{"layers.1.bias"});
  EXPECT_EQ(training({.devices = {2, 2}}).options.parameters, Strings{});
}

// By stage, how many ops its backward has.
std::vector<std::size_t> backward_ops(const LowerInput& input) {
  std::vector<std::size_t> out;
  for (const StageTask& task : input.dag.tasks)
    if (task.kind == Kind::B) out.push_back(task.graph->ops.size());
  return out;
}

TEST(CompileInput, RecomputationIsOfEveryStageWithABackward) {
  const std::vector<std::size_t> plain = backward_ops(training({.devices = {2, 2}}));
  const std::vector<std::size_t> again = backward_ops(training({.devices = {2, 2}, .recompute = Recompute::inputs}));
  ASSERT_EQ(again.size(), 2);
  for (std::size_t s = 0; s < 2; ++s) EXPECT_GT(again[s], plain[s]) << "stage " << s;
  EXPECT_TRUE(backward_ops(evaluation({.devices = {2, 2}, .recompute = Recompute::inputs})).empty());
}

TEST(CompileInput, SharedBlocksAreOfLevelThree) {
  const Graph step = training_step(*perceptron(), {8, 4, 4}, {});
  const Schedule table = parse_schedule(kTable, "table.csv");
  EXPECT_TRUE(shared_blocks(step, table, {.devices = {2, 2}, .zero = 2}).empty());
  using Blocks = std::vector<std::vector<std::string>>;
  EXPECT_EQ(shared_blocks(step, table, {.devices = {2, 2}, .zero = 3}),
            (Blocks{{"layers.1.weight", "layers.1.bias"}, {"embedding.weight", "layers.0.weight", "layers.0.bias"}}));
}

// Evaluation finds the parameters in the pieces in which training left them.
TEST(CompileInput, BothProgramsOfAModelHoldTheSamePieces) {
  const ModelPrograms programs = compile(*perceptron(), {8, 4}, {}, parse_schedule(kTable, "table.csv"), {.devices = {2, 2}, .zero = 3});
  for (std::size_t d = 0; d < programs.training.devices.size(); ++d) {
    std::vector<std::string> trained, evaluated;
    for (const Slot& slot : programs.training.devices[d].slots)
      for (const std::string& name : slot.names)
        if (name.starts_with("layers") || name.starts_with("embedding")) trained.push_back(name);
    for (const Slot& slot : programs.evaluation.devices[d].slots) evaluated.insert(evaluated.end(), slot.names.begin(), slot.names.end());
    EXPECT_EQ(evaluated, trained) << "device " << d;
  }
}

TEST(CompileInput, ForwardOnlyTablesHaveNoPairsAndNoCells) {
  Schedule schedule = parse_schedule("0F0,0F1,0B0,0B1\n", "table.csv");
  schedule.actors[0][1].fused_with_next = true;
  const Schedule forward = forward_only(schedule);
  EXPECT_EQ(print(forward), print(parse_schedule("0F0,0F1\n", "table.csv")));
  EXPECT_FALSE(forward.actors[0][1].fused_with_next);
  EXPECT_TRUE(forward.cells.empty());
  EXPECT_FALSE(schedule.cells.empty());
}

}  // namespace
}  // namespace penstock
