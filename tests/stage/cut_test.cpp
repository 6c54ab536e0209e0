// SPDX-License-Identifier: Apache-2.0
// The cut of a loop's body, text in and text out, and what every cut must satisfy.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "lower/lower.h"
#include "models/registry.h"
#include "ops/verify.h"
#include "penstock/step.h"
#include "stage/loop.h"
#include "stage/stages.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/random_schedule.h"
#include "support/rounds.h"
#include "support/text_graphs.h"

namespace penstock {
namespace {

using test::message_of;
using test::step_with;

// The bundles that flow between the tasks, a line for each.
std::string flows_of(const StageDag& dag) {
  std::string out;
  for (const std::string& line : split(print(dag), '\n')) {
    if (line.starts_with("graph")) break;
    if (!line.starts_with("penstock") && !line.starts_with("stage")) out += line + "\n";
  }
  return out;
}

StageDag cut_of(const std::string& body, bool splits = false, const CutOptions& options = {}) {
  const StagedStep staged = assign_stages(step_with(body));
  return cut(staged, std::vector<bool>(staged.stages.size(), splits), {}, options);
}

std::vector<std::string> ops_of(const StageDag& dag, std::int32_t stage, Kind kind) {
  std::vector<std::string> out;
  for (const Op& op : dag.tasks[dag.task(StageId(stage), kind)].graph->ops) out.push_back(op.name);
  return out;
}

TEST(CutBody, AJoinOverStagesIsATermOfEach) {
  EXPECT_EQ(flows_of(cut_of("%0: f32[2,3] = mul(%x, %w) {stage=\"a\"}"
                            "%1: f32[] = sum(%0) {dim=[0, 1], keepdim=false, stage=\"a\"}"
                            "%2: f32[2,3] = exp(%0) {stage=\"b\"}"
                            "%3: f32[] = sum(%2) {dim=[0, 1], keepdim=false, stage=\"b\"}"
                            "%4: f32[] = add_n(%1, %3) {stage=\"b\"} return %4\n")),
            "data %0 (f32[2,3]) -> F0\n"
            "invariant %1 (f32[3]) -> F0\n"
            "edge F0 -> F1 (f32[2,3])\n"
            "sum F0, F1 -> result 0 (f32[])\n");
}

// Where ops are marked, what others leave to the stage's own backward stays; what other stages read is one bundle whatever makes it.
TEST(CutBody, MarkedOpsMakeWhatIsOffloaded) {
  const std::string body =
      "%0: f32[2,3] = mul(%x, %w) {stage=\"a\", sequence=0}"
      "%1: f32[2,3] = exp(%0) {stage=\"a\", sequence=1, offload=true}"
      "%2: f32[2,3] = neg(%1) {stage=\"a\", sequence=2}"
      "%3: f32[2,3] = exp(%2) {stage=\"a\", sequence=3, offload=true}"
      "%4: f32[2,3] = mul(%2, %3) {stage=\"b\", sequence=4}"
      "%5: f32[2,3] = mul(%3, %4) {stage=\"b\", phase=\"backward\", sequence=4}"
      "%6: f32[2,3] = mul(%5, %1) {stage=\"a\", phase=\"backward\", sequence=1}"
      "%7: f32[2,3] = mul(%6, %0) {stage=\"a\", phase=\"backward\", sequence=0}"
      "%8: f32[] = sum(%7) {dim=[0, 1], keepdim=false, stage=\"a\", phase=\"backward\", sequence=0} return %8\n";
  const std::string around[] = {"data %0 (f32[2,3]) -> F0\ninvariant %1 (f32[3]) -> F0\n",
                                "edge F1 -> B1 (f32[2,3])\nedge B1 -> B0 (f32[2,3])\nsum B0 -> result 0 (f32[])\n"};
  const std::string sent = "edge F0 -> F1 (f32[2,3])\nedge F0 -> F1, B1 (f32[2,3])\n";
  const StageDag dag = cut_of(body);
  EXPECT_EQ(flows_of(dag), concat(around[0], sent, "edge F0 -> B0 (f32[2,3])\nedge F0 -> B0 (f32[2,3]) stays\n", around[1]));
  for (const StageTask& task : dag.tasks)
    for (const Op& op : task.graph->ops) EXPECT_FALSE(op.attributes.contains("offload"));  // else equal layers would be two tasks
  std::string plain = body;
  for (std::size_t at; (at = plain.find(", offload=true")) != std::string::npos;) plain.erase(at, 14);
  EXPECT_EQ(flows_of(cut_of(plain)), concat(around[0], sent, "edge F0 -> B0 (f32[2,3], f32[2,3])\n", around[1]));
}

// Stages b and c each add to what a sums; what a has of it itself, it adds.
TEST(CutBody, ASumInPlaceIsAddedToWhereItsTermsAreMade) {
  const StageDag dag = cut_of(
      "%0: f32[2,3] = mul(%x, %w) {stage=\"a\", sequence=0}"
      "%1: f32[2,3] = exp(%0) {stage=\"b\", sequence=1}"
      "%2: f32[2,3] = exp(%1) {stage=\"c\", sequence=2}"
      "%3: f32[2,3] = mul(%2, %0) {stage=\"c\", phase=\"backward\", sequence=2}"
      "%4: f32[2,3] = mul(%1, %0) {stage=\"b\", phase=\"backward\", sequence=1}"
      "%5: f32[2,3] = neg(%0) {stage=\"a\", phase=\"backward\", sequence=0}"
      "%6: f32[2,3] = add_n(%3, %4, %5) {in_place=true, stage=\"a\", phase=\"backward\", sequence=0}"
      "%7: f32[] = sum(%6) {dim=[0, 1], keepdim=false, stage=\"a\", phase=\"backward\", sequence=0} return %7\n");
  EXPECT_EQ(flows_of(dag),
            "data %0 (f32[2,3]) -> F0\n"
            "invariant %1 (f32[3]) -> F0\n"
            "edge F0 -> F1, B2, B1, B0 (f32[2,3])\n"
            "edge F1 -> F2, B1 (f32[2,3])\n"
            "edge F2 -> B2 (f32[2,3])\n"
            "edge B2, B1 -> B0 (f32[2,3])\n"
            "sum B0 -> result 0 (f32[])\n");
  EXPECT_EQ(join(ops_of(dag, 0, Kind::B), " "), "neg add_n sum");
  EXPECT_EQ(join(ops_of(dag, 1, Kind::B), " "), "mul");
}

// What is whole is all in the first slice (transform/slices.h).
TEST(CutBody, SlicesWithoutOpsHaveNumbersAndNoTasks) {
  Graph step = step_with(
      "%0: f32[2,3] = mul(%x, %w) {stage=\"a.0\", sequence=0}"
      "%1: f32[2,3] = exp(%0) {stage=\"b.0\", sequence=1}"
      "%2: f32[2,3] = exp(%1) {stage=\"b.1\", sequence=2}"
      "%3: f32[2,3] = mul(%2, %0) {stage=\"b.1\", phase=\"backward\", sequence=2}"
      "%4: f32[2,3] = mul(%3, %0) {stage=\"a.0\", phase=\"backward\", sequence=0}"
      "%5: f32[] = sum(%4) {dim=[0, 1], keepdim=false, stage=\"a.0\", phase=\"backward\", sequence=0} return %5\n");
  step.ops[loop_of(step)].attributes["stages"] = "a.0,a.1,b.0,b.1";
  const StagedStep staged = assign_stages(step);
  EXPECT_EQ(join(staged.stages, " "), "a.0 a.1 b.0 b.1");
  const StageDag dag = cut(staged, std::vector<bool>(4), {}, {.slices = 2});
  for (const Kind kind : {Kind::F, Kind::B}) EXPECT_TRUE(dag.tasks_of(StageId(1), kind).empty()) << name(kind);
  EXPECT_EQ(dag.shape.has_backward, std::vector<bool>(4, true)) << "of a stage, all its slices or none";
}

// A task of no ops adds what a collective made; where another op follows the collective, its task does.
TEST(CutBody, CollectivesAddToNothing) {
  const std::string sum =
      "%0: f32[2,3] = mul(%x, %w) {stage=\"a\"}"
      "%1: f32[] = sum(%0) {dim=[0, 1], keepdim=false, stage=\"a\"}"
      "%2: f32[] = all_reduce(%1) {axis=\"tensor\", size=2, stage=\"a\"}";
  const std::string flows =
      "data %0 (f32[2,3]) -> F0\n"
      "invariant %1 (f32[3]) -> F0\n"
      "edge F0 -> F0.1 (f32[])\n"
      "edge F0.1 -> F0.2 (f32[])\n"
      "sum F0.2 -> result 0 (f32[])\n";
  const StageDag alone = cut_of(sum + " return %2\n");
  EXPECT_EQ(flows_of(alone), flows);
  EXPECT_TRUE(alone.tasks.back().graph->ops.empty());
  const StageDag followed = cut_of(sum + "%3: f32[] = neg(%2) {stage=\"a\"} return %3\n");
  EXPECT_EQ(flows_of(followed), flows);
  EXPECT_EQ(followed.tasks.back().graph->ops.size(), 1u);
}

// Two linear layers and their backward as Megatron's f and g leave them: each collective is a task, and the weight's gradient the rest that
// runs beside the input gradient's.
constexpr const char* kReduced =
    "%0: f32[2,3] = mul(%x, %w) {stage=\"a\", sequence=0}"
    "%1: f32[2,3] = all_reduce(%0) {axis=\"tensor\", size=2, stage=\"a\", sequence=0}"
    "%2: f32[2,3] = exp(%1) {stage=\"b\", sequence=1}"
    "%3: f32[] = sum(%2) {dim=[0, 1], keepdim=false, stage=\"b\", sequence=2}"
    "%4: f32[2,3] = mul(%2, %1) {stage=\"b\", phase=\"backward\", sequence=1}"
    "%5: f32[2,3] = all_reduce(%4) {axis=\"tensor\", size=2, stage=\"b\", phase=\"backward\", sequence=1}"
    "%6: f32[3] = sum(%4) {dim=[0], keepdim=false, stage=\"b\", phase=\"backward\", sequence=1}"
    "%7: f32[2,3] = mul(%5, %x) {stage=\"a\", phase=\"backward\", sequence=0}"
    "%8: f32[3] = sum(%7) {dim=[0], keepdim=false, stage=\"a\", phase=\"backward\", sequence=0}"
    " return %3, %6, %8\n";

StagedStep reduced_step() {
  return assign_stages(
      test::graph_of(concat("graph @step(%x: f32[4,3], %w: f32[3]) -> (f32[], f32[3], f32[3]) {\n"
                            "  %0: f32[], %1: f32[3], %2: f32[3] = accumulate(%x, %w) {microbatches=2, split=1} (%x: f32[2,3], %w: f32[3]) "
                            "-> (f32[], f32[3], f32[3]) "
                            "{\n",
                            kReduced, "  }\n  return %0, %1, %2\n}\n")));
}

TEST(CutBody, TasksEndAtTheirCollectives) {
  test::expect_golden("stage/collectives.txt", print(cut(reduced_step(), {false, false})));
  test::expect_golden("stage/collectives_split.txt", print(cut(reduced_step(), {true, true})));
}

TEST(CutBody, RefusesToRecomputeWhatHasCollectives) {
  EXPECT_EQ(message_of([] { cut(reduced_step(), {false, false}, {true, false}); }),
            "stage 0 has collectives in its forward, which R does not do again\n"
            "  hint: set pipeline.recompute = \"inputs\" in place of R, or of batch.recompute");
}

TEST(CutBody, ValuesWithTheSameReadersAreOneBundle) {
  EXPECT_EQ(flows_of(cut_of("%0: f32[2,3] = mul(%x, %w) {stage=\"a\"}"
                            "%1: f32[2,3] = exp(%0) {stage=\"a\"}"
                            "%2: f32[2,3] = add(%0, %1) {stage=\"b\"}"
                            "%3: f32[2,3] = mul(%1, %2) {stage=\"c\"}"
                            "%4: f32[] = sum(%3) {dim=[0, 1], keepdim=false, stage=\"c\"} return %4\n")),
            "data %0 (f32[2,3]) -> F0\n"
            "invariant %1 (f32[3]) -> F0\n"
            "edge F0 -> F1 (f32[2,3])\n"
            "edge F0 -> F1, F2 (f32[2,3])\n"
            "edge F1 -> F2 (f32[2,3])\n"
            "sum F2 -> result 0 (f32[])\n");
}

TEST(CutBody, ConstantsAreClonedIntoTheirReaders) {
  const StageDag dag = cut_of(
      "%0: f32[2,3] = full() {dtype=f32, fill_value=2.0, size=[2, 3]}"
      "%1: f32[2,3] = mul(%x, %0) {stage=\"a\"}"
      "%2: f32[2,3] = add(%1, %0) {stage=\"b\"}"
      "%3: f32[] = sum(%2) {dim=[0, 1], keepdim=false, stage=\"b\"} return %3\n");
  EXPECT_EQ(flows_of(dag), "data %0 (f32[2,3]) -> F0\nedge F0 -> F1 (f32[2,3])\nsum F1 -> result 0 (f32[])\n");
  EXPECT_EQ(ops_of(dag, 0, Kind::F), (std::vector<std::string>{"full", "mul"}));
  EXPECT_EQ(ops_of(dag, 1, Kind::F), (std::vector<std::string>{"full", "add", "sum"}));
}

TEST(CutBody, ViewsAreTakenAgainOfWhatTheyView) {
  const StageDag dag = cut_of(
      "%0: f32[2,3] = mul(%x, %w) {stage=\"a\"}"
      "%1: f32[3,2] = transpose(%0) {dim0=0, dim1=1, stage=\"a\"}"
      "%2: f32[3,2] = exp(%1) {stage=\"b\"}"
      "%3: f32[] = sum(%2) {dim=[0, 1], keepdim=false, stage=\"b\"} return %3\n");
  EXPECT_EQ(flows_of(dag), "data %0 (f32[2,3]) -> F0\ninvariant %1 (f32[3]) -> F0\nedge F0 -> F1 (f32[2,3])\nsum F1 -> result 0 (f32[])\n");
  EXPECT_EQ(ops_of(dag, 0, Kind::F), (std::vector<std::string>{"mul"}));
  EXPECT_EQ(ops_of(dag, 1, Kind::F), (std::vector<std::string>{"transpose", "exp", "sum"}));
}

TEST(CutBody, AViewOfMuchMoreCrossesAsItIs) {
  const StageDag dag = cut_of(
      "%0: f32[2,3] = mul(%x, %w) {stage=\"a\"}"
      "%1: f32[1,3] = slice(%0) {dim=0, end=1, start=0, step=1, stage=\"a\"}"
      "%2: f32[1,3] = exp(%1) {stage=\"b\"}"
      "%3: f32[] = sum(%2) {dim=[0, 1], keepdim=false, stage=\"b\"} return %3\n");
  EXPECT_NE(flows_of(dag).find("edge F0 -> F1 (f32[1,3])\n"), std::string::npos) << flows_of(dag);
}

// A view counts once however many read it, and what its own stage reads counts not at all: less than the base crosses.
TEST(CutBody, ViewsAreWeighedByWhatCrosses) {
  EXPECT_EQ(flows_of(cut_of("%0: f32[2,3] = mul(%x, %w) {stage=\"a\"}"
                            "%1: f32[1,3] = slice(%0) {dim=0, end=1, start=0, step=1, stage=\"a\"}"
                            "%2: f32[1,3] = slice(%0) {dim=0, end=2, start=1, step=1, stage=\"a\"}"
                            "%3: f32[1,3] = neg(%1) {stage=\"a\"}"
                            "%4: f32[1,3] = exp(%2) {stage=\"b\"}"
                            "%5: f32[1,3] = mul(%2, %4) {stage=\"b\"}"
                            "%6: f32[] = sum(%5) {dim=[0, 1], keepdim=false, stage=\"b\"} return %6\n")),
            "data %0 (f32[2,3]) -> F0\ninvariant %1 (f32[3]) -> F0\nedge F0 -> F1 (f32[1,3])\nsum F1 -> result 0 (f32[])\n");
}

// Stage b takes a view of a's view; c takes b's view of that again, but not a's.
TEST(CutBody, AViewIsTakenAgainOfWhatOneTaskViewed) {
  EXPECT_EQ(flows_of(cut_of("%0: f32[2,3] = mul(%x, %w) {stage=\"a\"}"
                            "%1: f32[1,3] = slice(%0) {dim=0, end=1, start=0, step=1, stage=\"a\"}"
                            "%2: f32[3,1] = transpose(%1) {dim0=0, dim1=1, stage=\"b\"}"
                            "%5: f32[3,1] = neg(%2) {stage=\"b\"}"
                            "%3: f32[3,1] = mul(%2, %5) {stage=\"c\"}"
                            "%4: f32[] = sum(%3) {dim=[0, 1], keepdim=false, stage=\"c\"} return %4\n")),
            "data %0 (f32[2,3]) -> F0\ninvariant %1 (f32[3]) -> F0\nedge F0 -> F1, F2 (f32[1,3])\nedge F1 -> F2 (f32[3,1])\nsum F2 -> "
            "result 0 (f32[])\n");
}

TEST(CutBody, AJoinThatIsReadStaysWhereItIs) {
  EXPECT_EQ(flows_of(cut_of("%0: f32[] = sum(%x) {dim=[0, 1], keepdim=false, stage=\"a\"} %1: f32[] = exp(%0) {stage=\"b\"}"
                            "%2: f32[] = add_n(%0, %1) {stage=\"b\"} %3: f32[] = neg(%2) {stage=\"b\"} return %2\n")),
            "data %0 (f32[2,3]) -> F0\nedge F0 -> F1 (f32[])\nsum F1 -> result 0 (f32[])\n");
}

TEST(CutBody, AConstantIsAddedByTheFirstStage) {
  EXPECT_EQ(flows_of(cut_of("%0: f32[] = full() {dtype=f32, fill_value=0.0, size=[]} %1: f32[] = sum(%x) {dim=[0, 1], keepdim=false, "
                            "stage=\"a\"} %2: f32[] = exp(%1) {stage=\"b\"} return %0\n")),
            "data %0 (f32[2,3]) -> F0\nedge F0 -> F1 (f32[])\nsum F0 -> result 0 (f32[])\n");
}

// Over x (split), w and s (invariant), with two results.
StageDag cut_wide(const std::string& body, const CutOptions& options, const std::vector<bool>& recomputed = {}) {
  const StagedStep staged = assign_stages(
      parse_graph("penstock graph 1\n"
                  "graph @step(%x: f32[4,3], %w: f32[3], %s: f32[]) -> (f32[], f32[]) {\n"
                  "  %0: f32[], %1: f32[] = accumulate(%x, %w, %s) {microbatches=2, split=1} (%x: f32[2,3], %w: f32[3], %s: f32[]) -> "
                  "(f32[], f32[]) {\n" +
                  body + "  }\n  return %0, %1\n}\n"));
  return cut(staged, std::vector<bool>(staged.stages.size(), recomputed.empty()), recomputed, options);
}

// Where parameters may be gone, W reads none, but scalars and what the forward made with them; and what is made of parameters alone is made
// anew where it is read.
const std::string kParameters =
    "%0: f32[3] = neg(%w) {stage=\"a\"} %1: f32[2,3] = mul(%x, %0) {stage=\"a\"} %2: f32[2,3] = mul(%1, %0) {stage=\"b\"}"
    "%3: f32[2,3] = mul(%2, %w) {stage=\"b\", phase=\"backward\"} %4: f32[2,3] = mul(%2, %s) {stage=\"b\", phase=\"backward\"}"
    "%5: f32[2,3] = exp(%1) {stage=\"b\", phase=\"backward\"} %6: f32[2,3] = add_n(%3, %4, %5) {stage=\"b\", phase=\"backward\"}"
    "%7: f32[] = sum(%6) {dim=[0, 1], keepdim=false, stage=\"b\", phase=\"backward\"}"
    "%8: f32[] = sum(%2) {dim=[0, 1], keepdim=false, stage=\"b\"} return %7, %8\n";

TEST(CutBody, GatheredParametersAreReadAheadOfW) {
  const StageDag dag = cut_wide(kParameters, {.gathered = true});
  EXPECT_EQ(flows_of(dag),
            "data %0 (f32[2,3]) -> F0\ninvariant %1 (f32[3]) -> F0, F1, I1\ninvariant %2 (f32[]) -> W1\n"
            "edge F0 -> F1, W1 (f32[2,3])\nedge F1 -> I1, W1 (f32[2,3])\nedge I1 -> W1 (f32[2,3])\n"
            "sum F1 -> result 1 (f32[])\nsum W1 -> result 0 (f32[])\n");
  EXPECT_EQ(ops_of(dag, 1, Kind::F), (std::vector<std::string>{"neg", "mul", "sum"}));
  EXPECT_EQ(ops_of(dag, 1, Kind::I), (std::vector<std::string>{"mul"}));
  EXPECT_EQ(flows_of(cut_wide(kParameters, {})),
            "data %0 (f32[2,3]) -> F0\ninvariant %1 (f32[3]) -> F0, W1\ninvariant %2 (f32[]) -> W1\n"
            "edge F0 -> F1 (f32[3])\nedge F0 -> F1, W1 (f32[2,3])\nedge F1 -> W1 (f32[2,3])\n"
            "sum F1 -> result 1 (f32[])\nsum W1 -> result 0 (f32[])\n");
}

// W adds what I makes of a sum, but not what F makes.
TEST(CutBody, SumsInWAreOneAccumulator) {
  const std::string body =
      "%0: f32[2,3] = mul(%x, %w) {stage=\"a\"} %1: f32[2,3] = exp(%0) {stage=\"b\"}"
      "%2: f32[] = sum(%1) {dim=[0, 1], keepdim=false, stage=\"b\"} %3: f32[] = neg(%2) {stage=\"b\", phase=\"backward\"}"
      "%4: f32[2,3] = mul(%0, %3) {stage=\"a\", phase=\"backward\"} %5: f32[] = exp(%2) {stage=\"b\", phase=\"backward\"}"
      "%6: f32[] = add(%3, %5) {stage=\"b\", phase=\"backward\"} return %2, ";
  const auto sums = [&](const std::string& result, bool in_w) {
    const std::string flows = flows_of(cut_wide(body + result + "\n", {.sums_in_w = in_w}));
    return flows.substr(flows.find("sum "));
  };
  EXPECT_EQ(sums("%3", false), "sum F1 -> result 0 (f32[])\nsum I1 -> result 1 (f32[])\n");
  EXPECT_EQ(sums("%3", true), "sum F1 -> result 0 (f32[])\nsum W1 -> result 1 (f32[])\n");
  EXPECT_EQ(sums("%6", true), "sum F1 -> result 0 (f32[])\nsum W1 -> result 1 (f32[])\n");
}

// R of stage a takes what b reads anyway from the light F if its backward reads that too, and else makes it again; constants too.
TEST(CutBody, RecomputationTakesWhatLivesAnyway) {
  const auto again = [](const std::string& read) {
    return cut_wide(
        "%0: f32[2,3] = full() {dtype=f32, fill_value=2.0, size=[2, 3]} %1: f32[2,3] = exp(%x) {stage=\"a\"}"
        "%2: f32[2,3] = mul(%1, %0) {stage=\"a\"} %3: f32[2,3] = neg(%1) {stage=\"b\"}"
        "%4: f32[] = sum(%3) {dim=[0, 1], keepdim=false, stage=\"b\"} %5: f32[2,3] = mul(%2, " +
            read +
            ") {stage=\"a\", phase=\"backward\"} %6: f32[] = sum(%5) {dim=[0, 1], keepdim=false, stage=\"a\", phase=\"backward\"} return "
            "%4, "
            "%6\n",
        {}, {true, true});
  };
  EXPECT_EQ(flows_of(again("%1")),
            "data %0 (f32[2,3]) -> F0, F0_light\nedge F0, F0_light -> F1, B0, R0 (f32[2,3])\nedge F0, R0 -> B0 (f32[2,3])\n"
            "sum F1 -> result 0 (f32[])\nsum B0 -> result 1 (f32[])\n");
  EXPECT_EQ(ops_of(again("%1"), 0, Kind::R), (std::vector<std::string>{"full", "mul"}));
  EXPECT_EQ(flows_of(again("%2")),
            "data %0 (f32[2,3]) -> F0, F0_light, R0\nedge F0, F0_light -> F1 (f32[2,3])\nedge F0, R0 -> B0 (f32[2,3])\n"
            "sum F1 -> result 0 (f32[])\nsum B0 -> result 1 (f32[])\n");
  EXPECT_EQ(ops_of(again("%2"), 0, Kind::R), (std::vector<std::string>{"exp", "full", "mul"}));
}

TEST(CutBody, ShapesSayWhatValidTablesMayDo) {
  const StageDag dag = cut_wide(kParameters, {});
  EXPECT_EQ(dag.shape.predecessors, (std::vector<std::vector<std::int32_t>>{{}, {0}}));
  EXPECT_EQ(dag.shape.has_backward, (std::vector<bool>{false, true}));
  EXPECT_EQ(dag.shape.has_parameters, (std::vector<bool>{true, true}));
  EXPECT_EQ(cut_of("%0: f32[] = sum(%x) {dim=[0, 1], keepdim=false} return %0\n").shape.has_parameters, std::vector<bool>{false});
  // Stage 2 reads stage 1, and its backward alone gives to stage 0.
  const StageDag mirrored = cut_wide(
      "%0: f32[2,3] = exp(%x) {stage=\"a\"} %1: f32[2,3] = neg(%x) {stage=\"b\"} %2: f32[2,3] = exp(%1) {stage=\"c\"}"
      "%3: f32[2,3] = mul(%2, %2) {stage=\"c\", phase=\"backward\"} %4: f32[2,3] = mul(%0, %3) {stage=\"a\", phase=\"backward\"}"
      "%5: f32[] = sum(%2) {dim=[0, 1], keepdim=false, stage=\"c\"}"
      "%6: f32[] = sum(%4) {dim=[0, 1], keepdim=false, stage=\"a\", phase=\"backward\"} return %5, %6\n",
      {}, {false, true, true});
  EXPECT_EQ(mirrored.shape.predecessors, (std::vector<std::vector<std::int32_t>>{{}, {}, {0, 1}}));
  EXPECT_FALSE(mirrored.task(StageId(0), Kind::R));  // not asked for
  EXPECT_TRUE(mirrored.task(StageId(2), Kind::R));
}

TEST(CutBody, ALoopResultIsNoLoopInput) {
  EXPECT_EQ(message_of([] {
              Graph step = step_with("%0: f32[] = sum(%x) {dim=[0, 1], keepdim=false, stage=\"a\"} return %0\n");
              auto body = std::make_shared<Graph>(*step.ops[0].body);
              body->outputs = {body->inputs[1]};
              step.ops[0].body = body;
              cut({step, {"a"}}, {false});
            }),
            "loop result 1 of @body is a loop input\n  a loop result is a sum over micro-batches of something computed in the loop");
}

// The types of the bundles that a task reads or writes, one after the other.
std::vector<TensorType> types_of(const StageDag& dag, const std::vector<BundleId>& bundles) {
  std::vector<TensorType> out;
  for (BundleId b : bundles) {
    const std::vector<TensorType>& types = dag.bundles[b].types;
    out.insert(out.end(), types.begin(), types.end());
  }
  return out;
}

void expect_good(const StageDag& dag, const CutOptions& options) {
  for (const StageTask& task : dag.tasks) {
    SCOPED_TRACE(task.graph->name);
    EXPECT_EQ(message_of([&] { verify(task.graph); }), "no error");
    EXPECT_EQ(types_of(task.graph, task.graph->inputs), types_of(dag, task.reads));
    EXPECT_EQ(types_of(task.graph, task.graph->outputs), types_of(dag, task.writes));
    for (BundleId b : task.reads) {
      const Bundle::Source source = dag.bundles[b].source;
      EXPECT_NE(source, Bundle::Source::accumulator);
      const bool is_parameter = source == Bundle::Source::invariant && !dag.bundles[b].types[0].shape.empty();
      EXPECT_FALSE(options.gathered && task.kind == Kind::W && is_parameter) << "W reads a parameter that may be gone";
    }
    for (BundleId b : task.writes)
      EXPECT_FALSE(options.sums_in_w && task.kind == Kind::I && dag.task(task.stage, Kind::W) &&
                   dag.bundles[b].source == Bundle::Source::accumulator)
          << "I adds to a sum of which W is the last";
  }
  for (const Bundle& bundle : dag.bundles)
    for (StageTaskId reader : bundle.readers)
      EXPECT_EQ(std::ranges::find(bundle.producers, reader), bundle.producers.end()) << "a task reads what it gives away";
}

TEST(CutBody, EveryCutIsGood) {
  for (std::uint64_t seed = 0; seed < test::rounds(40u); ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    test::Random random(seed);
    ModelOptions sizes;
    sizes.stages = 4;
    sizes.numbers = {{"width", 8}, {"context", 4}, {"vocabulary", 16}};
    const bool is_gpt = test::coin(random, 0.5);
    if (is_gpt) sizes.numbers.insert({{"heads", 2}, {"layers", 4}});
    const auto model = make_model(builtin_models(), is_gpt ? "gpt" : "two-branch", sizes);
    const CutOptions options{.sums_in_w = test::coin(random, 0.5), .gathered = test::coin(random, 0.5)};
    const StagedStep staged = prepare_stages(gradient_step(*model, {4, 4, 2}), !options.gathered);
    std::vector<bool> splits, recomputed;
    for (std::size_t s = 0; s < staged.stages.size(); ++s) {
      splits.push_back(test::coin(random, 0.5));
      recomputed.push_back(test::coin(random, 0.5));
    }
    expect_good(cut(staged, splits, recomputed, options), options);
  }
}

}  // namespace
}  // namespace penstock
