// Rows chosen op by op, against all there are.
#include "lower/choose_rows.h"

#include <gtest/gtest.h>

#include <random>

#include "base/text.h"
#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/layouts.h"
#include "ops/verify.h"
#include "stage/loop.h"
#include "support/seed.h"
#include "transform/passes.h"

namespace penstock {
namespace {

using Random = std::mt19937_64;

int below(Random& random, std::size_t n) {
  return std::uniform_int_distribution<int>(0, static_cast<int>(n) - 1)(random);
}

// A random op of what the body has.
Tensor random_op(Random& random, const std::vector<Tensor>& values) {
  const Tensor x = values[below(random, values.size())], y = values[below(random, values.size())];
  const bool products = x.rank() == 2 && y.rank() == 2;
  switch (below(random, 6)) {
    case 0:
      return tanh(x);
    case 1:
      return x.rank() == 2 ? transpose(x, 0, 1) : mul(x, 2.0);
    case 2:
      return x.shape() == y.shape() ? add(x, y) : mul(x, 3.0);
    case 3:
      return x.shape() == y.shape() ? mul(x, y) : gelu(x);
    case 4:
      return products && x.size(1) == y.size(1) ? linear(x, y) : sum(x, {0});
    default:
      return products && x.size(1) == y.size(0) ? mm(x, y) : mul(x, x);
  }
}

// A loop of a few ops over part of x and over two states, which what it sums moves where it has their shape.
Graph random_loop(Random& random, int ops) {
  Builder body{"body"};
  const TensorType types[] = {{DType::f32, {2, 6}}, {DType::f32, {6, 4}}, {DType::f32, {4, 6}}};
  std::vector<Tensor> values;
  for (const TensorType& type : types) values.emplace_back(&body, body.graph.add_input(type, concat("i", values.size())).value);
  for (int i = 0; i < ops; ++i) {
    body.marks.stage = below(random, 2) ? "0" : "1";
    body.marks.phase = below(random, 2) ? Phase::forward : Phase::backward;
    const Tensor made = random_op(random, values);
    if (made.rank() > 0) values.push_back(made);
  }
  Builder step{"step"};
  std::vector<ValueId> inputs;
  for (const int i : {1, 2, 0}) inputs.push_back(step.graph.add_input(i == 0 ? TensorType{DType::f32, {6, 6}} : types[i], concat("s", i)));
  std::vector<TensorType> sums;
  for (std::size_t v = values.size(); v-- > 3 && sums.size() < 3;) {
    body.graph.outputs.emplace_back(values[v].value());
    sums.push_back(values[v].type());
  }
  Op loop;
  loop.name = "accumulate";
  loop.operands = {inputs[2], inputs[0], inputs[1]};
  loop.attributes = {{"microbatches", std::int64_t{3}}, {"split", std::int64_t{1}}};
  loop.body = std::make_shared<Graph>(body.graph);
  const std::vector<ValueId> made = step.append_typed(loop, sums);
  for (const ValueId state : {inputs[0], inputs[1]}) {
    Tensor next(&step, state.value);
    for (std::size_t r = 0; r < made.size(); ++r)
      if (sums[r] == next.type()) next = sub(next, Tensor(&step, made[r].value));
    step.graph.outputs.emplace_back(next.value());
  }
  step.graph.outputs.push_back(made[0]);
  step.graph.state = 2;
  step.graph.output_names = {"sum"};
  verify(step.graph);
  return eliminate_dead_code(step.graph);
}

// --- all there are

struct All {
  const Graph& step;
  std::int64_t members;
  GraphLayouts outside{}, inside{};
  LayoutScore least{2, 0, 0};
  long looked_at = 0;

