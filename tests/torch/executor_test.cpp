// SPDX-License-Identifier: Apache-2.0
// How the executor binds memory: result modes, values in place, state across programs, ops by name.
#include "torch/executor.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/topk.h>
#include <gtest/gtest.h>

#include "program/memory_plan.h"
#include "support/errors.h"
#include "torch/device.h"
#include "torch/kernel.h"
#include "torch/run_graph.h"

namespace penstock {
namespace {

using test::GraphRunner;
using test::message_of;
using test::relative_difference;
using test::run_graph;

Graph graph_of(const std::string& body) {
  return parse_graph("penstock graph 1\n" + body);
}

at::Tensor normal(std::uint64_t seed, Shape shape, DType dtype = DType::f32) {
  std::mt19937_64 random(seed);
  return test::random_tensor(random, {dtype, std::move(shape)});
}

TEST(Executor, RunsALinearLayer) {
  const at::Tensor x = normal(1, {2, 3, 8}), w = normal(2, {5, 8}), b = normal(3, {5});
  const auto out = run_graph(R"(penstock graph 1
    graph @g(%x: f32[2,3,8], %w: f32[5,8], %b: f32[5]) -> (f32[2,3,5]) {
      %0: f32[2,3,5] = linear(%x, %w, %b)
      return %0
    })",
                             {x, w, b});
  EXPECT_LT(relative_difference(out[0], x.matmul(w.t()) + b), 1e-6);
}

// A weight's gradient is added to inside the product, through the transposition, without a temporary.
TEST(Executor, AddsToAResult) {
  GraphRunner runner(graph_of(R"(graph @g(%x: f32[6,4], %d: f32[6,3]) -> (f32[4,3], f32[3,4], f32[3], f32[6,3]) {
      %0: f32[4,6] = transpose(%x) {dim0=0, dim1=1}
      %1: f32[4,3] = mm(%0, %d)
      %2: f32[4,3] = mm(%0, %d)
      %3: f32[3,4] = transpose(%2) {dim0=0, dim1=1}
      %4: f32[3] = sum(%d) {dim=[0]}
      %5: f32[6,3] = exp(%d)
      return %1, %3, %4, %5
    })"),
                     std::vector<ResultMode>(4, ResultMode::add));
  const at::Tensor x = normal(1, {6, 4}), d = normal(2, {6, 3});
  runner.input(0).copy_(x);
  runner.input(1).copy_(d);
  for (std::size_t i = 0; i < 4; ++i) runner.output(i).fill_(1);
  runner.run();
  runner.run();
  const at::Tensor product = x.t().matmul(d);
  EXPECT_LT(relative_difference(runner.output(0), product * 2 + 1), 1e-6);
  EXPECT_LT(relative_difference(runner.output(1), product.t() * 2 + 1), 1e-6);
  EXPECT_LT(relative_difference(runner.output(2), d.sum(0) * 2 + 1), 1e-6);
  EXPECT_LT(relative_difference(runner.output(3), d.exp() * 2 + 1), 1e-6);
  EXPECT_EQ(runner.executor().extra_bytes(), 128) << "only exp needs a temporary";
}

// ATen's operators have temporaries of a device's allocator, beside the plan. What arenas take is not counted, nor what was allocated
// before, nor a temporary twice where another run has it again.
TEST(Executor, CountsWhatKernelsAllocateOnADevice) {
  const c10::Device standin = open_device("standin");
  const at::Tensor before = at::empty({1 << 20}, at::TensorOptions(at::kByte).device(standin));
  GraphRunner runner(graph_of(R"(graph @g(%x: f32[64,100]) -> (f32[64,100]) {
      %0: f32[64,100] = aten::cumsum(%x) {dim=0}
      return %0
    })"),
                     {}, standin);
  runner.input(0).zero_();
  runner.run();
  const std::int64_t extra = runner.executor().extra_bytes();
  constexpr std::int64_t kResult = 64 * 100 * 4;
  EXPECT_GE(extra, kResult) << "an operator by its name gives a new tensor, which is copied";
  EXPECT_LE(extra, 4 * kResult);
  for (int i = 0; i < 20; ++i) runner.run();
  EXPECT_EQ(runner.executor().extra_bytes(), extra);
}

