// SPDX-License-Identifier: Apache-2.0
// Penstock as a library: a step as text is compiled, planned, predicted and run without a Model.
#include "penstock/session.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "base/text.h"
#include "models/registry.h"
#include "penstock/compile.h"
#include "penstock/costs.h"
#include "penstock/op.h"
#include "penstock/plan_step.h"
#include "penstock/predict.h"
#include "penstock/race.h"
#include "support/errors.h"
#include "support/paths.h"

namespace penstock {
namespace {

using test::message_of;

// Two layers and gradient descent: state "first" and "second", data "x" and "y", four micro-batches of four samples; no stage marks.
Graph step() {
  const std::string file = test::tests_folder() + "/../examples/graphs/two-layers.step";
  return parse_graph(read_file(file), file);
}

HostTensor drawn(const Shape& shape) {
  std::vector<float> numbers;
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  for (std::int64_t i = 0; i < count; ++i) numbers.push_back(0.3f * std::sin(1.7f * static_cast<float>(i) + 0.3f));
  return host_tensor<float>(shape, numbers);
}

const HostTensors kState = {{"first", drawn({16, 8})}, {"second", drawn({4, 16})}}, kData = {{"x", drawn({16, 8})}, {"y", drawn({16, 4})}};

Program alone() {
  return compile(step(), make_schedule("sequential", {.actors = 1, .microbatches = 4}));
}

PlannedStep planned() {
  return plan_step(step(), uniform_cluster(2, 1e10), planner_named("best"), "v100", {.seconds = 0.5});
}

struct Outcome {
  std::vector<float> losses;
  HostTensors state;
};

Outcome run(const Program& program) {
  Session session(static_cast<int>(program.devices.size()));
  session.load("train", program);
  session.set_state(kState);
  Outcome out;
  for (int i = 0; i < 4; ++i) out.losses.push_back(values<float>(session.step("train", kData).outputs.at("loss"))[0]);
  for (const auto& [name, value] : kState) out.state[name] = session.state(name);
  return out;
}

void expect_equal(const Outcome& a, const Outcome& b) {
  for (std::size_t i = 0; i < a.losses.size(); ++i) EXPECT_NEAR(a.losses[i], b.losses[i], 1e-5 * std::abs(b.losses[i]));
  for (const auto& [name, state] : a.state) {
    const std::vector<float> x = values<float>(state), y = values<float>(b.state.at(name));
    ASSERT_EQ(x.size(), y.size());
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], y[i], 1e-5) << name << " " << i;
  }
}

// Rates follow from the norms of whole parameters, of which each device has a part, alone or with its node's.
TEST(Session, SumsStatesThatDevicesHoldInParts) {
  std::string text = print(step());
  for (const auto& [product, sum, parameter, type] :
       {std::array{"%3", "%1", "%first", "f32[16,8]"}, {"%5", "%2", "%second", "f32[4,16]"}}) {
    const std::string update = concat("  ", product, ": ", type, " = mul(", sum, ")"), own = concat("%rate.", sum + 1);
    ASSERT_NE(text.find(update), std::string::npos) << text;
    text.replace(text.find(update), update.size(),
                 concat("  ", own, ".squares: ", type, " = mul(", parameter, ", ", parameter, ")\n  ", own, ": f32[] = sum(", own,
                        ".squares) {dim=[0, 1], keepdim=false}\n  ", own, ".gradient: ", type, " = mul(", sum, ", ", own, ")\n  ", product,
                        ": ", type, " = mul(", own, ".gradient)"));
  }
  const Graph by_norms = parse_graph(text, "by norms");
  const Outcome expected = run(compile(by_norms, make_schedule("sequential", {.actors = 1, .microbatches = 4})));
  EXPECT_NE(values<float>(expected.state.at("first")), values<float>(run(alone()).state.at("first")));
  for (const auto& [devices, zero, local] : {std::array{2, 0, 1}, {2, 1, 1}, {2, 2, 1}, {2, 3, 1}, {4, 3, 1}, {4, 3, 2}}) {
    SCOPED_TRACE(concat(devices, " devices, zero ", zero, ", local ", local));
    const Schedule schedule = make_schedule("sequential", {.actors = 1, .microbatches = 4 / devices});
    expect_equal(run(compile(by_norms, schedule, {.devices = {devices}, .zero = zero, .local = local})), expected);
  }
}

