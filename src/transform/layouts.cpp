// Decides layouts along one axis, in the order of the graph; hints about what is wanted of a value flow against it first.
#include "transform/layouts.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <ranges>
#include <tuple>

#include "base/text.h"
#include "ops/definition.h"
#include "ops/layouts.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// A conversion of a value is made once for each of these.
using Conversion = std::tuple<ValueId, Layout, Phase, std::string>;

// One graph whose layouts are being decided.
struct Deciding {
  const Graph& graph;
  const AxisWishes& wishes;
  GraphLayouts out{};
  IdVector<ValueId, std::optional<Layout>> hints{};
  IdVector<ValueId, bool> open{};       // states whose layout is decided by their first reader
  IdVector<ValueId, bool> parameter{};  // a state, or a view or cast of one
  std::set<Conversion> made{};

  std::vector<TensorType> types(const std::vector<ValueId>& values) const {
    std::vector<TensorType> list;
    for (ValueId v : values) list.push_back(graph.type(v));
    return list;
  }
};

const OpDefinition* definition_of(const Op& op) {
  return op.body ? nullptr : find_op(op.name);
}

bool is_elementwise(const Op& op) {
  const OpDefinition* definition = definition_of(op);
  return definition && definition->elementwise;
}

std::optional<Layout> constraint(const Deciding& d, const Op& op) {
  if (op.name != "constrain") return std::nullopt;
  const Shape& shape = d.graph.type(op.operands[0]).shape;
  const std::vector<std::string> names = split(attribute<std::string>(op, "dims"), ',');
  if (names.size() != shape.size())
    throw Error(concat("constrain names ", names.size(), " dims of ", d.graph.type(op.operands[0]).text()),
                {op.origin.empty() ? "" : concat("made in ", op.origin)}, "name each dim, \"\" for one without a name");
  Layout wanted = kWhole;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!d.wishes.dims.contains(names[i]) || shape[i] < d.wishes.members) continue;
    if (wanted.is_split())
      throw Error(concat("axis ", quote(d.wishes.axis), " is asked to split two dims of ", d.graph.type(op.operands[0]).text()),
                  {concat(quote(names[wanted.dim]), " and ", quote(names[i])), op.origin.empty() ? "" : concat("made in ", op.origin)},
                  "give one of them another axis in [layout]");
    wanted = split_layout(static_cast<std::int64_t>(i), 1, shape[i], d.wishes.members);
  }
  return wanted;
}

// Against the graph's order: what is known of a result or of one operand is wanted of the others, where the op goes element by element.
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

double cost_of(const Deciding& d, const Op& op, ValueId v, const Layout& from, const Layout& to) {
  if (from == to || d.made.contains({v, to, op.phase, op.stage})) return 0;
  const double bytes = conversion_bytes(from, to, static_cast<double>(d.graph.type(v).bytes()), d.wishes.members);
  // What is asked of parameters is asked for: they stay where they lie, as long as anything else can move.
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
    if (d.hints[v]) cost += conversion_bytes(row.results[i], *d.hints[v], static_cast<double>(d.graph.type(v).bytes()), d.wishes.members);
  }
  return cost;
}

LayoutRow equal_row(const Op& op, const Layout& layout) {
  return {std::vector<Layout>(op.operands.size(), layout), std::vector<Layout>(op.results.size(), layout)};
}

// A sum of scalars that are terms and of others that are whole: the first member adds these.
std::optional<LayoutRow> scalar_sum(const Deciding& d, const Op& op) {
  if (op.name != "add_n" || !d.graph.type(op.results[0]).shape.empty()) return std::nullopt;
  LayoutRow row = equal_row(op, kTerm);
  for (std::size_t i = 0; i < op.operands.size(); ++i) row.operands[i] = d.out.values[op.operands[i]];
  const bool has_term = std::ranges::any_of(row.operands, &Layout::is_term);
  return has_term ? std::optional(row) : std::nullopt;
}

std::vector<LayoutRow> rows_of(const Deciding& d, const Op& op) {
  std::vector<LayoutRow> rows;
  const OpDefinition* definition = definition_of(op);
  const auto add = [&](std::optional<LayoutRow> row) {
    if (row && std::ranges::find(rows, *row) == rows.end()) rows.push_back(std::move(*row));
  };
  if (const auto wanted = constraint(d, op)) return {equal_row(op, *wanted)};
  if (definition && !op.operands.empty()) {
    const std::vector<TensorType> operands = d.types(op.operands), results = d.types(op.results);
    const LayoutSite site{op, operands, results, d.wishes.members};
    const std::optional<Layout> hint = d.hints[op.results[0]];
    for (std::size_t i = 0; i < op.operands.size(); ++i) {
      const Layout& from = d.out.values[op.operands[i]];
      if (!d.open[op.operands[i]] && from.is_split()) add(layout_row(site, i, from));
      if (hint && hint->is_split() && operands[i].shape == results[0].shape) add(layout_row(site, i, *hint));
    }
    if (hint && hint->is_split()) add(layout_row_of_result(site, 0, *hint));
    const auto is_term = [&](ValueId v) { return d.out.values[v].is_term(); };
    if (is_linear(op) && std::ranges::all_of(op.operands, is_term)) add(equal_row(op, kTerm));
    add(scalar_sum(d, op));
  }
  add(equal_row(op, kWhole));
  return rows;
}