// Outputs that are inputs, views of temporaries, the same value twice, or read again in the task.
TEST(Executor, DeliversEveryKindOfOutput) {
  const at::Tensor x = normal(1, {4, 6});
  const auto out =
      run_graph(graph_of(R"(graph @g(%x: f32[4,6]) -> (f32[4,6], f32[2,12], f32[2,12], f32[6,4], f32[4,2], f32[4,6], f32[4,6]) {
      %0: f32[4,6] = exp(%x)
      %1: f32[2,12] = reshape(%0) {shape=[2, 12]}
      %2: f32[4,6] = neg(%x)
      %3: f32[6,4] = transpose(%2) {dim0=0, dim1=1}
      %4: f32[4,2] = slice(%2) {dim=1, start=1, end=3, step=1}
      %5: f32[4,6] = add(%2, %0)
      return %x, %1, %1, %3, %4, %2, %5
    })"),
                {x});
  const at::Tensor e = x.exp();
  const at::Tensor expected[] = {x, e.view({2, 12}), e.view({2, 12}), -x.t(), -x.slice(1, 1, 3), -x, e - x};
  for (std::size_t i = 0; i < 7; ++i) EXPECT_LT(relative_difference(out[i], expected[i]), 1e-6) << i;
}

// A merge of heads cannot be a view: it gets memory of its own.
TEST(Executor, CopiesWhereAViewIsImpossible) {
  const at::Tensor x = normal(1, {2, 3, 4, 5});
  const auto out = run_graph(graph_of(R"(graph @g(%x: f32[2,3,4,5]) -> (f32[2,4,15], f32[2,4]) {
      %0: f32[2,4,3,5] = transpose(%x) {dim0=1, dim1=2}
      %1: f32[2,4,15] = reshape(%0) {shape=[2, 4, 15]}
      %2: f32[2,4,15] = neg(%1)
      %3: f32[2,4,15] = reshape(%0) {shape=[2, 4, 15]}
      %4: f32[2,4] = sum(%3) {dim=[2]}
      return %2, %4
    })"),
                             {x});
  const at::Tensor merged = x.transpose(1, 2).reshape({2, 4, 15});
  EXPECT_LT(relative_difference(out[0], -merged), 1e-6);
  EXPECT_LT(relative_difference(out[1], merged.sum(2)), 1e-5);
}

TEST(Executor, SplitsIntoViews) {
  const at::Tensor x = normal(1, {3, 10});
  const auto out = run_graph(graph_of(R"(graph @g(%x: f32[3,10]) -> (f32[3,4], f32[3,10]) {
      %0: f32[3,4], %1: f32[3,4], %2: f32[3,2] = split(%x) {dim=1, split_size=4}
      %3: f32[3,4] = add(%0, %1)
      %4: f32[3,10] = cat(%2, %1, %0) {dim=1}
      return %3, %4
    })"),
                             {x});
  EXPECT_LT(relative_difference(out[0], x.slice(1, 0, 4) + x.slice(1, 4, 8)), 1e-6);
  EXPECT_LT(relative_difference(out[1].slice(1, 0, 2), x.slice(1, 8, 10)), 1e-6);
  EXPECT_LT(relative_difference(out[1].slice(1, 6, 10), x.slice(1, 0, 4)), 1e-6);
}

// Programs of one device over named state: p' = p - g in place, and swap of two states.
std::shared_ptr<Program> state_program(const std::string& graph, const std::vector<std::string>& states) {
  auto program = std::make_shared<Program>();
  Task task;
  task.name = "U";
  task.graph = graph_of(graph);
  DeviceProgram device;
  Instruction run;
  run.task = TaskId(0);
  for (std::size_t i = 0; i < states.size(); ++i) {
    Slot slot;
    slot.name = "s" + states[i];
    slot.kind = SlotClass::state;
    slot.parts = {task.graph->type(task.graph->inputs[i])};
    slot.names = {states[i]};
    device.slots.push_back(slot);
    device.operands.emplace_back(static_cast<std::int64_t>(i));
    device.results.push_back({SlotId(static_cast<std::int64_t>(i)), ResultMode::update});
  }
  run.operands = run.results = static_cast<std::uint32_t>(states.size());
  device.instructions.push_back(run);
  program->tasks.push_back(std::move(task));
  program->devices.push_back(std::move(device));
  plan_memory(*program);
  return program;
}

