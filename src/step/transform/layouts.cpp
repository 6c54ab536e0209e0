// SPDX-License-Identifier: Apache-2.0
// Decides layouts along one axis, in the order of the graph; hints about what is wanted of a value flow against it first.
#include "transform/layouts.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <ranges>
#include <tuple>

#include "base/invariant.h"
#include "base/text.h"
#include "ops/definition.h"
#include "ops/layouts.h"
#include "penstock/error.h"
#include "transform/attention_in_parts.h"
#include "transform/slices.h"
#include "transform/viewed.h"

namespace penstock {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// One graph whose layouts are being decided.
struct Deciding {
  const Graph& graph;
  const AxisWishes& wishes;
  GraphLayouts out{};
  IdVector<ValueId, std::optional<Layout>> hints{};
  IdVector<ValueId, bool> open{};       // states whose layout is decided by their first reader
  IdVector<ValueId, bool> parameter{};  // a state, or a view or cast of one
  // In a loop's body: the layouts that its sums, and what sums of no stage add up, are told to have. Such sums have no stage for
  // conversions either, so what they add is converted in the stages that make it.
  IdVector<ValueId, std::optional<Layout>> told{};
  std::set<Conversion> made{};
  IdVector<ValueId, OpId> producer = producers(graph);
};

const OpDefinition* definition_of(const Op& op) {
  return op.body ? nullptr : find_op(op.name);
}

bool is_elementwise(const Op& op) {
  const OpDefinition* definition = definition_of(op);
  return definition && definition->elementwise;
}

std::string constrained_in(const Op& op) {
  return op.origin.empty() ? concat("constrained in stage ", quote(op.stage)) : concat("made in ", op.origin);
}

Layout unequal_slices(const Deciding& d, const Op& op, std::int64_t dim, std::int64_t tokens) {
  const std::int64_t parts = d.wishes.ends->back();
  if (tokens % parts != 0)
    throw Error(concat("slices of unequal length: a sequence of ", tokens, " tokens is not a multiple of ", parts, " parts"),
                {concat("the slices end at ", join(*d.wishes.ends, ", ", [](std::int64_t end) { return std::to_string(end); })),
                 constrained_in(op)},
                concat("give pipeline.slices lengths whose sum divides ", tokens));
  Layout out = split_layout(dim, 1, tokens, d.wishes.members);
  out.units = parts;
  out.ends = d.wishes.ends;
  return out;
}

std::optional<Layout> constraint(const Deciding& d, const Op& op) {
  if (op.name != "constrain") return std::nullopt;
  const Shape& shape = d.graph.type(op.operands[0]).shape;
  if (is_link_end(op)) return link_end_layout(op, shape, d.wishes.members);
  if (d.wishes.in_slices && !attribute_or(op, "causal", true)) return kWhole;
  const std::vector<std::string> names = split(attribute<std::string>(op, "dims"), ',');
  if (names.size() != shape.size())
    throw Error(concat("constrain names ", names.size(), " dims of ", d.graph.type(op.operands[0]).text()), {constrained_in(op)},
                "name each dim, \"\" for one without a name");
  Layout wanted = kWhole;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!d.wishes.dims_in(op.stage).contains(names[i]) || shape[i] < d.wishes.members) continue;
    if (d.wishes.ends && names[i] == "routed" && shape[i] % d.wishes.ends->back() != 0) continue;  // slices would cut groups of tokens
    if (wanted.is_split())
      throw Error(concat("axis ", quote(d.wishes.axis), " is asked to split two dims of ", d.graph.type(op.operands[0]).text()),
                  {concat(quote(names[wanted.dim]), " and ", quote(names[i])), constrained_in(op)},
                  "give one of them another axis in [layout]");
    if (d.wishes.ends) {
      wanted = unequal_slices(d, op, static_cast<std::int64_t>(i), shape[i]);
      continue;
    }
    const bool mirrored = d.wishes.attention_in_parts && shape[i] % (2 * d.wishes.members) == 0;
    const auto dim = static_cast<std::int64_t>(i);
    wanted = mirrored ? mirrored_layout(dim, d.wishes.members) : split_layout(dim, 1, shape[i], d.wishes.members);
  }
  return wanted;
}

// Operands that an op splits where its result is to be split so.
void hint_at_operands(Deciding& d, const Op& op, const Layout& result) {
  const std::vector<TensorType> operands = types_of(d.graph, op.operands), results = types_of(d.graph, op.results);
  const auto row = layout_row_of_result({op, operands, results, d.wishes.members}, 0, result);
  for (std::size_t i = 0; row && i < op.operands.size(); ++i)
    if (row->operands[i].is_split() && !d.hints[op.operands[i]]) d.hints[op.operands[i]] = row->operands[i];
}

