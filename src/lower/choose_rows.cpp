#include "lower/choose_rows.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/layouts.h"
#include "stage/loop.h"
#include "transform/viewed.h"

namespace penstock {
namespace {

// A search of fewer tries for each decision is not begun: it would not end, and what it finds first has been found by classes.
constexpr std::int64_t kTriesOfDecision = 2000;

// One graph whose layouts are decided op by op.
struct RowsOfGraph {
  const Graph& graph;
  double times;  // that it runs in a step
  IdVector<ValueId, OpId> producer = producers(graph);
  GraphLayouts layouts{};
  std::set<Conversion> made{};
  IdVector<ValueId, std::size_t> made_at{}, last{};  // the numbers of the decision that makes a value and of the last that it matters to
};

// What is decided next: the layout of a state, an op's row, or nothing, where values pass a border.
struct Decision {
  enum class Kind : std::uint8_t { state, row, enter_loop, leave_loop, end } kind;
  RowsOfGraph* in = nullptr;
  int state = 0;
  OpId op{};
};

// All that a decision and those behind it depend on: its number, how values lie that matter still, and what was made of them.
using Situation = std::tuple<std::size_t, std::vector<Layout>, std::vector<Conversion>>;

// What is decided so far costs.
struct CostSoFar {
  LayoutScore score;
  double whole = 0;  // bytes of states and sums
};

struct ChoosingRows {
  const ClassSource& source;
  RowsOfGraph step, body;
  OpId loop;
  std::vector<std::vector<Layout>> states{};  // how each can lie that is a parameter
  std::vector<Decision> decisions{};
  HeldBytes all{};  // of states and sums, as if all were whole
  LayoutScore best{};
  int left = 0;  // decisions that may still be tried
  std::map<Situation, CostSoFar> known{};
  ChosenRows out{};
};

void decide_next(ChoosingRows& c, std::size_t number, const CostSoFar& so_far);

std::vector<Decision> decisions_of(ChoosingRows& c) {
  using Kind = Decision::Kind;
  std::vector<Decision> out;
  for (int s = 0; s < c.step.graph.state; ++s) out.push_back({Kind::state, &c.step, s});
  for (const OpId i : c.step.graph.ops.ids()) {
    if (i != c.loop) {
      out.push_back({Kind::row, &c.step, 0, i});
      continue;
    }
    out.push_back({Kind::enter_loop});
    for (const OpId inside : c.body.graph.ops.ids()) out.push_back({Kind::row, &c.body, 0, inside});
    out.push_back({Kind::leave_loop});
  }
  out.push_back({Kind::end});
  return out;
}

// Adds what it sends to have a value so; what is made is noted in `added`.
void charge(const ChoosingRows& c, RowsOfGraph& in, const Asked& asked, OpId reader, CostSoFar& cost, std::vector<Conversion>& added) {
  if (in.layouts.values[asked.value] == asked.layout) return;
  const LayoutConversion made = asked_conversion(in.graph, in.producer, in.layouts, c.source.members, asked, reader);
  const Conversion key = conversion_for(made.value, made.to, made.phase, made.stage);
  if (!in.made.insert(key).second) return;
  added.push_back(key);
  cost.score.bytes += in.times * made.bytes;
  ++cost.score.conversions;
}

// Goes on with what is asked of values, and forgets what was made for it.
template <typename Ask>
void go_on(ChoosingRows& c, std::size_t number, RowsOfGraph& in, CostSoFar cost, const Ask& ask) {
  std::vector<Conversion> added;
  ask(cost, added);
  if (cost.score < c.best) decide_next(c, number + 1, cost);
  for (const Conversion& key : added) in.made.erase(key);
}

void hold(const ChoosingRows& c, const TensorType& type, const Layout& layout, CostSoFar& cost) {
  HeldBytes held;
  held.add(type, layout.is_split(), c.source.members);
  cost.whole += held.whole;
  cost.score.whole = HeldBytes{c.all.all, cost.whole}.share();
}

// --- decisions

// A parameter in whole units, as its dims say.
std::vector<std::vector<Layout>> layouts_of_parameters(const ClassSource& source) {
  std::vector<std::vector<Layout>> out(source.step.state);
  const std::vector<StateDim> dims = state_dims(source);
  for (int s = 0; s < source.step.state; ++s) {
    const ValueId state = source.step.inputs[s];
    for (const StateDim& dim : dims)
      if (dim.state == state && dim.has_units) out[s].push_back(dim.layout);
    if (source.parameters.contains(source.step.values[state].name)) out[s].push_back(kWhole);
  }
  return out;
}

// Another state, a moment, as a parameter of its type, of those that are decided.
std::vector<Layout> layouts_like_parameters(const ChoosingRows& c, int state) {
  std::vector<Layout> out;
  for (int s = 0; s < state; ++s) {
    const Layout& layout = c.step.layouts.values[c.step.graph.inputs[s]];
    const bool is_like = !c.states[s].empty() && c.step.graph.type(c.step.graph.inputs[s]) == c.step.graph.type(c.step.graph.inputs[state]);
    if (is_like && std::ranges::find(out, layout) == out.end()) out.push_back(layout);
  }
  if (out.empty()) out.push_back(kWhole);
  return out;
}

void decide_state(ChoosingRows& c, std::size_t number, const CostSoFar& so_far) {
  const ValueId state = c.step.graph.inputs[c.decisions[number].state];
  const std::vector<Layout>& own = c.states[c.decisions[number].state];
  for (const Layout& layout : own.empty() ? layouts_like_parameters(c, c.decisions[number].state) : own) {
    c.step.layouts.values[state] = layout;
    CostSoFar cost = so_far;
    hold(c, c.step.graph.type(state), layout, cost);
    if (cost.score < c.best) decide_next(c, number + 1, cost);
  }
}

// The rows of an op whose operands lie `from`: what can be split evenly or as it lies, what stays terms, and all of it whole.
std::vector<LayoutRow> rows_for(const LayoutSite& site, const std::vector<Layout>& from) {
  std::vector<LayoutRow> out;
  const auto add = [&](std::optional<LayoutRow> row) {
    if (row && converts_alike(site, *row, from) && std::ranges::find(out, *row) == out.end()) out.push_back(std::move(*row));
  };
  const auto even = [&](const TensorType& type, std::size_t d) {
    return split_layout(static_cast<std::int64_t>(d), 1, type.shape[d], site.members);
  };
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (from[i].is_split()) add(layout_row(site, i, from[i]));
    for (std::size_t d = 0; d < site.operands[i].shape.size(); ++d) add(layout_row(site, i, even(site.operands[i], d)));
  }
  for (std::size_t r = 0; r < site.results.size(); ++r)
    for (std::size_t d = 0; d < site.results[r].shape.size(); ++d) add(layout_row_of_result(site, r, even(site.results[r], d)));
  add(row_of_terms(site, from));
  add(LayoutRow{std::vector<Layout>(from.size(), kWhole), std::vector<Layout>(site.results.size(), kWhole)});
  return out;
}

void take_row(ChoosingRows& c, std::size_t number, const LayoutRow& row, const CostSoFar& so_far) {
  const Decision& d = c.decisions[number];
  const Op& op = d.in->graph.ops[d.op];
  go_on(c, number, *d.in, so_far, [&](CostSoFar& cost, std::vector<Conversion>& added) {
    for (std::size_t i = 0; i < op.operands.size(); ++i) charge(c, *d.in, {op.operands[i], row.operands[i]}, d.op, cost, added);
    for (std::size_t r = 0; r < op.results.size(); ++r) d.in->layouts.values[op.results[r]] = row.results[r];
    d.in->layouts.rows[d.op] = row;
  });
}

void decide_row(ChoosingRows& c, std::size_t number, const CostSoFar& so_far) {
  const Decision& d = c.decisions[number];
  const Graph& graph = d.in->graph;
  const Op& op = graph.ops[d.op];
  std::vector<TensorType> operands, results;
  std::vector<Layout> from;
  for (const ValueId v : op.operands) {
    operands.push_back(graph.type(v));
    from.push_back(d.in->layouts.values[v]);
  }
  for (const ValueId v : op.results) results.push_back(graph.type(v));
  std::vector<LayoutRow> rows = rows_for({op, operands, results, c.source.members}, from);
  const auto differ = [&](const LayoutRow& row) {
    double bytes = 0;
    for (std::size_t i = 0; i < from.size(); ++i)
      bytes += conversion_bytes(from[i], row.operands[i], static_cast<double>(operands[i].bytes()), c.source.members);
    return bytes;
  };
  std::ranges::stable_sort(rows, {}, differ);
  for (const LayoutRow& row : rows)
    if (std::isfinite(differ(row))) take_row(c, number, row, so_far);
}

// As decide_layouts() has it: parts of micro-batches come whole; what stays comes as it is, terms summed.
void enter_loop(ChoosingRows& c, std::size_t number, const CostSoFar& so_far) {
  const Op& loop = c.step.graph.ops[c.loop];
  const auto split = static_cast<std::size_t>(attribute<std::int64_t>(loop, "split"));
  LayoutRow row{std::vector<Layout>(loop.operands.size(), kWhole), {}};
  for (std::size_t i = split; i < loop.operands.size(); ++i)
    if (const Layout& from = c.step.layouts.values[loop.operands[i]]; from.is_split()) row.operands[i] = from;
  go_on(c, number, c.step, so_far, [&](CostSoFar& cost, std::vector<Conversion>& added) {
    for (std::size_t i = 0; i < loop.operands.size(); ++i) {
      charge(c, c.step, {loop.operands[i], row.operands[i]}, c.loop, cost, added);
      c.body.layouts.values[c.body.graph.inputs[i]] = row.operands[i];
    }
    c.step.layouts.rows[c.loop] = row;
  });
}

void leave_loop(ChoosingRows& c, std::size_t number, const CostSoFar& so_far) {
  const Op& loop = c.step.graph.ops[c.loop];
  CostSoFar cost = so_far;
  LayoutRow& row = c.step.layouts.rows[c.loop];
  row.results.clear();
  for (std::size_t r = 0; r < loop.results.size(); ++r) {
    row.results.push_back(c.body.layouts.values[c.body.graph.outputs[r]]);
    c.step.layouts.values[loop.results[r]] = row.results[r];
    hold(c, c.step.graph.type(loop.results[r]), row.results[r], cost);
  }
  c.body.layouts.outputs = row.results;
  if (cost.score < c.best) decide_next(c, number + 1, cost);
}

void end_step(ChoosingRows& c, const CostSoFar& so_far) {
  const Graph& graph = c.step.graph;
  CostSoFar cost = so_far;
  std::vector<Conversion> added;
  c.step.layouts.outputs.clear();
  for (std::size_t o = 0; o < graph.outputs.size(); ++o) {
    const bool is_state = static_cast<int>(o) < graph.state;
    c.step.layouts.outputs.push_back(is_state ? c.step.layouts.values[graph.inputs[o]] : kWhole);
    charge(c, c.step, {graph.outputs[o], c.step.layouts.outputs[o]}, {}, cost, added);
  }
  if (cost.score < c.best) {
    c.best = c.out.score = cost.score;
    c.out.layouts = c.step.layouts;
    c.out.layouts->body = std::make_shared<GraphLayouts>(c.body.layouts);
  }
  for (const Conversion& key : added) c.step.made.erase(key);
}

// What a view views matters as long as the view does: it may be converted instead.
void note_uses(ChoosingRows& c) {
  for (RowsOfGraph* in : {&c.step, &c.body}) {
    in->made_at.resize(in->graph.values.size());
    in->last.resize(in->graph.values.size());
  }
  for (std::size_t n = c.decisions.size(); n-- > 0;) {
    const Decision& d = c.decisions[n];
    const auto use = [n](RowsOfGraph& in, const std::vector<ValueId>& values) {
      for (const ValueId v : values) in.last[v] = std::max(in.last[v], n);
    };
    if (d.kind == Decision::Kind::end) use(c.step, c.step.graph.outputs);
    if (d.kind == Decision::Kind::leave_loop) {
      use(c.body, c.body.graph.outputs);
      for (const ValueId v : c.step.graph.ops[c.loop].results) c.step.made_at[v] = n;
    }
    if (d.kind == Decision::Kind::enter_loop) {
      use(c.step, c.step.graph.ops[c.loop].operands);
      for (const ValueId v : c.body.graph.inputs) c.body.made_at[v] = n;
    }
    if (d.kind != Decision::Kind::row) continue;
    const Op& op = d.in->graph.ops[d.op];
    use(*d.in, op.operands);
    for (const ValueId v : op.results) d.in->made_at[v] = n;
    if (is_seen_through(op)) d.in->last[op.operands[0]] = std::max(d.in->last[op.operands[0]], d.in->last[op.results[0]]);
  }
  for (int s = 0; s < c.step.graph.state; ++s) {
    c.step.made_at[c.step.graph.inputs[s]] = s;
    c.step.last[c.step.graph.inputs[s]] = c.decisions.size();
  }
}

Situation situation_of(const ChoosingRows& c, std::size_t number) {
  Situation out{number, {}, {}};
  auto& [at, layouts, conversions] = out;
  for (const RowsOfGraph* in : {&c.step, &c.body}) {
    for (const ValueId v : in->graph.values.ids()) {
      if (in->last[v] < number || in->made_at[v] >= number) continue;
      layouts.push_back(in->layouts.values[v]);
      if (const OpId made = in->producer[v]; made && is_seen_through(in->graph.ops[made]))
        layouts.push_back(in->layouts.rows[made].operands[0]);
    }
    for (const Conversion& made : in->made)
      if (in->last[std::get<ValueId>(made)] >= number) conversions.push_back(made);
  }
  return out;
}

// Whether the same was to be decided before, at no higher cost.
bool is_known(ChoosingRows& c, std::size_t number, const CostSoFar& so_far) {
  const auto [at, added] = c.known.try_emplace(situation_of(c, number), so_far);
  if (added) return false;
  const bool holds_less = so_far.whole < at->second.whole, is_better = so_far.score < at->second.score;
  if (!holds_less && !is_better) return true;
  if (so_far.whole <= at->second.whole && !(at->second.score < so_far.score)) at->second = so_far;
  return false;
}

void decide_next(ChoosingRows& c, std::size_t number, const CostSoFar& so_far) {
  if (--c.left < 0 || is_known(c, number, so_far)) return;
  switch (c.decisions[number].kind) {
    case Decision::Kind::state:
      return decide_state(c, number, so_far);
    case Decision::Kind::row:
      return decide_row(c, number, so_far);
    case Decision::Kind::enter_loop:
      return enter_loop(c, number, so_far);
    case Decision::Kind::leave_loop:
      return leave_loop(c, number, so_far);
    case Decision::Kind::end:
      return end_step(c, so_far);
  }
}

}  // namespace

ChosenRows choose_rows(const ClassSource& source, const LayoutScore& best, int decisions) {
  const OpId loop(loop_of(source.step));
  const Op& op = source.step.ops[loop];
  ChoosingRows c{source, {source.step, 1}, {*op.body, static_cast<double>(attribute<std::int64_t>(op, "microbatches"))}, loop};
  c.best = best;
  c.left = decisions;
  for (RowsOfGraph* in : {&c.step, &c.body}) {
    in->layouts.values.resize(in->graph.values.size());
    in->layouts.rows.resize(in->graph.ops.size());
  }
  for (int s = 0; s < source.step.state; ++s) c.all.add(source.step.type(source.step.inputs[s]), false, source.members);
  for (const ValueId sum : op.results) c.all.add(source.step.type(sum), false, source.members);
  c.decisions = decisions_of(c);
  if (std::ssize(c.decisions) * kTriesOfDecision > decisions) return {};
  c.states = layouts_of_parameters(source);
  note_uses(c);
  decide_next(c, 0, {{HeldBytes{}.share()}, 0});
  c.out.all = c.left >= 0;
  return std::move(c.out);
}

}  // namespace penstock