TEST(Session, AStepAsTextIsPlannedPredictedAndRun) {
  const PlannedStep two = planned();
  ASSERT_EQ(two.plan.stages.size(), 2u) << print(two.plan);
  const Program program = compile(two.step, two.schedule);
  const Prediction prediction = predict(program, "v100", "nvlink2");
  EXPECT_GT(prediction.seconds, 0);
  EXPECT_GE(prediction.seconds, prediction.lower_bound);
  EXPECT_EQ(prediction.memory.size(), 2u);
  EXPECT_EQ(prediction.timeline.devices.size(), 2u);
  const Outcome reference = run(alone());
  EXPECT_LT(reference.losses[3], reference.losses[0]);
  expect_equal(run(program), reference);
}

TEST(Session, AnyScheduleAndAnyGroupsDoTheSame) {
  const Outcome reference = run(alone());
  for (const char* name : {"gpipe", "1f1b", "zb-h1"})
    expect_equal(run(compile(planned().step, make_schedule(name, {.actors = 2, .microbatches = 4}))), reference);
  for (const int zero : {0, 1, 3}) {
    const Program grouped =
        compile(planned().step, make_schedule("1f1b", {.actors = 2, .microbatches = 2}), {.devices = {2, 2}, .zero = zero});
    ASSERT_EQ(grouped.devices.size(), 4u);
    expect_equal(run(grouped), reference);
  }
}

// Each makes one step with the state that the one before leaves, which it has on other devices and in other pieces.
TEST(Session, ProgramsTakeTurnsOnOneState) {
  const Graph marked = planned().step;
  const auto table = [](int microbatches) { return make_schedule("1f1b", {.actors = 2, .microbatches = microbatches}); };
  const std::vector<Program> programs = {compile(marked, table(2), {.devices = {2, 2}, .zero = 1}), compile(marked, table(4)), alone(),
                                         compile(marked, table(2), {.devices = {2, 2}, .zero = 3})};
  const Outcome reference = run(alone());
  for (const bool unloads : {false, true}) {
    Session session(4);
    if (!unloads)
      for (std::size_t p = 0; p < programs.size(); ++p) session.load(concat("program ", p), programs[p]);
    Outcome out;
    for (std::size_t p = 0; p < programs.size(); ++p) {
      session.load(concat("program ", p), programs[p]);
      if (p == 0) session.set_state(kState);
      if (p > 0 && unloads) session.unload(concat("program ", p - 1));
      out.losses.push_back(values<float>(session.step(concat("program ", p), kData).outputs.at("loss"))[0]);
    }
    for (const auto& [name, value] : kState) out.state[name] = session.state(name);
    expect_equal(out, reference);
    const std::vector<StatePiece> pieces = session.pieces();
    if (unloads) EXPECT_GT(std::ranges::count(pieces, "first", &StatePiece::tensor), 1);
  }
}

TEST(Session, SaysWhereStateLies) {
  const Program grouped = compile(planned().step, make_schedule("1f1b", {.actors = 2, .microbatches = 2}), {.devices = {2, 2}, .zero = 3});
  Session session(4);
  session.load("train", grouped);
  std::map<std::string, std::int64_t> elements;
  for (const StatePiece& piece : session.pieces()) elements[piece.tensor] += piece.end - piece.begin;
  EXPECT_EQ(elements, (std::map<std::string, std::int64_t>{{"first", 128}, {"second", 64}}));
  session.set_state(kState);
  EXPECT_EQ(session.state("first").bytes, kState.at("first").bytes);
}