void note_conversions(Deciding& d, const Op& op, const LayoutRow& row) {
  for (std::size_t i = 0; i < op.operands.size(); ++i) {
    const ValueId v = op.operands[i];
    if (d.open[v]) d.out.values[v] = row.operands[i];
    d.open[v] = false;
    if (d.out.values[v] != row.operands[i]) d.made.insert({v, row.operands[i], op.phase, op.stage});
  }
}

LayoutRow decide(const Deciding& d, const Op& op) {
  std::vector<LayoutRow> rows = rows_of(d, op);
  return *std::ranges::min_element(rows, {}, [&](const LayoutRow& row) { return cost_of(d, op, row); });
}

GraphLayouts decide_graph(Deciding d);

// Parts of micro-batches come whole; what stays comes as it is, terms summed.
LayoutRow decide_loop(Deciding& d, const Op& loop) {
  const auto split = static_cast<std::size_t>(attribute<std::int64_t>(loop, "split"));
  LayoutRow row = equal_row(loop, kWhole);
  for (std::size_t i = split; i < loop.operands.size(); ++i) {
    d.open[loop.operands[i]] = false;
    if (const Layout& from = d.out.values[loop.operands[i]]; from.is_split()) row.operands[i] = from;
  }
  const Graph& body = *loop.body;
  Deciding inner{body, d.wishes};
  inner.out.values.resize(body.values.size());
  inner.hints.resize(body.values.size());
  inner.open.resize(body.values.size());
  inner.parameter.resize(body.values.size());
  for (std::size_t i = 0; i < body.inputs.size(); ++i) {
    inner.out.values[body.inputs[i]] = row.operands[i];
    inner.parameter[body.inputs[i]] = d.parameter[loop.operands[i]];
  }
  for (std::size_t r = 0; r < loop.results.size(); ++r) inner.hints[body.outputs[r]] = d.hints[loop.results[r]];
  d.out.body = std::make_shared<GraphLayouts>(decide_graph(std::move(inner)));
  row.results = d.out.body->outputs;
  return row;
}

GraphLayouts decide_graph(Deciding d) {
  find_hints(d);
  for (const Op& op : d.graph.ops) {
    LayoutRow row = op.body ? decide_loop(d, op) : decide(d, op);
    note_conversions(d, op, row);
    const OpDefinition* definition = definition_of(op);
    const bool moves = definition && (definition->views >= 0 || op.name == "to") && op.operands.size() == 1;
    for (std::size_t i = 0; i < op.results.size(); ++i) {
      d.out.values[op.results[i]] = row.results[i];
      d.parameter[op.results[i]] = moves && d.parameter[op.operands[0]];
    }
    d.out.rows.push_back(std::move(row));
  }
  for (ValueId v : d.graph.outputs) d.out.outputs.push_back(d.out.values[v]);
  return std::move(d.out);
}

}  // namespace

double conversion_bytes(const Layout& from, const Layout& to, double bytes, std::int64_t members) {
  const auto t = static_cast<double>(members);
  if (from == to) return 0;
  if (to.is_term()) return kNever;
  if (from.is_whole()) return bytes * 1e-9;  // a slice: nothing is sent, but something is copied
  if (to.is_whole()) return (from.is_term() ? 2 : 1) * bytes * (t - 1) / t;
  return from.is_term() ? bytes * (t - 1) / t : bytes * (t - 1) / (t * t);
}

GraphLayouts decide_layouts(const Graph& step, const AxisWishes& wishes) {
  Deciding d{step, wishes};
  const std::size_t values = step.values.size();
  d.out.values.resize(values);
  d.hints.resize(values);
  d.open.resize(values);
  d.parameter.resize(values);
  for (int i = 0; i < step.state; ++i) {
    const ValueId input = step.inputs[i];
    d.parameter[input] = true;
    const auto wish = wishes.states.find(step.values[input].name);
    d.open[input] = wish == wishes.states.end();
    if (d.open[input]) continue;
    d.out.values[input] = wish->second;
    d.hints[input] = d.hints[step.outputs[i]] = wish->second;
  }
  GraphLayouts out = decide_graph(std::move(d));
  for (std::size_t o = 0; o < step.outputs.size(); ++o)
    out.outputs[o] = static_cast<int>(o) < step.state ? out.values[step.inputs[o]] : kWhole;
  return out;
}

}  // namespace penstock