// Against the graph's order: what is known of a result or of one operand is wanted of the others, where the op goes element by element, and
// what is known of a result of the operands, where the op has a rule for that.
void find_hints(Deciding& d) {
  for (const Op& op : d.graph.ops | std::views::reverse) {
    if (const auto wanted = constraint(d, op)) {
      d.hints[op.operands[0]] = wanted;
      d.hints[op.results[0]] = wanted;
      continue;
    }
    if (op.body || op.results.empty()) continue;
    const Shape& shape = d.graph.type(op.results[0]).shape;
    const std::optional<Layout> known = d.hints[op.results[0]];
    if (op.name == "reshape" && known && known->is_split()) {
      if (!d.hints[op.operands[0]]) d.hints[op.operands[0]] = reshaped(*known, shape, d.graph.type(op.operands[0]).shape, d.wishes.members);
      continue;
    }
    if (known && known->is_split()) hint_at_operands(d, op, *known);
    if (!is_elementwise(op)) continue;
    std::optional<Layout> hint = known;
    const auto fits = [&](ValueId v) { return d.graph.type(v).shape == shape; };
    for (ValueId v : op.operands)
      if (!hint && fits(v)) hint = d.hints[v];
    if (!hint) continue;
    for (const auto& values : {op.operands, op.results})
      for (ValueId v : values)
        if (fits(v) && !d.hints[v]) d.hints[v] = hint;
  }
}

// By what is converted, which is what a view views.
Conversion conversion_of(const Deciding& d, const Op& op, ValueId v, const Layout& to) {
  const Asked asked = converted_for(d.graph, d.producer, d.out, d.wishes.members, {v, to});
  return conversion_for(asked.value, asked.layout, op.phase, op.stage);
}

// Slices send each other nothing: what they have parts of only the last of them can have whole, and terms are summed as they come.
double conversion_cost(const Deciding& d, ValueId v, const Layout& from, const Layout& to) {
  const auto bytes = static_cast<double>(d.graph.type(v).bytes());
  if (!d.wishes.in_slices || from == to || to.is_term()) return conversion_bytes(from, to, bytes, d.wishes.members);
  return bytes * (from.is_split() ? 1e6 : 1e-9);
}

double cost_of(const Deciding& d, const Op& op, ValueId v, const Layout& from, const Layout& to) {
  if (from == to || d.made.contains(conversion_of(d, op, v, to))) return 0;
  if (d.wishes.in_groups && d.parameter[v]) return kNever;
  const double bytes = conversion_cost(d, v, from, to);
  // The layouts of parameters were asked for: they stay where they lie, as long as anything else can move.
  return d.parameter[v] && from.is_split() ? bytes * 1e6 : bytes;
}

double cost_of(const Deciding& d, const Op& op, const LayoutRow& row) {
  double cost = 0;
  for (std::size_t i = 0; i < op.operands.size(); ++i) {
    const ValueId v = op.operands[i];
    if (!d.open[v]) cost += cost_of(d, op, v, d.out.values[v], row.operands[i]);
  }
  for (std::size_t i = 0; i < op.results.size(); ++i) {
    const ValueId v = op.results[i];
    if (d.hints[v]) cost += conversion_cost(d, v, row.results[i], *d.hints[v]);
  }
  return cost;
}

LayoutRow equal_row(const Op& op, const Layout& layout) {
  return {std::vector<Layout>(op.operands.size(), layout), std::vector<Layout>(op.results.size(), layout)};
}

// Returns how the operands lie; an open one lies as the row reads it.
std::vector<Layout> as_it_comes(const Deciding& d, const Op& op, const LayoutRow& row) {
  std::vector<Layout> from;
  for (std::size_t i = 0; i < op.operands.size(); ++i)
    from.push_back(d.open[op.operands[i]] ? row.operands[i] : d.out.values[op.operands[i]]);
  return from;
}