at::Tensor state(Executor& executor, const Program& program, std::int64_t slot) {
  return tensor_at(executor.address(SlotId(slot)).data(), program.devices[0].slots[static_cast<std::size_t>(slot)].parts[0]);
}

TEST(Executor, UpdatesStateThatIsReadWhileItIsWritten) {
  // b' needs the old a after a' is known; c' is a product, which cannot be in place; d' and e' change places.
  const auto program = state_program(R"(graph @g(%a: f32[4,4], %b: f32[4,4], %c: f32[4,4], %d: f32[4,4], %e: f32[4,4])
        -> (f32[4,4], f32[4,4], f32[4,4], f32[4,4], f32[4,4]) {
      %0: f32[4,4] = mul(%a) {other=0.5}
      %1: f32[4,4] = add(%b, %a)
      %2: f32[4,4] = mm(%c, %c)
      return %0, %1, %2, %e, %d
    })",
                                     {"a", "b", "c", "d", "e"});
  auto executor = make_torch_executor();
  executor->load(program, 0);
  std::vector<at::Tensor> old;
  for (std::int64_t i = 0; i < 5; ++i) {
    state(*executor, *program, i).copy_(normal(static_cast<std::uint64_t>(i), {4, 4}));
    old.push_back(state(*executor, *program, i).clone());
  }
  executor->issue(program->devices[0].instructions[0]);
  const at::Tensor expected[] = {old[0] * 0.5, old[1] + old[0], old[2].matmul(old[2]), old[4], old[3]};
  for (std::int64_t i = 0; i < 5; ++i) EXPECT_LT(relative_difference(state(*executor, *program, i), expected[i]), 1e-6) << i;
}

// The column of %0 is an output in another shape. The plan copies it, so that %3 takes the place of %0 before %5 reads the output.
TEST(Executor, ReadsAnOutputAgainWhenWhatItShowsIsGone) {
  const at::Tensor x = normal(1, {4, 6}, DType::f64);
  const auto out = run_graph(graph_of(R"(graph @g(%x: f64[4,6]) -> (f64[2,2], f64[4,6], f64[2,2]) {
      %0: f64[4,6] = neg(%x)
      %1: f64[4] = select(%0) {dim=1, index=0}
      %2: f64[2,2] = reshape(%1) {shape=[2,2]}
      %3: f64[4,6] = abs(%x)
      %4: f64[4,6] = softmax(%3) {dim=1}
      %5: f64[2,2] = add_n(%2, %2)
      return %2, %4, %5
    })"),
                             {x});
  const at::Tensor column = -x.select(1, 0).reshape({2, 2});
  EXPECT_TRUE(out[0].equal(column));
  EXPECT_TRUE(out[2].equal(column + column));
}

TEST(Executor, WritesAStateOverWithItsTranspose) {
  const auto program = state_program(R"(graph @g(%a: f32[4,4]) -> (f32[4,4]) {
      %0: f32[4,4] = transpose(%a) {dim0=0, dim1=1}
      return %0
    })",
                                     {"a"});
  auto executor = make_torch_executor();
  executor->load(program, 0);
  const at::Tensor old = normal(1, {4, 4});
  state(*executor, *program, 0).copy_(old);
  executor->issue(program->devices[0].instructions[0]);
  EXPECT_TRUE(state(*executor, *program, 0).equal(old.t()));
}

TEST(Executor, KeepsStateAcrossPrograms) {
  const std::string two = R"(graph @g(%a: f32[3], %b: f32[2]) -> (f32[3], f32[2]) {
      %0: f32[3] = add(%a) {other=1.0}
      %1: f32[2] = add(%b) {other=2.0}
      return %0, %1
    })";
  const std::string one = R"(graph @g(%b: f32[2]) -> (f32[2]) {
      %0: f32[2] = mul(%b) {other=10.0}
      return %0
    })";
  const auto first = state_program(two, {"a", "b"}), second = state_program(one, {"b"});
  const auto third = state_program(two, {"a", "new"});
  auto executor = make_torch_executor();
  executor->load(first, 0);
  executor->issue(first->devices[0].instructions[0]);
  const std::byte* b_memory = executor->address(SlotId(1)).data();
  executor->load(second, 0);
  EXPECT_EQ(executor->address(SlotId(0)).data(), b_memory) << "a part that lies as wanted is not moved";
  executor->issue(second->devices[0].instructions[0]);
  executor->load(third, 0);
  executor->issue(third->devices[0].instructions[0]);
  executor->load(first, 0);
  EXPECT_EQ(state(*executor, *first, 0)[0].item().toDouble(), 2);
  EXPECT_EQ(state(*executor, *first, 1)[0].item().toDouble(), 20);
}

