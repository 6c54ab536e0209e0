// SPDX-License-Identifier: Apache-2.0
#include "lower/layout_classes.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/text.h"
#include "ops/definition.h"
#include "ops/layouts.h"
#include "stage/loop.h"

namespace penstock {
namespace {

// One graph, and how its values lie that a split has reached.
struct ReachedGraph {
  const Graph& graph;
  IdVector<ValueId, std::vector<OpId>> touching;  // by value, the ops that read or make it
  IdVector<ValueId, Layout> values;
};

ReachedGraph reached_graph(const Graph& graph) {
  ReachedGraph out{graph, {}, {}};
  out.touching.resize(graph.values.size());
  for (const OpId i : graph.ops.ids())
    for (const auto& list : {graph.ops[i].operands, graph.ops[i].results})
      for (const ValueId v : list)
        if (out.touching[v].empty() || out.touching[v].back() != i) out.touching[v].push_back(i);
  return out;
}

// A split on its way through a step.
struct Reach {
  std::int64_t members;
  const Op& loop;
  ReachedGraph step, body;
  std::vector<std::pair<ReachedGraph*, ValueId>> todo{};
};

void reach(Reach& r, ReachedGraph& in, ValueId v, const Layout& layout) {
  if (!layout.is_split() || in.values[v].is_split()) return;  // what comes first counts
  in.values[v] = layout;
  r.todo.emplace_back(&in, v);
}

void reach_by_op(Reach& r, ReachedGraph& in, ValueId v, const Op& op) {
  std::vector<TensorType> operands, results;
  for (const ValueId o : op.operands) operands.push_back(in.graph.type(o));
  for (const ValueId o : op.results) results.push_back(in.graph.type(o));
  const LayoutSite site{op, operands, results, r.members};
  const auto take = [&](const std::optional<LayoutRow>& row) {
    if (!row) return;
    for (std::size_t i = 0; i < op.operands.size(); ++i) reach(r, in, op.operands[i], row->operands[i]);
    for (std::size_t i = 0; i < op.results.size(); ++i) reach(r, in, op.results[i], row->results[i]);
  };
  const Layout layout = in.values[v];
  for (std::size_t i = 0; i < op.operands.size(); ++i)
    if (op.operands[i] == v) take(layout_row(site, i, layout));
  for (std::size_t i = 0; i < op.results.size(); ++i)
    if (op.results[i] == v) take(layout_row_of_result(site, i, layout));
}

// Reaches the values that lie like `v` because they are the same value across the loop's border or the step's end.
void reach_by_borders(Reach& r, ReachedGraph& in, ValueId v) {
  const Layout layout = in.values[v];
  const bool is_body = &in == &r.body;
  const Graph& body = r.body.graph;
  const auto pass = [&](ValueId outside, ValueId inside) {
    if ((is_body ? inside : outside) == v) reach(r, is_body ? r.step : r.body, is_body ? outside : inside, layout);
  };
  for (auto o = static_cast<std::size_t>(attribute<std::int64_t>(r.loop, "split")); o < r.loop.operands.size(); ++o)
    pass(r.loop.operands[o], body.inputs[o]);
  for (std::size_t o = 0; o < r.loop.results.size(); ++o) pass(r.loop.results[o], body.outputs[o]);
  if (is_body) return;
  for (int s = 0; s < in.graph.state; ++s) {
    if (in.graph.outputs[s] == v) reach(r, in, in.graph.inputs[s], layout);
    if (in.graph.inputs[s] == v) reach(r, in, in.graph.outputs[s], layout);
  }
}

// The parameters that a split of one of them reaches, with their layouts.
std::map<std::string, Layout> reached_states(const ClassSource& source, Reach& r, ValueId state, const Layout& layout) {
  r.step.values.assign(r.step.graph.values.size(), kWhole);
  r.body.values.assign(r.body.graph.values.size(), kWhole);
  reach(r, r.step, state, layout);
  while (!r.todo.empty()) {
    const auto [in, v] = r.todo.back();
    r.todo.pop_back();
    reach_by_borders(r, *in, v);
    for (const OpId i : in->touching[v])
      if (!in->graph.ops[i].body) reach_by_op(r, *in, v, in->graph.ops[i]);
  }
  std::map<std::string, Layout> out;
  for (int s = 0; s < source.step.state; ++s) {
    const ValueId input = source.step.inputs[s];
    const std::string& name = source.step.values[input].name;
    if (r.step.values[input].is_split() && source.parameters.contains(name)) out[name] = r.step.values[input];
  }
  return out;
}

// --- classes

std::vector<LayoutClass> classes_of_names(const ClassSource& source, const std::vector<StateDim>& dims) {
  std::map<std::string, LayoutClass> by_name;
  std::set<std::string> impossible = source.taken;
  for (const StateDim& dim : dims) {
    if (dim.name.empty()) continue;
    LayoutClass& named = by_name[dim.name];
    named.name = dim.name;
    // A name of two dims of one parameter would have to split both.
    if (!dim.has_units || !named.states.emplace(dim.parameter, dim.layout).second) impossible.insert(dim.name);
  }
  std::vector<LayoutClass> out;
  for (auto& [name, named] : by_name)
    if (!impossible.contains(name)) out.push_back(std::move(named));
  return out;
}

bool is_taken(const ClassSource& source, const LayoutClass& found) {
  return std::any_of(found.states.begin(), found.states.end(), [&](const auto& state) {
    const std::vector<DimName>& dims = source.parameters.at(state.first);
    return !dims.empty() && source.taken.contains(dims[state.second.dim].name);
  });
}

// Types and layouts without names: equal layers have equal ones.
std::vector<std::pair<std::string, Layout>> form_of(const ClassSource& source, const LayoutClass& found) {
  std::vector<std::pair<std::string, Layout>> out;
  for (int s = 0; s < source.step.state; ++s) {
    const Value& state = source.step.values[source.step.inputs[s]];
    if (const auto at = found.states.find(state.name); at != found.states.end()) out.emplace_back(state.type.text(), at->second);
  }
  std::sort(out.begin(), out.end());
  return out;
}

// Adds to the first class of the same form that shares no parameter with this one.
void join_equal(const ClassSource& source, LayoutClass found, std::vector<LayoutClass>& joined,
                std::vector<std::vector<std::pair<std::string, Layout>>>& forms) {
  const auto form = form_of(source, found);
  for (std::size_t i = 0; i < joined.size(); ++i) {
    const auto shared = [&](const auto& state) { return joined[i].states.contains(state.first); };
    if (forms[i] != form || std::any_of(found.states.begin(), found.states.end(), shared)) continue;
    joined[i].states.merge(found.states);
    return;
  }
  joined.push_back(std::move(found));
  forms.push_back(form);
}

std::vector<LayoutClass> classes_of_ops(const ClassSource& source, const std::vector<StateDim>& dims) {
  const Op& loop = source.step.ops[loop_of(source.step)];
  Reach r{source.members, loop, reached_graph(source.step), reached_graph(*loop.body)};
  std::vector<LayoutClass> joined;
  std::vector<std::vector<std::pair<std::string, Layout>>> forms;
  std::set<std::pair<std::string, Layout>> seen;
  for (const StateDim& dim : dims) {
    if (!dim.has_units || seen.contains({dim.parameter, dim.layout})) continue;
    const std::string name = dim.name.empty() ? concat("dim ", dim.layout.dim) : dim.name;
    LayoutClass found{concat(name, " of ", dim.parameter), reached_states(source, r, dim.state, dim.layout)};
    seen.insert(found.states.begin(), found.states.end());
    if (!is_taken(source, found)) join_equal(source, std::move(found), joined, forms);
  }
  return joined;
}

std::vector<LayoutClass> classes_of_constraints(const ClassSource& source) {
  std::set<std::string> names;
  for (const Op& op : source.step.ops[loop_of(source.step)].body->ops) {
    if (op.name != "constrain") continue;
    const std::vector<std::string> dims = constrained_dims(op);
    names.insert(dims.begin(), dims.end());
  }
  std::vector<LayoutClass> out;
  for (const std::string& name : names)
    if (!name.empty() && name != "batch" && !source.taken.contains(name)) out.push_back({name, {}});
  return out;
}

}  // namespace

std::vector<StateDim> state_dims(const ClassSource& source) {
  std::vector<StateDim> out;
  for (int s = 0; s < source.step.state; ++s) {
    const Value& state = source.step.values[source.step.inputs[s]];
    const auto parameter = source.parameters.find(state.name);
    if (parameter == source.parameters.end()) continue;
    const std::vector<DimName>& dims = parameter->second;
    for (std::size_t d = 0; d < state.type.shape.size(); ++d) {
      const DimName dim = dims.empty() ? DimName() : dims[d];
      if (!dims.empty() && dim.name.empty()) continue;
      const std::int64_t units = dim.units > 0 ? dim.units : state.type.shape[d] / dim.outer;
      out.push_back({source.step.inputs[s], state.name, dim.name,
                     split_layout(static_cast<std::int64_t>(d), dim.outer, units, source.members), units >= source.members});
    }
  }
  return out;
}

std::vector<LayoutClass> layout_classes(const ClassSource& source) {
  const std::vector<StateDim> dims = state_dims(source);
  std::vector<LayoutClass> out = classes_of_names(source, dims);
  for (LayoutClass& found : classes_of_ops(source, dims))
    if (std::none_of(out.begin(), out.end(), [&](const LayoutClass& named) { return named.states == found.states; }))
      out.push_back(std::move(found));
  for (LayoutClass& constrained : classes_of_constraints(source)) out.push_back(std::move(constrained));
  return out;
}

}  // namespace penstock