// The row in which an operand stays split as it is; where there is none, those in which it is split along another dim instead, as is then a
// result of its shape: so attention over a split sequence is done by heads (Ulysses, 2309.14509).
std::vector<LayoutRow> rows_that_split(const LayoutSite& site, std::size_t operand, const Layout& split) {
  if (auto row = layout_row(site, operand, split)) return {std::move(*row)};
  std::vector<LayoutRow> rows;
  const Shape& shape = site.operands[operand].shape;
  if (split.is_flat() || shape != site.results[0].shape) return {};
  for (std::size_t dim = 0; dim < shape.size(); ++dim)
    if (static_cast<std::int32_t>(dim) != split.dim && shape[dim] >= site.members)
      if (auto row = layout_row(site, operand, split_layout(static_cast<std::int64_t>(dim), 1, shape[dim], site.members)))
        rows.push_back(std::move(*row));
  return rows;
}

// The rows in which an operand is split somehow and the result is a term of each member.
std::vector<LayoutRow> rows_of_a_term(const LayoutSite& site, std::size_t operand) {
  std::vector<LayoutRow> rows;
  const Shape& shape = site.operands[operand].shape;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] < site.members) continue;
    auto row = layout_row(site, operand, split_layout(static_cast<std::int64_t>(dim), 1, shape[dim], site.members));
    if (row && row->results[0].is_term()) rows.push_back(std::move(*row));
  }
  return rows;
}

// A cast to more digits is exact, so it may as well be of what each slice adds: a gradient is cast where it is made, and not kept until all
// slices have added to it.
bool is_widened_term(const Deciding& d, const Op& op) {
  if (!d.wishes.in_slices || op.name != "to" || !d.out.values[op.operands[0]].is_term()) return false;
  const TensorType &from = d.graph.type(op.operands[0]), &to = d.graph.type(op.results[0]);
  return is_floating(from.dtype) && is_floating(to.dtype) && to.bytes() > from.bytes();
}

// Slices add what is whole to the terms of one of them.
bool is_sum_with_terms(const Deciding& d, const Op& op, const std::vector<Layout>& from) {
  return d.wishes.in_slices && op.name == "add_n" && std::ranges::any_of(from, &Layout::is_term) &&
         std::ranges::none_of(from, &Layout::is_split);
}

// Whether what is wanted of a result cuts an operand that all members have, and what else it has is the result's: as an embedding's
// indices.
bool cuts_whole(const Layout& from, const Layout& wanted, const Shape& operand, const Shape& result) {
  return from.is_whole() && operand.size() > static_cast<std::size_t>(wanted.dim) && operand.size() < result.size() &&
         std::equal(operand.begin(), operand.end(), result.begin());
}

// Whether it adds up what several stages make: the cut dissolves it.
bool adds_stages(const Op& op) {
  return op.stage.empty() && !op.operands.empty() && op.results.size() == 1;
}

void note_told(Deciding& d) {
  d.told.resize(d.graph.values.size());
  for (std::size_t r = 0; r < d.graph.outputs.size(); ++r) d.told[d.graph.outputs[r]] = d.wishes.sums[r];
  for (const Op& op : d.graph.ops | std::views::reverse)
    if (adds_stages(op) && d.told[op.results[0]])
      for (const ValueId operand : op.operands)
        if (!d.told[operand]) d.told[operand] = d.told[op.results[0]];
}

std::vector<LayoutRow> rows_of(const Deciding& d, const Op& op) {
  std::vector<LayoutRow> rows;
  const OpDefinition* definition = definition_of(op);
  const auto add = [&](std::optional<LayoutRow> row) {
    if (row && std::ranges::find(rows, *row) == rows.end()) rows.push_back(std::move(*row));
  };
  if (const auto wanted = constraint(d, op)) return {equal_row(op, *wanted)};
  if (adds_stages(op) && !d.told.empty() && d.told[op.results[0]]) return {equal_row(op, *d.told[op.results[0]])};
  if (is_widened_term(d, op)) return {equal_row(op, kTerm)};
  if (definition && !op.operands.empty()) {
    const std::vector<TensorType> operands = types_of(d.graph, op.operands), results = types_of(d.graph, op.results);
    const LayoutSite site{op, operands, results, d.wishes.members};
    const auto add_if_alike = [&](std::optional<LayoutRow> row) {
      if (row && converts_alike(site, *row, as_it_comes(d, op, *row))) add(std::move(row));
    };
    const std::vector<Layout> come = as_it_comes(d, op, equal_row(op, kWhole));
    if (const auto q = queries_of(op); q && d.wishes.attention_in_parts) add(row_in_parts(site, come[*q]));
    if (d.wishes.in_slices) add(row_in_slices(site, come));
    const std::optional<Layout> hint = d.hints[op.results[0]];
    for (std::size_t i = 0; i < op.operands.size(); ++i) {
      const Layout& from = d.out.values[op.operands[i]];
      if (!d.open[op.operands[i]] && (from.is_split() || from.is_flat()))
        for (LayoutRow& row : rows_that_split(site, i, from)) add_if_alike(std::move(row));
      if (hint && hint->is_term())
        for (LayoutRow& row : rows_of_a_term(site, i)) add_if_alike(std::move(row));
      if (hint && hint->is_split() &&
          (operands[i].shape == results[0].shape || cuts_whole(from, *hint, operands[i].shape, results[0].shape)))
        add_if_alike(layout_row(site, i, *hint));
    }
    if (hint && hint->is_split()) add_if_alike(layout_row_of_result(site, 0, *hint));
    if (is_sum_with_terms(d, op, come)) add(LayoutRow{come, {kTerm}});
    add(row_of_terms(site, come));
  }
  add(equal_row(op, kWhole));
  return rows;
}

