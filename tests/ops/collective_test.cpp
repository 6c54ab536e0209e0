// SPDX-License-Identifier: Apache-2.0
// Collectives as ops of graphs: a small interpreter runs a graph for all members of an axis at once, and gradients equal differences.
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>

#include "base/text.h"
#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/verify.h"
#include "transform/passes.h"

namespace penstock {
namespace {

using Numbers = std::vector<double>;
using Members = std::vector<Numbers>;  // a value of each member

// A tensor seen from one of its dims.
struct Lines {
  std::size_t outer = 1, size = 1, inner = 1;
  Lines(const Shape& shape, std::size_t dim) {
    for (std::size_t d = 0; d < shape.size(); ++d) (d < dim ? outer : d == dim ? size : inner) *= static_cast<std::size_t>(shape[d]);
  }
  // y[.., to : to + count, ..] = x[.., from : from + count, ..]; the dim has `from_size` and `to_size` elements.
  void move(const Numbers& x, std::size_t from, std::size_t from_size, Numbers& y, std::size_t to, std::size_t to_size,
            std::size_t count) const {
    for (std::size_t o = 0; o < outer; ++o)
      for (std::size_t e = 0; e < count * inner; ++e) y[(o * to_size + to) * inner + e] = x[(o * from_size + from) * inner + e];
  }
};

Numbers sum_of(const Members& x) {
  Numbers out = x[0];
  for (std::size_t m = 1; m < x.size(); ++m)
    for (std::size_t e = 0; e < out.size(); ++e) out[e] += x[m][e];
  return out;
}

Members run_collective(const Op& op, const Shape& shape, const Members& x) {
  const std::size_t n = x.size();
  const auto root = static_cast<std::size_t>(attribute_or(op, "root", std::int64_t{0}));
  const Lines lines(shape, static_cast<std::size_t>(attribute_or(op, "dim", std::int64_t{0})));
  const std::size_t piece = lines.size / n;
  Members y(n, Numbers(x[0].size()));
  for (std::size_t i = 0; i < n; ++i) {
    if (op.name == "all_reduce") y[i] = sum_of(x);
    if (op.name == "broadcast") y[i] = x[root];
    if (op.name == "reduce_gradient") y[i] = x[i];
    if (op.name == "keep_member" && i == root) y[i] = x[root];
    if (op.name == "all_gather") {
      y[i].resize(n * x[0].size());
      for (std::size_t j = 0; j < n; ++j) lines.move(x[j], 0, lines.size, y[i], j * lines.size, n * lines.size, lines.size);
    }
    if (op.name == "reduce_scatter") {
      y[i].resize(x[0].size() / n);
      lines.move(sum_of(x), i * piece, lines.size, y[i], 0, piece, piece);
    }
    if (op.name == "all_to_all")
      for (std::size_t j = 0; j < n; ++j) lines.move(x[j], i * piece, lines.size, y[i], j * piece, lines.size, piece);
  }
  return y;
}

// One op of one member; an operand of one element goes with all.
Numbers run_alone(const Graph& graph, const Op& op, const std::vector<Numbers>& operands) {
  const auto elements = static_cast<std::size_t>(graph.type(op.results[0]).elements());
  Numbers out(elements, 0);
  const auto at = [](const Numbers& x, std::size_t e) { return x[x.size() == 1 ? 0 : e]; };
  for (std::size_t e = 0; e < elements; ++e) {
    if (op.name == "full") out[e] = attribute<double>(op, "fill_value");
    if (op.name == "mul") out[e] = at(operands[0], e) * (operands.size() > 1 ? at(operands[1], e) : attribute<double>(op, "other"));
    if (op.name == "add_n")
      for (const Numbers& x : operands) out[e] += x[e];
    if (op.name == "expand" || op.name == "reshape") out[e] = at(operands[0], e);
    if (op.name == "sum")
      for (double x : operands[0]) out[e] += x;
  }
  return out;
}

// The outputs of all members.
std::vector<Members> run(const Graph& graph, const std::vector<Members>& inputs) {
  const std::size_t members = inputs[0].size();
  std::vector<Members> values(graph.values.size(), Members(members));
  for (std::size_t i = 0; i < inputs.size(); ++i) values[graph.inputs[i].index()] = inputs[i];
  for (const Op& op : graph.ops) {
    Members& out = values[op.results[0].index()];
    if (find_op(op.name)->collective) {
      out = run_collective(op, graph.type(op.operands[0]).shape, values[op.operands[0].index()]);
      continue;
    }
    EXPECT_TRUE(std::set<std::string>({"full", "mul", "add_n", "expand", "reshape", "sum"}).contains(op.name)) << op.name;
    for (std::size_t m = 0; m < members; ++m) {
      std::vector<Numbers> operands;
      for (ValueId operand : op.operands) operands.push_back(values[operand.index()][m]);
      out[m] = run_alone(graph, op, operands);
    }
  }
  std::vector<Members> outputs;
  for (ValueId output : graph.outputs) outputs.push_back(values[output.index()]);
  return outputs;
}

using Function = std::function<Tensor(Tensor, const MeshAxis&)>;

struct Case {
  std::string name;
  Function function;
};
const Case kCases[] = {
    {"all_reduce", [](Tensor x, const MeshAxis& a) { return all_reduce(x, a); }},
    {"all_gather", [](Tensor x, const MeshAxis& a) { return all_gather(x, 1, a); }},
    {"all_gather", [](Tensor x, const MeshAxis& a) { return all_gather(x, 0, a); }},
    {"reduce_scatter", [](Tensor x, const MeshAxis& a) { return reduce_scatter(x, 0, a); }},
    {"reduce_scatter", [](Tensor x, const MeshAxis& a) { return reduce_scatter(x, -1, a); }},
    {"broadcast", [](Tensor x, const MeshAxis& a) { return broadcast(x, a.size - 1, a); }},
    {"all_to_all", [](Tensor x, const MeshAxis& a) { return all_to_all(x, 0, a); }},
    {"all_to_all", [](Tensor x, const MeshAxis& a) { return all_to_all(x, 1, a); }},
    {"keep_member", [](Tensor x, const MeshAxis& a) { return keep_member(x, a.size / 2, a); }},
};

// Each member's loss: a weighted sum of the collective of x*x. Outputs: the loss and its gradient by x.
Graph graph_of(const Case& c, const MeshAxis& axis) {
  Builder builder("f");
  const Tensor x(&builder, builder.graph.add_input({DType::f64, {6, 6}}, "x").value);
  const Tensor y = c.function(x * x, axis);
  const Tensor weight(&builder, builder.graph.add_input(y.type(), "weight").value);
  const Tensor loss = sum(y * weight);
  const Tensor gradient = gradients(loss, std::vector{x})[0];
  builder.graph.outputs = {ValueId(loss.value()), ValueId(gradient.value())};
  verify(builder.graph);
  return std::move(builder.graph);
}

double total(const Members& losses) {
  return sum_of(losses)[0];
}

// The sum of all members' losses is quadratic in x, so central differences are exact but for rounding.
TEST(Collectives, GradientsAreThoseOfTheSumOfAllMembersLosses) {
  std::mt19937_64 random(1);
  const auto numbers = [&](std::size_t members, const TensorType& type) {
    Members out(members, Numbers(static_cast<std::size_t>(type.elements())));
    for (Numbers& member : out)
      for (double& x : member) x = std::uniform_real_distribution<double>(-1, 1)(random);
    return out;
  };
  for (const std::int64_t members : {1, 2, 3})
    for (const Case& c : kCases) {
      SCOPED_TRACE(concat(c.name, " of ", members));
      const Graph graph = graph_of(c, {"model", members});
      std::vector<Members> inputs;
      for (ValueId input : graph.inputs) inputs.push_back(numbers(static_cast<std::size_t>(members), graph.type(input)));
      const Members gradient = run(graph, inputs)[1];
      for (std::size_t m = 0; m < gradient.size(); ++m)
        for (std::size_t e = 0; e < gradient[m].size(); ++e) {
          const double x = inputs[0][m][e];
          inputs[0][m][e] = x + 0.5;
          const double above = total(run(graph, inputs)[0]);
          inputs[0][m][e] = x - 0.5;
          const double below = total(run(graph, inputs)[0]);
          inputs[0][m][e] = x;
          ASSERT_NEAR(gradient[m][e], above - below, 1e-12) << "member " << m << ", element " << e << "\n" << print(graph);
        }
    }
}

TEST(Collectives, EveryOneIsTriedAndReadsBackFromItsText) {
  std::set<std::string_view> tried;
  for (const Case& c : kCases) {
    tried.insert(c.name);
    const Graph graph = graph_of(c, {"data", 3});
    const Graph again = parse_graph(print(graph));
    verify(again);
    EXPECT_EQ(print(again), print(graph));
  }
  tried.insert("reduce_gradient");  // below
  tried.insert("shift_members");    // has no gradient; tests/torch/localise_test.cpp
  for (std::string_view name : op_names()) EXPECT_EQ(find_op(name)->collective, tried.contains(name)) << name;
}

// The gradient by x as one tensor that all members have: a change of it is a change on all.
TEST(Collectives, ReduceGradientGivesTheGradientByWhatMembersShare) {
  Builder builder("f");
  const Tensor x(&builder, builder.graph.add_input({DType::f64, {2}}, "x").value);
  const Tensor weight(&builder, builder.graph.add_input({DType::f64, {2}}, "weight").value);
  const Tensor shared_x = reduce_gradient(x, {"model", 3});
  const Tensor loss = sum(shared_x * shared_x * weight);
  builder.graph.outputs = {ValueId(gradients(loss, std::vector{x})[0].value())};
  const Members gradient = run(builder.graph, {Members(3, {5, 7}), {{1, 2}, {3, 4}, {10, 20}}})[0];
  for (const Numbers& of_member : gradient) EXPECT_EQ(of_member, (Numbers{2 * 5 * 14, 2 * 7 * 26}));
}

TEST(Collectives, HaveResultTypesAndGradientsOfTheirOwnKind) {
  Builder builder("f");
  const Tensor x(&builder, builder.graph.add_input({DType::bf16, {2, 6}}, "x").value);
  const Tensor y = all_gather(x, 0, {"data", 4});
  EXPECT_EQ(y.type().text(), "bf16[8,6]");
  EXPECT_EQ(reduce_scatter(to(x, DType::f32), -1, {"data", 3}).type().text(), "f32[2,2]");
  EXPECT_EQ(all_to_all(x, 1, {"data", 2}).type().text(), "bf16[2,6]");
  EXPECT_EQ(broadcast(x, 1, {"data", 2}).type().text(), "bf16[2,6]");
  EXPECT_EQ(all_reduce(to(x, DType::f32), {"data", 2}).type().text(), "f32[2,6]");
  EXPECT_EQ(keep_member(x, 1, {"data", 2}).type().text(), "bf16[2,6]");

  Builder small("g");
  const Tensor w(&small, small.graph.add_input({DType::f16, {2}}, "w").value);
  const Tensor loss = sum(to(all_gather(w, 0, {"data", 2}), DType::f32));
  small.graph.outputs = {ValueId(gradients(loss, std::vector{w})[0].value())};
  // Devices cannot sum f16: the gradient is summed in f32.
  EXPECT_EQ(join(eliminate_dead_code(small.graph).ops, " ", [](const Op& op) { return op.name; }), "full expand to to reduce_scatter to");
}

TEST(Collectives, CostTheSharesOfTheirSumsAndWhatTheyReadAndWrite) {
  Builder builder("f");
  const Tensor x(&builder, builder.graph.add_input({DType::f32, {8, 4}}, "x").value);
  all_reduce(x, {"data", 4});
  all_gather(x, 0, {"data", 4});
  reduce_scatter(x, 0, {"data", 4});
  all_to_all(x, 0, {"data", 4});
  const auto of = [&](std::size_t op) {
    const OpCost c = cost(builder.graph, builder.graph.ops[op]);
    return std::pair(c.flops, c.bytes);
  };
  EXPECT_EQ(of(0), std::pair(24.0, 256.0));
  EXPECT_EQ(of(1), std::pair(0.0, 640.0));
  EXPECT_EQ(of(2), std::pair(24.0, 160.0));
  EXPECT_EQ(of(3), std::pair(0.0, 256.0));
}

}  // namespace
}  // namespace penstock
