// SPDX-License-Identifier: Apache-2.0
// Steps of the members of an axis, with collectives done by hand, against the whole step: random graphs with random layouts of their
// inputs.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <optional>

#include "base/text.h"
#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/verify.h"
#include "support/errors.h"
#include "support/random_ops.h"
#include "support/random_schedule.h"
#include "support/seed.h"
#include "torch/parts.h"
#include "torch/run_graph.h"
#include "transform/layouts.h"
#include "transform/passes.h"

namespace penstock {
namespace {

using test::coin;
using test::draw;
using test::Random;
using Tensors = std::vector<at::Tensor>;

// One member's graph while it runs, op by op.
struct Member {
  Graph graph;
  IdVector<ValueId, at::Tensor> values{};
  std::size_t next = 0;

  const Op& op() const { return graph.ops[next]; }
  bool is_done() const { return next == graph.ops.size(); }
};

Tensors run_op(const Graph& from, const Op& op, const IdVector<ValueId, at::Tensor>& values) {
  Graph graph;
  graph.name = "g";
  Op made = op;
  Tensors operands;
  for (std::size_t i = 0; i < op.operands.size(); ++i) {
    made.operands[i] = graph.add_input(from.type(op.operands[i]), concat("x", i));
    operands.push_back(values[op.operands[i]]);
  }
  for (std::size_t r = 0; r < op.results.size(); ++r) made.results[r] = graph.add_value(from.type(op.results[r]));
  graph.outputs = made.results;
  graph.ops.push_back(std::move(made));
  return test::run_graph(graph, operands);
}

void run_until_collective(Member& m) {
  for (; !m.is_done() && !find_op(m.op().name)->collective; ++m.next) {
    const Tensors results = run_op(m.graph, m.op(), m.values);
    for (std::size_t r = 0; r < results.size(); ++r) m.values[m.op().results[r]] = results[r];
  }
}

// A flat tensor that needs no filling is given as it lies, in whatever shape.
at::Tensor collective_by_hand(const Op& op, const Tensors& given, std::size_t member) {
  const auto piece_of = [&](const at::Tensor& x) { return x.chunk(static_cast<std::int64_t>(given.size()))[member]; };
  if (op.name == "all_gather") return at::cat(given);
  if (op.name == "all_to_all") {
    Tensors pieces;
    for (const at::Tensor& x : given) pieces.push_back(piece_of(x));
    return at::cat(pieces);
  }
  at::Tensor sum = given[0];
  for (std::size_t m = 1; m < given.size(); ++m) sum = sum + given[m];
  return op.name == "all_reduce" ? sum : piece_of(sum);
}

// What a member gives may be of another length than what it gets.
void run_shift(std::vector<Member>& members) {
  Tensors given;
  const auto message = attribute<std::int64_t>(members[0].op(), "message");
  for (const Member& m : members) given.push_back(m.values[m.op().operands[0]]);
  for (std::size_t i = 0; i < members.size(); ++i) {
    Member& m = members[i];
    const auto by = static_cast<std::size_t>(attribute<std::int64_t>(m.op(), "by"));
    EXPECT_EQ(attribute<std::int64_t>(m.op(), "message"), message);
    m.values[m.op().results[0]] = given[(i + by) % members.size()];
    EXPECT_EQ(m.values[m.op().results[0]].sizes(), at::IntArrayRef(m.graph.type(m.op().results[0]).shape));
    ++m.next;
  }
}

// All members have come to the same collective.
void run_collective(std::vector<Member>& members) {
  if (members[0].op().name == "shift_members") return run_shift(members);
  Tensors given;
  for (const Member& m : members) {
    ASSERT_FALSE(m.is_done()) << "a member has fewer collectives than the first";
    ASSERT_EQ(m.op().name, members[0].op().name);
    ASSERT_EQ(m.op().attributes, members[0].op().attributes);
    given.push_back(m.values[m.op().operands[0]].flatten());
    ASSERT_EQ(given.back().numel(), given[0].numel());
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    Member& m = members[i];
    const ValueId result = m.op().results[0];
    m.values[result] = collective_by_hand(m.op(), given, i).reshape(m.graph.type(result).shape);
    ++m.next;
  }
}

// Outputs by member.
std::vector<Tensors> run_members(std::vector<Member>& members) {
  for (;;) {
    for (Member& m : members) run_until_collective(m);
    if (members[0].is_done()) break;
    run_collective(members);
    if (testing::Test::HasFailure()) return {};
  }
  std::vector<Tensors> out;
  for (const Member& m : members) {
    EXPECT_TRUE(m.is_done()) << "a member has more collectives than the first";
    Tensors& outputs = out.emplace_back();
    for (ValueId v : m.graph.outputs) outputs.push_back(m.values[v]);
  }
  return out;
}

std::optional<Layout> random_split(Random& random, const Shape& shape, std::int64_t members) {
  if (shape.empty()) return std::nullopt;
  const int dim = draw(random, 0, static_cast<int>(shape.size()) - 1);
  std::vector<Layout> found;
  for (std::int64_t outer = 1; outer <= 3; ++outer)
    for (std::int64_t units = members; units * outer <= shape[dim]; ++units)
      if (shape[dim] % outer == 0 && shape[dim] / outer % units == 0) found.push_back(split_layout(dim, outer, units, members));
  if (found.empty()) return std::nullopt;
  return found[draw(random, 0, static_cast<int>(found.size()) - 1)];
}

AxisWishes random_wishes(Random& random, const Graph& step, std::int64_t members) {
  AxisWishes out{"tensor", members, {}, {}, {}, false};
  for (const char* dim : {"a", "b", "c"})
    if (coin(random, 0.3)) out.dims = {dim};
  out.attention_in_parts = coin(random, 0.5);
  for (int s = 0; s < step.state; ++s) {
    const Value& state = step.values[step.inputs[s]];
    if (coin(random, 0.3)) continue;
    const auto split = random_split(random, state.type.shape, members);
    if (split || coin(random, 0.5)) out.states[state.name] = split.value_or(kWhole);
  }
  return out;
}

void expect_equal_outputs(const Graph& step, const GraphLayouts& layouts, const std::vector<Tensors>& found, const Tensors& expected) {
  for (std::size_t o = 0; o < expected.size(); ++o) {
    Tensors parts;
    for (const Tensors& outputs : found) parts.push_back(outputs[o]);
    EXPECT_LT(test::relative_difference(test::joined(parts, layouts.outputs[o]), expected[o], 1), 1e-12) << "output " << o;
    if (!layouts.outputs[o].is_whole()) continue;
    for (const at::Tensor& part : parts) EXPECT_TRUE(part.equal(parts[0])) << "output " << o << " is not the same to the bit";
  }
  EXPECT_EQ(step.outputs.size(), expected.size());
}

// Some outputs in any layout there is, as what loops sum may be asked for.
void ask_for_outputs(Random& random, const Graph& step, const AxisWishes& wishes, GraphLayouts& layouts) {
  for (std::size_t o = static_cast<std::size_t>(step.state); o < step.outputs.size(); ++o) {
    if (coin(random, 0.5)) continue;
    const TensorType& type = step.type(step.outputs[o]);
    const auto split = random_split(random, type.shape, wishes.members);
    layouts.outputs[o] = coin(random, 0.4) && is_floating(type.dtype) ? kTerm : split && coin(random, 0.5) ? *split : kWhole;
  }
}

// The number of its conversions that are collectives.
int expect_members_equal_whole(Random& random, const Graph& step, const AxisWishes& wishes, const Tensors& inputs) {
  GraphLayouts layouts = decide_layouts(step, wishes);
  SCOPED_TRACE(concat(print(step), layouts_text(step, layouts, wishes)));
  ask_for_outputs(random, step, wishes, layouts);
  const Tensors expected = test::run_graph(drop_constraints(step), inputs);
  std::vector<Member> members;
  int collectives = 0;
  for (std::int64_t m = 0; m < wishes.members; ++m) {
    Member& member = members.emplace_back(
        Member{eliminate_common_subexpressions(eliminate_dead_code(drop_constraints(localise(step, layouts, wishes, m))))});
    EXPECT_EQ(test::message_of([&] { verify(member.graph); }), "no error") << print(member.graph);
    if (testing::Test::HasFailure()) return 0;
    member.values.resize(member.graph.values.size());
    for (std::size_t i = 0; i < inputs.size(); ++i)
      member.values[member.graph.inputs[i]] = test::cut(inputs[i], layouts.values[step.inputs[i]], wishes.members, m);
    for (const Op& op : member.graph.ops) collectives += m == 0 && find_op(op.name)->collective;
  }
  const std::vector<Tensors> found = run_members(members);
  if (!testing::Test::HasFailure()) expect_equal_outputs(step, layouts, found, expected);
  return collectives;
}

// The graph with all its inputs as state, which comes out as it came in.
Graph with_state(Graph graph) {
  graph.outputs.insert(graph.outputs.begin(), graph.inputs.begin(), graph.inputs.end());
  graph.state = static_cast<int>(graph.inputs.size());
  graph.output_names.clear();
  for (std::size_t o = graph.inputs.size(); o < graph.outputs.size(); ++o) graph.output_names.push_back(concat("y", o));
  return graph;
}

class LocalSteps : public testing::Test {
 protected:
  void TearDown() override {
    if (HasFailure()) ADD_FAILURE() << "seed " << seed;
  }
  const std::uint64_t seed = test::drawn_seed();
  Random random{seed};
};

// Every op with its gradient.
TEST_F(LocalSteps, OfEveryOpEqualTheWholeStep) {
  int collectives = 0;
  for (const std::int64_t members : {2, 2, 2, 3, 3})
    for (const test::OpCase& c : test::random_cases(random)) {
      const Graph step = with_state(c.graph);
      Tensors inputs;
      for (std::size_t i = 0; i < c.inputs.size(); ++i)
        inputs.push_back(test::random_tensor(random, step.type(step.inputs[i]), c.inputs[i].low, c.inputs[i].high, c.inputs[i].gap));
      collectives += expect_members_equal_whole(random, step, random_wishes(random, step, members), inputs);
      if (HasFailure()) return;
    }
  EXPECT_GT(collectives, 100);
}

// A random chain of ops over [a, b, c], with parameters of its own and values that are read again.
struct ChainMaker {
  Random& random;
  std::int64_t rows = 4, columns = 6, width = 6;
  Builder builder{"chain"};
  std::vector<Tensor> parameters{};