void note_conversions(Deciding& d, const Op& op, const LayoutRow& row) {
  for (std::size_t i = 0; i < op.operands.size(); ++i) {
    const ValueId v = op.operands[i];
    if (d.open[v] && !row.operands[i].mirrored) d.out.values[v] = row.operands[i];  // a piece of a state is none of a mirrored split
    d.open[v] = false;
    if (d.out.values[v] != row.operands[i]) d.made.insert(conversion_of(d, op, v, row.operands[i]));
  }
}

// One row for the same op of two members, which may be of other sizes; the first member's may add what the others leave out.
bool are_alike(const LayoutRow& a, const LayoutRow& b) {
  const auto alike = [](const Layout& x, const Layout& y) { return x.kind == y.kind && x.dim == y.dim; };
  return std::ranges::equal(a.results, b.results, alike) &&
         (a.operands.size() != b.operands.size() || std::ranges::equal(a.operands, b.operands, alike));
}

// The graph's ops are those of the first, in other sizes.
using DecidingAll = std::vector<Deciding>;

// Returns, of the rows that all members have, the one that costs the first member the least: what they do together along another axis has
// to lie alike.
std::vector<LayoutRow> decide(const DecidingAll& all, OpId i) {
  std::vector<std::vector<LayoutRow>> rows;
  for (const Deciding& d : all) rows.push_back(rows_of(d, d.graph.ops[i]));
  const auto cost = [&](const LayoutRow& row) { return cost_of(all[0], all[0].graph.ops[i], row); };
  std::ranges::stable_sort(rows[0], {}, cost);
  for (const LayoutRow& row : rows[0]) {
    std::vector<LayoutRow> chosen;
    for (const std::vector<LayoutRow>& of_member : rows) {
      const auto found = std::ranges::find_if(of_member, [&](const LayoutRow& other) { return are_alike(row, other); });
      if (found != of_member.end()) chosen.push_back(*found);
    }
    if (chosen.size() == all.size()) return chosen;
  }
  invariant(false, "every op has a row of whole tensors");
  return {};
}

std::vector<GraphLayouts> decide_graphs(DecidingAll all);

// Returns the row of a loop: parts of micro-batches are whole; other operands keep their layouts, terms are summed.
LayoutRow loop_row(Deciding& d, const Op& loop) {
  const auto split = static_cast<std::size_t>(attribute<std::int64_t>(loop, "split"));
  LayoutRow row = equal_row(loop, kWhole);
  for (std::size_t i = split; i < loop.operands.size(); ++i) {
    d.open[loop.operands[i]] = false;
    if (const Layout& from = d.out.values[loop.operands[i]]; from.is_split()) row.operands[i] = from;
  }
  return row;
}

Deciding deciding(const Graph& graph, const AxisWishes& wishes) {
  Deciding d{graph, wishes};
  d.out.values.resize(graph.values.size());
  d.hints.resize(graph.values.size());
  d.open.resize(graph.values.size());
  d.parameter.resize(graph.values.size());
  return d;
}

// Whether it is said how the loop's results lie. A step of another model has other results, which is found later.
bool has_sums(const Deciding& d, const Op& loop) {
  return d.wishes.sums.size() == loop.results.size();
}