TEST(Executor, RunsUnknownOpsByName) {
  const at::Tensor x = normal(1, {3, 5}, DType::f64);
  const auto out =
      run_graph(graph_of(R"(graph @g(%x: f64[3,5], %i: i64[2]) -> (f64[3,5], f64[3,2], i64[3,2], f64[2,5], f64[6,5], f64[3,5]) {
      %0: f64[3,5] = aten::cumsum(%x) {dim=1}
      %1: f64[3,2], %2: i64[3,2] = aten::topk(%x) {k=2}
      %3: f64[2,5] = aten::index.Tensor(%x, %i) {lists=[1]}
      %4: f64[6,5] = aten::cat(%x, %0) {lists=[2]}
      %5: f64[3,5] = aten::clamp.Tensor(%x, %x) {none=[2]}
      return %0, %1, %2, %3, %4, %5
    })"),
                {x, at::arange(2)});
  EXPECT_LT(relative_difference(out[0], at::cumsum(x, 1)), 1e-14);
  EXPECT_LT(relative_difference(out[1], std::get<0>(at::topk(x, 2))), 1e-14);
  EXPECT_TRUE(out[2].equal(std::get<1>(at::topk(x, 2))));
  EXPECT_TRUE(out[3].equal(x.slice(0, 0, 2)));
  EXPECT_TRUE(out[4].slice(0, 3, 6).equal(out[0]));
  EXPECT_TRUE(out[5].equal(x));
}

std::string failure_of(const std::string& body) {
  return message_of(
      [&] { run_graph(graph_of("graph @g(%x: f64[3,5]) -> (f64[3,5]) {\n" + body + "\nreturn %0\n}"), {normal(1, {3, 5}, DType::f64)}); });
}

TEST(Executor, NamesOpsThatNobodyKnows) {
  EXPECT_EQ(failure_of("%0: f64[3,5] = aten::cumsumm(%x) {dim=1}"),
            "no kernel for op \"aten::cumsumm\"\n"
            "  Penstock does not define it, and libtorch's dispatcher has no operator of that name\n"
            "  hint: names are those of the dispatcher, with namespace and overload: aten::add.Tensor");
}

TEST(Executor, NamesWrongArgumentsOfOpsByName) {
  const std::string cumsum = "\n  schema: aten::cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor";
  EXPECT_EQ(failure_of("%0: f64[3,5] = aten::cumsum(%x)"),
            "op \"aten::cumsum\": argument \"dim\" has no attribute and no default" + cumsum);
  EXPECT_EQ(failure_of("%0: f64[3,5] = aten::cumsum(%x, %x) {dim=1}"),
            "op \"aten::cumsum\": it has 2 operands, the schema takes 1" + cumsum);
  EXPECT_EQ(failure_of("%0: f64[3,5] = aten::cumsum() {dim=1}"),
            "op \"aten::cumsum\": it has 0 operands, the schema wants more (absent ones stand in \"none\")" + cumsum);
  EXPECT_EQ(failure_of("%0: f64[3,5] = aten::cat(%x) {dim=1}"),
            "op \"aten::cat\": the lengths of its tensor lists are missing (attribute \"lists\")\n"
            "  schema: aten::cat(Tensor[] tensors, int dim=0) -> Tensor");
  EXPECT_EQ(failure_of("%0: f64[3,5] = aten::add_.Tensor(%x, %x)"),
            "op \"aten::add_.Tensor\": it writes to its operands; use its functional form\n"
            "  schema: aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)");
  EXPECT_EQ(failure_of("%0: f64[3,5] = aten::cumsum(%x) {dim=7}").substr(0, 83),
            "op \"aten::cumsum\" of task task: Dimension out of range (expected to be in range of ");
}