  Tensor parameter(Shape shape) {
    const TensorType type{DType::f64, std::move(shape)};
    parameters.emplace_back(&builder, builder.graph.add_input(type, concat("p", parameters.size())).value);
    return parameters.back();
  }
  // The result has the same shape as x.
  Tensor step(Tensor x, Tensor earlier) {
    const std::int64_t inner = draw(random, 3, 9);
    switch (draw(random, 0, 10)) {
      case 0:
        return linear(gelu(linear(x, parameter({inner, width}), parameter({inner}))), parameter({width, inner}), parameter({width}));
      case 1:
        return layer_norm(x, parameter({width}), parameter({width}));
      case 2:
        return add(x, earlier);
      case 3:
        return mul(tanh(x), earlier);
      case 4:
        return constrain(x, {"a", "b", "c"});
      case 5:
        return softmax(x, draw(random, 0, 2));
      case 6:
        return transpose(matmul(transpose(x, 1, 2), parameter({rows, columns, columns})), 1, 2);
      case 7:
        return heads(x);
      case 8:
        return add(x, parameter({columns, width}));
      case 9:
        return reshape(rms_norm(reshape(x, {rows * columns, width}), parameter({width})), {rows, columns, width});
      default:
        return mul(x, sigmoid(mean(x, {draw(random, 0, 2)}, true)));
    }
  }
  // Attention of 3 heads of 2, packed.
  Tensor heads(Tensor x) {
    std::vector<Tensor> parts = split(linear(x, parameter({3 * width, width})), width, 2);
    for (Tensor& part : parts) part = transpose(reshape(part, {rows, columns, 3, width / 3}), 1, 2);
    const Tensor mixed = scaled_dot_product_attention(parts[0], parts[1], parts[2], coin(random, 0.5));
    return linear(reshape(transpose(mixed, 1, 2), {rows, columns, width}), parameter({width, width}));
  }
  Graph finish(Tensor loss) {
    for (const Tensor& gradient : gradients(loss, parameters)) builder.graph.outputs.emplace_back(gradient.value());
    builder.graph.outputs.emplace_back(loss.value());
    return with_state(eliminate_common_subexpressions(eliminate_dead_code(builder.graph)));
  }
};

Graph random_chain(Random& random) {
  ChainMaker maker{random};
  maker.rows = draw(random, 3, 5);
  maker.columns = draw(random, 3, 6);
  std::vector<Tensor> made = {maker.parameter({maker.rows, maker.columns, maker.width})};
  for (int length = draw(random, 2, 7); length > 0; --length)
    made.push_back(maker.step(made.back(), made[static_cast<std::size_t>(draw(random, 0, static_cast<int>(made.size()) - 1))]));
  return maker.finish(mean(mul(made.back(), made.back())));
}

TEST_F(LocalSteps, OfRandomChainsEqualTheWholeStep) {
  int collectives = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const Graph step = random_chain(random);
    Tensors inputs;
    for (ValueId input : step.inputs) inputs.push_back(test::random_tensor(random, step.type(input)));
    collectives += expect_members_equal_whole(random, step, random_wishes(random, step, draw(random, 2, 3)), inputs);
    if (HasFailure()) return;
  }
  EXPECT_GT(collectives, 100);
}

// Attention between two products, causal or not, over a sequence that is split mirrored, and the gradients of all parameters.
TEST_F(LocalSteps, OfAttentionInPartsEqualTheWholeStep) {
  for (const std::int64_t members : {2, 3, 4})
    for (int trial = 0; trial < 3; ++trial) {
      ChainMaker maker{random};
      maker.columns = 2 * members * draw(random, 1, 2);
      maker.rows = draw(random, 1, 2);
      const auto constrained = [](Tensor x) { return constrain(x, {"a", "b", "c"}); };
      const Tensor x = constrained(maker.parameter({maker.rows, maker.columns, maker.width}));
      const Tensor y = constrained(maker.heads(constrained(maker.heads(x))));
      const Graph step = maker.finish(mean(mul(y, y)));
      AxisWishes wishes{"context", members, {}, {"b"}, {}, true};
      const std::string text = layouts_text(step, decide_layouts(step, wishes), wishes);
      EXPECT_NE(text.find("4 attention in parts"), std::string::npos) << text;
      Tensors inputs;
      for (ValueId input : step.inputs) inputs.push_back(test::random_tensor(random, step.type(input)));
      expect_members_equal_whole(random, step, wishes, inputs);
      if (HasFailure()) return;
    }
}

}  // namespace
}  // namespace penstock