std::vector<LayoutRow> decide_loops(DecidingAll& all, OpId i) {
  std::vector<LayoutRow> rows;
  DecidingAll bodies;
  for (Deciding& d : all) {
    const Op& loop = d.graph.ops[i];
    const LayoutRow& row = rows.emplace_back(loop_row(d, loop));
    const Graph& body = *loop.body;
    Deciding& inner = bodies.emplace_back(deciding(body, d.wishes));
    for (std::size_t o = 0; o < body.inputs.size(); ++o) {
      inner.out.values[body.inputs[o]] = row.operands[o];
      inner.parameter[body.inputs[o]] = d.parameter[loop.operands[o]];
    }
    for (std::size_t r = 0; r < loop.results.size(); ++r)
      inner.hints[body.outputs[r]] = has_sums(d, loop) ? d.wishes.sums[r] : d.wishes.in_groups ? kTerm : d.hints[loop.results[r]];
  }
  for (std::size_t m = 0; m < all.size(); ++m)
    if (has_sums(all[m], all[m].graph.ops[i])) note_told(bodies[m]);
  std::vector<GraphLayouts> decided = decide_graphs(std::move(bodies));
  for (std::size_t m = 0; m < all.size(); ++m) {
    if (has_sums(all[m], all[m].graph.ops[i])) decided[m].outputs = all[m].wishes.sums;
    rows[m].results = decided[m].outputs;
    all[m].out.body = std::make_shared<GraphLayouts>(std::move(decided[m]));
  }
  return rows;
}

void take_row(Deciding& d, const Op& op, LayoutRow row) {
  note_conversions(d, op, row);
  const bool moves = is_view(op) || op.name == "to";
  for (std::size_t i = 0; i < op.results.size(); ++i) {
    d.out.values[op.results[i]] = row.results[i];
    d.parameter[op.results[i]] = moves && d.parameter[op.operands[0]];
  }
  d.out.rows.push_back(std::move(row));
}

std::vector<GraphLayouts> decide_graphs(DecidingAll all) {
  for (Deciding& d : all) find_hints(d);
  for (const OpId i : all[0].graph.ops.ids()) {
    std::vector<LayoutRow> rows = all[0].graph.ops[i].body ? decide_loops(all, i) : decide(all, i);
    for (std::size_t m = 0; m < all.size(); ++m) take_row(all[m], all[m].graph.ops[i], std::move(rows[m]));
  }
  std::vector<GraphLayouts> out;
  for (Deciding& d : all) {
    for (ValueId v : d.graph.outputs) d.out.outputs.push_back(d.out.values[v]);
    out.push_back(std::move(d.out));
  }
  return out;
}

}  // namespace

double conversion_bytes(const Layout& from, const Layout& to, double bytes, std::int64_t members) {
  const auto t = static_cast<double>(members);
  if (from == to) return 0;
  if (to.is_term() || from.is_flat()) return kNever;
  if (from.is_whole()) return bytes * 1e-9;  // a range of it: nothing is sent, but something is copied
  if (to.is_whole()) return (from.is_term() ? 2 : 1) * bytes * (t - 1) / t;
  const bool exchanged = from.is_split() && from.dim != to.dim;  // else it is gathered first
  return bytes * (t - 1) / (exchanged ? t * t : t);
}

std::vector<GraphLayouts> decide_layouts(const std::vector<const Graph*>& steps, const std::vector<AxisWishes>& wishes) {
  DecidingAll all;
  for (std::size_t m = 0; m < steps.size(); ++m) {
    const Graph& step = *steps[m];
    Deciding& d = all.emplace_back(deciding(step, wishes[m]));
    for (int i = 0; i < step.state; ++i) {
      const ValueId input = step.inputs[i];
      d.parameter[input] = true;
      const auto wish = wishes[m].states.find(step.values[input].name);
      d.open[input] = wish == wishes[m].states.end();
      if (d.open[input]) continue;
      d.out.values[input] = wish->second;
      d.hints[input] = d.hints[step.outputs[i]] = wish->second;
    }
  }
  std::vector<GraphLayouts> out = decide_graphs(std::move(all));
  for (std::size_t m = 0; m < steps.size(); ++m)
    for (std::size_t o = 0; o < steps[m]->outputs.size(); ++o)
      out[m].outputs[o] = static_cast<int>(o) < steps[m]->state ? out[m].values[steps[m]->inputs[o]] : kWhole;
  return out;
}

GraphLayouts decide_layouts(const Graph& graph, IdVector<ValueId, Layout> values, IdVector<ValueId, bool> open, std::int64_t members) {
  const AxisWishes wishes{{}, members, {}, {}};
  DecidingAll one{deciding(graph, wishes)};
  one[0].out.values = std::move(values);
  one[0].open = std::move(open);
  return std::move(decide_graphs(std::move(one))[0]);
}

GraphLayouts decide_layouts(const Graph& step, const AxisWishes& wishes) {
  return std::move(decide_layouts(std::vector{&step}, std::vector{wishes})[0]);
}

}  // namespace penstock