// Memory is made for what the graph declares. Most operators tell at once what they give, others once they run.
TEST(Executor, ChecksTheTypesOfOpsByName) {
  EXPECT_EQ(failure_of("%0: f64[3,5] = aten::mean.dim(%x) {dim=[1], keepdim=true}").substr(0, 74),
            "op \"aten::mean.dim\": its result 0 is f64[3,1], the graph declares f64[3,5]");
  EXPECT_EQ(failure_of("%0: f64[3,5] = aten::gt.Tensor(%x, %x)"),
            "op \"aten::gt.Tensor\": its result 0 is bool[3,5], the graph declares f64[3,5]\n"
            "  schema: aten::gt.Tensor(Tensor self, Tensor other) -> Tensor");
  EXPECT_EQ(failure_of("%0: f64[3,5], %1: f64[3,5] = aten::cumsum(%x) {dim=1}"),
            "op \"aten::cumsum\": it gives 1 tensors, the graph declares 2\n"
            "  schema: aten::cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor");
  const auto load = [](const std::string& body) {
    return message_of([&] { test::GraphRunner(graph_of("graph @g(%x: f64[3,5]) -> (i64[15,2]) {\n" + body + "\nreturn %0\n}")); });
  };
  EXPECT_EQ(load("%0: i64[15,2] = aten::cumsum(%x) {dim=1}").substr(0, 73),
            "op \"aten::cumsum\": its result 0 is f64[3,5], the graph declares i64[15,2]");
  const std::string nonzero = "graph @g(%x: f64[3,5]) -> (i64[15,2]) {\n%0: i64[15,2] = aten::nonzero(%x)\nreturn %0\n}";
  EXPECT_EQ(message_of([&] { run_graph(graph_of(nonzero), {normal(1, {3, 5}, DType::f64)}); }), "no error");
  EXPECT_EQ(message_of([&] { run_graph(graph_of(nonzero), {at::zeros({3, 5}, at::kDouble)}); }),
            "op \"aten::nonzero\": its result 0 is i64[0,2], the graph declares i64[15,2]\n"
            "  schema: aten::nonzero(Tensor self) -> Tensor");
}

TEST(Executor, RejectsAnUnknownKernel) {
  EXPECT_EQ(message_of([] {
              run_graph(graph_of("graph @g(%x: f32[2,2]) -> (f32[2,2]) {\n%0: f32[2,2] = mm(%x, %x) {kernel=\"fast\"}\nreturn %0\n}"),
                        {normal(1, {2, 2})});
            }),
            "op \"mm\": unknown kernel \"fast\"\n  known: \"mkl\", \"onednn\", \"penstock\"");
}

TEST(Executor, RejectsTokensOutsideTheVocabulary) {
  EXPECT_EQ(message_of([] {
              run_graph(graph_of("graph @g(%w: f32[4,2], %i: i64[3]) -> (f32[3,2]) {\n%0: f32[3,2] = embedding(%w, %i)\nreturn %0\n}"),
                        {normal(1, {4, 2}), at::arange(2, 5)});
            }),
            "embedding: index 4 is outside its 4 rows\n  hint: is a token outside the model's vocabulary?");
  // A table whose rows do not lie one after the other takes another way.
  EXPECT_EQ(message_of([] {
              run_graph(graph_of("graph @g(%w: f32[2,4], %i: i64[3]) -> (f32[3,2]) {\n%0: f32[4,2] = transpose(%w) {dim0=0, dim1=1}\n"
                                 "%1: f32[3,2] = embedding(%0, %i)\nreturn %1\n}"),
                        {normal(1, {2, 4}), at::arange(2, 5)});
            }),
            "embedding: index 4 is outside its 4 rows\n  hint: is a token outside the model's vocabulary?");
  EXPECT_EQ(message_of([] {
              run_graph(graph_of("graph @g(%l: f32[3,4], %t: i64[3]) -> (f32[], f32[3]) {\n"
                                 "%0: f32[], %1: f32[3] = cross_entropy(%l, %t) {ignore_index=-100}\nreturn %0, %1\n}"),
                        {normal(1, {3, 4}), at::arange(2, 5)});
            }),
            "cross_entropy: target 4 is outside its 4 classes\n  hint: targets to leave out are -100");
}

}  // namespace
}  // namespace penstock