  const Graph& body() const { return *step.ops[loop_of(step)].body; }
};

std::vector<Layout> splits_of(const TensorType& type, std::int64_t members) {
  std::vector<Layout> out;
  for (std::size_t d = 0; d < type.shape.size(); ++d) out.push_back(split_layout(static_cast<std::int64_t>(d), 1, type.shape[d], members));
  return out;
}

// Every row that splits something evenly, or goes on with what comes.
std::vector<LayoutRow> all_rows(const Graph& graph, const Op& op, const GraphLayouts& layouts, std::int64_t members) {
  std::vector<TensorType> operands, results;
  std::vector<Layout> from;
  for (const ValueId v : op.operands) {
    operands.push_back(graph.type(v));
    from.push_back(layouts.values[v]);
  }
  for (const ValueId v : op.results) results.push_back(graph.type(v));
  const LayoutSite site{op, operands, results, members};
  std::vector<LayoutRow> out{{std::vector<Layout>(from.size(), kWhole), std::vector<Layout>(results.size(), kWhole)}};
  const auto add = [&](const std::optional<LayoutRow>& row) {
    if (row && std::find(out.begin(), out.end(), *row) == out.end()) out.push_back(*row);
  };
  for (std::size_t i = 0; i < operands.size(); ++i) {
    for (const Layout& split : splits_of(operands[i], members)) add(layout_row(site, i, split));
    if (from[i].is_split()) add(layout_row(site, i, from[i]));
  }
  for (std::size_t r = 0; r < results.size(); ++r)
    for (const Layout& split : splits_of(results[r], members)) add(layout_row_of_result(site, r, split));
  if (is_linear(op) && std::all_of(from.begin(), from.end(), [](const Layout& layout) { return layout.is_term(); }))
    add(LayoutRow{from, std::vector<Layout>(results.size(), kTerm)});
  return out;
}

void go_through_outside(All& a, std::size_t op);

void finish(All& a) {
  a.outside.outputs = {a.outside.values[a.step.inputs[0]], a.outside.values[a.step.inputs[1]], kWhole};
  a.outside.body = std::make_shared<GraphLayouts>(a.inside);
  ++a.looked_at;
  const LayoutScore score = score_of(a.step, a.outside, a.members);
  if (std::isfinite(score.bytes) && score < a.least) a.least = score;
}

void go_through_inside(All& a, std::size_t number) {
  const Graph& body = a.body();
  const std::size_t loop = loop_of(a.step);
  if (number == body.ops.size()) {
    a.inside.outputs.clear();
    for (std::size_t r = 0; r < body.outputs.size(); ++r) {
      a.inside.outputs.push_back(a.inside.values[body.outputs[r]]);
      a.outside.values[a.step.ops[loop].results[r]] = a.inside.outputs[r];
    }
    return go_through_outside(a, loop + 1);
  }
  const Op& op = body.ops[number];
  for (const LayoutRow& row : all_rows(body, op, a.inside, a.members)) {
    a.inside.rows[OpId(number)] = row;
    for (std::size_t r = 0; r < op.results.size(); ++r) a.inside.values[op.results[r]] = row.results[r];
    go_through_inside(a, number + 1);
  }
}

void go_through_outside(All& a, std::size_t number) {
  if (number == a.step.ops.size()) return finish(a);
  const Op& op = a.step.ops[number];
  if (op.body) {
    LayoutRow& row = a.outside.rows[OpId(number)] = {};
    for (const ValueId v : op.operands) {
      a.inside.values[op.body->inputs[row.operands.size()]] = a.outside.values[v];
      row.operands.push_back(a.outside.values[v]);
    }
    return go_through_inside(a, 0);
  }
  for (const LayoutRow& row : all_rows(a.step, op, a.outside, a.members)) {
    a.outside.rows[OpId(number)] = row;
    for (std::size_t r = 0; r < op.results.size(); ++r) a.outside.values[op.results[r]] = row.results[r];
    go_through_outside(a, number + 1);
  }
}

LayoutScore least_of_all(All& a) {
  a.outside.values.resize(a.step.values.size());
  a.outside.rows.resize(a.step.ops.size());
  a.inside.values.resize(a.body().values.size());
  a.inside.rows.resize(a.body().ops.size());
  const auto ways = [&](ValueId state) {
    std::vector<Layout> out = splits_of(a.step.type(state), a.members);
    out.push_back(kWhole);
    return out;
  };
  for (const Layout& first : ways(a.step.inputs[0]))
    for (const Layout& second : ways(a.step.inputs[1])) {
      a.outside.values[a.step.inputs[0]] = first;
      a.outside.values[a.step.inputs[1]] = second;
      go_through_outside(a, 0);
    }
  return a.least;
}

TEST(ChosenRows, AreTheLeastOfAllThereAre) {
  const std::uint64_t seed = test::drawn_seed();
  Random random{seed};
  int sending = 0;
  for (int i = 0; i < 200; ++i) {
    const Graph step = random_loop(random, i % 20 == 0 ? 5 : 1 + i % 4);
    const std::int64_t members = 2 + i % 2;
    SCOPED_TRACE(concat("seed ", seed, ", loop ", i, "\n", print(step)));
    All all{step, members};
    const LayoutScore least = least_of_all(all);
    const ClassSource source{step, members, {{"s1", {}}, {"s2", {}}}};
    const ChosenRows chosen = choose_rows(source, {2, 0, 0}, 10'000'000);
    ASSERT_TRUE(chosen.all && chosen.layouts);
    EXPECT_FALSE(chosen.score < least) << chosen.score.bytes << " " << least.bytes;
    EXPECT_FALSE(least < chosen.score) << chosen.score.bytes << " " << least.bytes << " of " << all.looked_at;
    const LayoutScore counted = score_of(step, *chosen.layouts, members);
    EXPECT_FALSE(counted < chosen.score || chosen.score < counted) << "what it is said to send is what it sends";
    EXPECT_FALSE(choose_rows(source, least, 10'000'000).layouts) << "nothing is better than the least";
    sending += least.bytes > 0;
    if (HasFailure()) return;
  }
  EXPECT_GT(sending, 20);
}

}  // namespace
}  // namespace penstock
