// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>

#include "ops/verify.h"
#include "penstock/graph.h"
#include "penstock/step.h"
#include "penstock/trace.h"
#include "support/errors.h"
#include "support/golden.h"

namespace penstock {
namespace {

using test::message_of;
using Tensors = std::vector<Tensor>;

const TensorType kRows{DType::f32, {4, 3}}, kMatrix{DType::f32, {3, 3}};

std::set<std::int64_t> sequences(const Graph& graph) {
  std::set<std::int64_t> found;
  for (const Op& op : graph.ops) {
    if (op.phase == Phase::forward) {
      EXPECT_TRUE(found.insert(op.sequence).second) << op.name << " shares sequence " << op.sequence;
    }
    if (!op.body) continue;
    for (const std::int64_t inner : sequences(*op.body)) EXPECT_TRUE(found.insert(inner).second) << "in the loop: " << inner;
  }
  return found;
}

const Op& loop_of(const Graph& graph) {
  for (const Op& op : graph.ops) {
    if (op.body) return op;
  }
  throw std::runtime_error("no loop");
}

TEST(Trace, GivesTheGraphOfItsBody) {
  const Graph graph = trace("square", {{"x", kRows}}, [](const Tensors& in) -> Tensors { return {in[0] * in[0]}; });
  verify(graph);
  EXPECT_EQ(print(graph),
            "penstock graph 1\n"
            "graph @square(%x: f32[4,3]) -> (f32[4,3]) {\n"
            "  %0: f32[4,3] = mul(%x, %x) {sequence=0}\n"
            "  return %0\n"
            "}\n");
}

TEST(Trace, AConstraintNamesDimsAndSoDoesItsGradient) {
  const Graph graph = trace("wish", {{"x", kMatrix}}, [](const Tensors& in) -> Tensors {
    Parameters parameters;
    parameters.set("x", in[0]);
    const auto sums = value_and_grad(parameters, [](const Parameters& p) { return sum(constrain(p["x"], {"", "embed"})); });
    return {sums.gradient["x"], constrain(sums.value, {})};
  });
  verify(graph);
  EXPECT_EQ(print(graph),
            "penstock graph 1\n"
            "graph @wish(%x: f32[3,3]) -> (f32[3,3], f32[]) {\n"
            "  %0: f32[3,3] = constrain(%x) {dims=\",embed\", sequence=0}\n"
            "  %1: f32[] = sum(%0) {dim=[0, 1], keepdim=false, sequence=1}\n"
            "  %2: f32[] = full() {dtype=f32, fill_value=1.0, size=[], phase=\"backward\", sequence=1}\n"
            "  %3: f32[3,3] = expand(%2) {size=[3, 3], phase=\"backward\", sequence=1}\n"
            "  %4: f32[3,3] = constrain(%3) {dims=\",embed\", phase=\"backward\", sequence=0}\n"
            "  return %4, %1\n"
            "}\n");
}

TEST(Trace, RefusesAConstraintThatDoesNotFit) {
  const auto refused = [](const std::vector<std::string>& names) {
    return message_of([&] { trace("wish", {{"x", kMatrix}}, [&](const Tensors& in) -> Tensors { return {constrain(in[0], names)}; }); });
  };
  EXPECT_EQ(refused({"embed"}),
            "constrain: 1 name for 2 dims of f32[3,3]\n  the names: {\"embed\"}\n"
            "  hint: give one name for each dim, \"\" for a dim without one");
  EXPECT_EQ(refused({"a,b", "c"}), "constrain: the name \"a,b\" of a dim has a comma");
}

TEST(Trace, RefusesAResultThatIsNoTensorOfIt) {
  EXPECT_EQ(message_of([] { trace("empty", {{"x", kRows}}, [](const Tensors&) -> Tensors { return {Tensor()}; }); }),
            "graph @empty: result 0 is no tensor");
}

TEST(Scopes, MarkTheOpsMadeWhileTheyLive) {
  const Graph graph = trace("marks", {{"x", kRows}}, [](const Tensors& in) -> Tensors {
    Tensor x = relu(in[0]);
    {
      const Stage stage("vision");
      const Origin block("h.0");
      x = relu(x);
      const Origin attention("h.0.attn");
      x = relu(x);
    }
    return {relu(x)};
  });
  std::vector<std::string> marks;
  for (const Op& op : graph.ops) marks.push_back(op.stage + "/" + op.origin);
  EXPECT_EQ(marks, (std::vector<std::string>{"/", "vision/h.0", "vision/h.0.attn", "/"}));
}

TEST(Scopes, AreRefusedOutsideATrace) {
  const std::string hint = "\n  hint: make it inside the function given to trace() or in a model's loss()";
  EXPECT_EQ(message_of([] { Stage stage("vision"); }), "Stage \"vision\" outside a trace" + hint);
  EXPECT_EQ(message_of([] { Origin origin("h.0"); }), "Origin \"h.0\" outside a trace" + hint);
  EXPECT_EQ(message_of([] { accumulate({}, 1, [](const Tensors&) { return Tensors(); }); }), "accumulate outside a trace" + hint);
  EXPECT_EQ(message_of([] { value_and_grad({}, [](const Parameters&) { return Tensor(); }); }), "value_and_grad outside a trace" + hint);
}

TEST(Scopes, EndWithATraceThatThrows) {
  message_of([] { trace("broken", {{"x", kRows}}, [](const Tensors& in) -> Tensors { return {matmul(in[0], in[0])}; }); });
  EXPECT_NE(message_of([] { Stage stage("vision"); }), "no error");
}

TEST(ParametersOfAModel, AreFoundByName) {
  trace("lookup", {{"x", kRows}, {"y", kMatrix}}, [](const Tensors& in) -> Tensors {
    Parameters parameters;
    parameters.set("wte.weight", in[0]);
    parameters.set("wte.weight", in[1]);
    EXPECT_EQ(parameters.size(), 1u);
    EXPECT_EQ(parameters["wte.weight"].value(), in[1].value());
    EXPECT_EQ(message_of([&] { parameters["wte.wieght"]; }),
              "no parameter \"wte.wieght\"\n  there are 1 parameters\n  hint: did you mean \"wte.weight\"?");
    return {};
  });
}

TEST(Accumulate, SplitsItsOperandsAndCapturesTheRest) {
  const Graph graph = trace("loop", {{"x", kRows}, {"scale", kMatrix}, {"unused", kMatrix}}, [](const Tensors& in) -> Tensors {
    const Tensor doubled = in[1] + in[1];
    return accumulate({in[0]}, 2, [&](const Tensors& part) -> Tensors {
      EXPECT_EQ(part[0].shape(), (Shape{2, 3}));
      const Tensor y = matmul(part[0], doubled);
      return {sum(matmul(y, in[1])), sum(matmul(y, doubled))};
    });
  });
  verify(graph);
  sequences(graph);
  const Op& loop = loop_of(graph);
  EXPECT_EQ(attribute<std::int64_t>(loop, "microbatches"), 2);
  EXPECT_EQ(attribute<std::int64_t>(loop, "split"), 1);
  // In order of first use, each once.
  EXPECT_EQ(loop.operands, (std::vector<ValueId>{graph.inputs[0], graph.ops[0].results[0], graph.inputs[1]}));
  EXPECT_EQ(loop.body->inputs.size(), 3u);
}

TEST(Accumulate, KeepsWhatDependsOnInvariantsOnlyBeforeTheLoop) {
  const Graph graph = trace("loop", {{"x", kRows}, {"w", kMatrix}}, [](const Tensors& in) -> Tensors {
    return accumulate({in[0]}, 2, [&](const Tensors& part) -> Tensors { return {sum(matmul(part[0], relu(in[1])))}; });
  });
  EXPECT_EQ(graph.ops.front().name, "relu");
  sequences(graph);
}

TEST(Accumulate, TakesAWholeOperandBesidesItsPart) {
  const Graph graph = trace("loop", {{"x", kRows}}, [](const Tensors& in) -> Tensors {
    return accumulate({in[0]}, 2, [&](const Tensors& part) -> Tensors { return {sum(part[0]) * sum(in[0])}; });
  });
  verify(graph);
  EXPECT_EQ(print(parse_graph(print(graph))), print(graph));
}

TEST(Accumulate, NamesTheCountsThatDivideTheBatch) {
  const auto with = [](std::int64_t rows, int microbatches) {
    return message_of([&] {
      trace("loop", {{"x", {DType::f32, {rows, 3}}}}, [&](const Tensors& in) -> Tensors {
        return accumulate({in[0]}, microbatches, [](const Tensors& part) -> Tensors { return {sum(part[0])}; });
      });
    });
  };
  EXPECT_EQ(with(10, 4),
            "a batch of 10 cannot be cut into 4 equal micro-batches\n"
            "  the first dimension of f32[10,3] is cut\n"
            "  hint: use 2 or 5 micro-batches, or a batch that is a multiple of 4");
  EXPECT_EQ(with(4, 8),
            "a batch of 4 cannot be cut into 8 equal micro-batches\n"
            "  the first dimension of f32[4,3] is cut\n"
            "  hint: use 4 micro-batches, or a batch that is a multiple of 8");
  EXPECT_EQ(with(4, 0), "accumulate over 0 micro-batches\n  hint: use 1 or more");
}

TEST(Accumulate, RefusesAScalar) {
  EXPECT_EQ(message_of([] {
              trace("loop", {{"x", {DType::f32, {}}}},
                    [](const Tensors& in) -> Tensors { return accumulate({in[0]}, 1, [](const Tensors& part) { return part; }); });
            }),
            "accumulate cannot split a scalar");
}

TEST(Accumulate, IsTheOnlyLoop) {
  EXPECT_EQ(message_of([] {
              trace("loop", {{"x", kRows}}, [](const Tensors& in) -> Tensors {
                return accumulate({in[0]}, 2, [](const Tensors& part) -> Tensors {
                  return accumulate({part[0]}, 2, [](const Tensors& p) -> Tensors { return {sum(p[0])}; });
                });
              });
            }),
            "accumulate inside accumulate\n  hint: a step has one loop: make the inner one part of the micro-batch");
}

TEST(ValueAndGradient, GivesZerosWhereTheLossDoesNotDepend) {
  const Graph graph = trace("gradient", {{"x", kRows}, {"w", kMatrix}, {"v", kMatrix}}, [](const Tensors& in) -> Tensors {
    Parameters parameters;
    parameters.set("w", in[1]);
    parameters.set("v", in[2]);
    const ValueAndGradient result = value_and_grad(parameters, [&](const Parameters& p) { return sum(relu(matmul(in[0], p["w"]))); });
    EXPECT_EQ(result.gradient["w"].shape(), in[1].shape());
    EXPECT_EQ(result.gradient["v"].shape(), in[2].shape());
    return {result.value, result.gradient["w"], result.gradient["v"]};
  });
  verify(graph);
}

TEST(ValueAndGradient, DifferentiatesCodeOnParametersAloneInTheLoop) {
  const Graph graph = trace("gradient", {{"x", kRows}, {"w", kMatrix}}, [](const Tensors& in) -> Tensors {
    Parameters parameters;
    parameters.set("w", in[1]);
    return accumulate({in[0]}, 2, [&](const Tensors& part) -> Tensors {
      const ValueAndGradient result = value_and_grad(parameters, [&](const Parameters& p) { return sum(matmul(part[0], relu(p["w"]))); });
      return {result.gradient["w"]};
    });
  });
  verify(graph);
  int backward = 0;
  for (const Op& op : loop_of(graph).body->ops) backward += op.phase == Phase::backward;
  EXPECT_GT(backward, 1);
}

TEST(ValueAndGradient, NeedsAScalar) {
  EXPECT_EQ(message_of([] {
              trace("gradient", {{"x", kRows}},
                    [](const Tensors&) -> Tensors { return {value_and_grad({}, [](const Parameters&) { return Tensor(); }).value}; });
            }),
            "value_and_grad: the loss is no tensor");
  EXPECT_EQ(message_of([] {
              trace("gradient", {{"x", kRows}}, [](const Tensors& in) -> Tensors {
                Parameters parameters;
                parameters.set("x", in[0]);
                return {value_and_grad(parameters, [](const Parameters& p) { return p["x"]; }).value};
              });
            }),
            "value_and_grad needs a scalar loss, not f32[4,3]\n  hint: sum it over the micro-batch");
}

}  // namespace
}  // namespace penstock