// A device that owns columns has an entry for each row.
TEST(Session, SaysWhereColumnsLie) {
  Session session(2);
  session.load("held", parse_program(R"(penstock program 1
program @held {microbatches=1}
device 0 {state_bytes=64, step_bytes=0, scratch_bytes=0}
  slot %w state @0 (f32[2,2] "w[0:2/5]")
device 1 {state_bytes=64, step_bytes=0, scratch_bytes=0}
  slot %w state @0 (f32[2,3] "w[2:5/5]")
)"));
  const HostTensor w = host_tensor<float>({2, 5}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  session.set_state({{"w", w}});
  EXPECT_EQ(session.state("w").type, (TensorType{DType::f32, {10}}));
  EXPECT_EQ(session.state("w").bytes, w.bytes);
  std::string text;
  for (const StatePiece& piece : session.pieces())
    text += concat(piece.tensor, " on ", piece.device, " ", piece.begin, "-", piece.end, "; ");
  EXPECT_EQ(text, "w on 0 0-2; w on 0 5-7; w on 1 2-5; w on 1 7-10; ");
}

TEST(Session, AModelIsTrainedAndEvaluated) {
  ModelOptions options;
  const ModelEntry& entry = builtin_models().at("gpt");
  options.numbers = entry.numbers;
  for (const auto& [key, value] : {std::pair{"layers", 2.0}, {"width", 16.0}, {"heads", 2.0}, {"context", 8.0}})
    options.numbers[key] = value;
  options.words = entry.words;
  options.stages = 2;
  const std::unique_ptr<Model> model = entry.make(options);
  const ModelPrograms programs = compile(*model, {4, 8}, {}, make_schedule("1f1b", {.actors = 2, .microbatches = 2}));
  Session session(2);
  session.load("train", programs.training);
  session.load("evaluate", programs.evaluation);
  session.initialise(model->parameters(), 7);
  std::vector<std::int64_t> tokens(32);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int64_t>(i * 7 % 64);
  const HostTensors batch = {{"tokens", host_tensor<std::int64_t>({4, 8}, tokens)},
                             {"targets", host_tensor<std::int64_t>({4, 8}, tokens)},
                             {"rows", host_tensor<std::int64_t>({4}, {0, 1, 2, 3})},
                             {"seed", host_tensor<std::int64_t>({}, {7})}};
  const auto evaluated = [&] { return values<float>(session.step("evaluate", batch).outputs.at("loss_sum"))[0]; };
  const float before = evaluated();
  for (int i = 0; i < 10; ++i) session.step("train", batch);
  EXPECT_LT(evaluated(), before);
  const StepReport report = session.step("train", batch, /*record=*/true);
  EXPECT_EQ(report.timeline.devices.size(), 2u);
  EXPECT_FALSE(report.timeline.activities.empty());
  const TimedStep train = [&] { return session.step("train", batch).seconds; };
  EXPECT_GT(race({train, train}, {.rounds = 1, .steps = 2})[1].median, 0);
}

TEST(Session, MistakesAreNamed) {
  Session session(2);
  EXPECT_EQ(message_of([&] { session.step("train", {}); }), "no program is loaded as \"train\"");
  session.load("train", alone());
  EXPECT_EQ(message_of([&] { session.step("trian", {}); }), "no program is loaded as \"trian\"\n  hint: did you mean \"train\"?");
  EXPECT_EQ(message_of([&] { session.step("train", {{"x", kData.at("x")}}); }),
            "program @two_layers reads \"y\", f32[16,4]; it is not given");
  EXPECT_EQ(message_of([&] { session.step("train", {{"z", kData.at("x")}}); }).substr(0, 38), "program @two_layers reads no data \"z\"\n");
  EXPECT_EQ(message_of([&] { session.step("train", {{"x", kData.at("x")}, {"y", drawn({4, 16})}}); }),
            "program @two_layers reads \"y\" as f32[16,4]; it is given as f32[4,16]");
  EXPECT_EQ(message_of([&] { session.set_state({{"frist", drawn({16, 8})}}); }),
            "no loaded program has the state \"frist\"\n  hint: did you mean \"first\"?");
  EXPECT_EQ(message_of([&] { session.set_state({{"first", drawn({8, 16})}}); }),
            "the state \"first\" is f32[16,8]; it is given as f32[8,16] in 512 bytes");
  EXPECT_EQ(message_of([&] { session.state("third"); }), "no loaded program has the state \"third\"");
  EXPECT_EQ(message_of([&] { session.load("train", compile(planned().step, make_schedule("gpipe", {.actors = 2, .microbatches = 4}))); }),
            "another program is loaded as \"train\"");
  EXPECT_EQ(message_of([&] { Session(1).load("t", compile(planned().step, planned().schedule)); }),
            "program @two_layers is for 2 devices, the session has 1");
  EXPECT_EQ(message_of([&] { host_tensor<float>({2, 2}, {1, 2, 3}); }), "f32[2,2] is given 3 values");
  EXPECT_EQ(message_of([&] { values<double>(kData.at("x")); }), "the tensor is f32[16,8], asked for are f64 values");
  EXPECT_TRUE(message_of([&] { Session none(0); }).starts_with("a session of 0 devices"));
}

std::vector<TensorType> like_first(const Op&, std::span<const TensorType> operands) {
  return {operands[0]};
}
void twice(const Op&, std::span<const TensorMemory> operands, std::span<const TensorMemory> results) {
  for (std::int64_t i = 0; i < operands[0].type.elements(); ++i) results[0].as<float>()[i] = 2 * operands[0].as<float>()[i];
}
std::vector<Tensor> twice_gradient(const VjpArguments& a) {
  return {a.cotangents[0] * 2};
}

TEST(OwnOp, IsTracedDifferentiatedAndRun) {
  register_op({.name = "test::twice", .infer = like_first, .vjp = twice_gradient, .elementwise = true, .compute = twice});
  // On a transposed view, so the kernel gets a dense copy.
  Graph graph = trace("own", {{"w", {DType::f32, {3, 2}}}, {"x", {DType::f32, {4, 2}}}}, [](const std::vector<Tensor>& in) {
    const std::vector<Tensor> sums = accumulate({in[1]}, 2, [&](const std::vector<Tensor>& part) {
      Parameters weights;
      weights.set("w", in[0]);
      const auto [loss, gradient] = value_and_grad(
          captured(weights), [&](const Parameters& p) { return sum(mm(part[0], own_op("test::twice", {transpose(p["w"], 0, 1)})[0])); });
      return std::vector{loss, gradient["w"]};
    });
    return std::vector{in[0] - sums[1], sums[0]};
  });
  graph.state = 1;
  graph.output_names = {"loss"};
  Session session(1);
  session.load("own", compile(graph, make_schedule("sequential", {.actors = 1, .microbatches = 2})));
  session.set_state({{"w", host_tensor<float>({3, 2}, {1, 2, 3, 4, 5, 6})}});
  const StepReport report = session.step("own", {{"x", host_tensor<float>({4, 2}, {1, 0, 0, 1, 1, 1, 2, 0})}});
  EXPECT_EQ(values<float>(report.outputs.at("loss")), std::vector<float>{2 * (4 * 9 + 2 * 12)});
  EXPECT_EQ(values<float>(session.state("w")), (std::vector<float>{1 - 8, 2 - 4, 3 - 8, 4 - 4, 5 - 8, 6 - 4}));

  EXPECT_EQ(message_of([] { register_op({.name = "add", .infer = like_first, .compute = twice}); }),
            "an op \"add\" is known already\n  hint: give your own a prefix: mine::swish");
  EXPECT_EQ(message_of([] { register_op({.name = "test::twice", .infer = like_first, .compute = twice}); }).substr(0, 30),
            "an op \"test::twice\" is known a");
  EXPECT_EQ(message_of([] { register_op({.name = "test::none", .infer = like_first}); }),
            "op \"test::none\" has no compute\n  hint: an op of one's own says its results' types and computes them");
}

}  // namespace
}  // namespace penstock
