// The cut of a loop's body, text in and text out, and what every cut must satisfy.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "lower/lower.h"
#include "models/registry.h"
#include "ops/verify.h"
#include "penstock/step.h"
#include "stage/stages.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/text_graphs.h"

namespace penstock {
namespace {

using test::message_of;
using test::step_with;

// What flows between the tasks, a line for each bundle.
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
  for (const Op& op : dag.tasks[static_cast<std::size_t>(dag.task(stage, kind))].graph.ops) out.push_back(op.name);
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
std::vector<TensorType> types_of(const StageDag& dag, const std::vector<std::int32_t>& bundles) {
  std::vector<TensorType> out;
  for (std::int32_t b : bundles) {
    const std::vector<TensorType>& types = dag.bundles[static_cast<std::size_t>(b)].types;
    out.insert(out.end(), types.begin(), types.end());
  }
  return out;
}
std::vector<TensorType> types_of(const Graph& graph, const std::vector<ValueId>& values) {
  std::vector<TensorType> out;
  for (ValueId v : values) out.push_back(graph.type(v));
  return out;
}

void expect_good(const StageDag& dag, const CutOptions& options) {
  for (const StageTask& task : dag.tasks) {
    SCOPED_TRACE(task.graph.name);
    EXPECT_EQ(message_of([&] { verify(task.graph); }), "no error");
    EXPECT_EQ(types_of(task.graph, task.graph.inputs), types_of(dag, task.reads));
    EXPECT_EQ(types_of(task.graph, task.graph.outputs), types_of(dag, task.writes));
    for (std::int32_t b : task.reads) {
      const Bundle::Source source = dag.bundles[static_cast<std::size_t>(b)].source;
      EXPECT_NE(source, Bundle::Source::accumulator);
      const bool is_parameter = source == Bundle::Source::invariant && !dag.bundles[static_cast<std::size_t>(b)].types[0].shape.empty();
      EXPECT_FALSE(options.gathered && task.kind == Kind::W && is_parameter) << "W reads a parameter that may be gone";
    }
    for (std::int32_t b : task.writes)
      EXPECT_FALSE(options.sums_in_w && task.kind == Kind::I && dag.task(task.stage, Kind::W) >= 0 &&
                   dag.bundles[static_cast<std::size_t>(b)].source == Bundle::Source::accumulator)
          << "I adds to a sum of which W is the last";
  }
  for (const Bundle& bundle : dag.bundles)
    for (std::int32_t reader : bundle.readers)
      EXPECT_EQ(std::ranges::find(bundle.producers, reader), bundle.producers.end()) << "a task reads what it gives away";
}

TEST(CutBody, EveryCutIsGood) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    test::Random random(seed);
    ModelOptions sizes;
    sizes.stages = 4;
    sizes.numbers = {{"width", 8}, {"context", 4}, {"vocabulary", 16}};
    const bool is_gpt = test::coin(random, 0.5);
    if (is_gpt) sizes.numbers.insert({{"heads", 2}, {"layers", 4}});
    const auto model = make_model(builtin_models(), is_gpt ? "gpt" : "two-branch", sizes);
    const CutOptions options{.sums_in_w = test::coin(random, 0.5), .gathered = test::coin(random, 0.5)};
    const StagedStep staged = prepare_stages(gradient_step(*model, 4, 4, 2), !options.gathered);
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
