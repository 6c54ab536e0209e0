// SPDX-License-Identifier: Apache-2.0
// Makes the step of one member of an axis, of a step whose layouts are decided.
#include <algorithm>
#include <tuple>
#include <utility>

#include "base/invariant.h"
#include "ops/layouts.h"
#include "transform/attention_in_parts.h"
#include "transform/conversions.h"
#include "transform/layouts.h"
#include "transform/viewed.h"

namespace penstock {
namespace {

struct Local {
  const Graph& from;
  const GraphLayouts& layouts;
  const AxisWishes& wishes;
  std::int64_t member;
  Graph graph{};
  IdVector<ValueId, ValueId> value{};  // of `from`: here, as it is made
  IdVector<ValueId, OpId> producer{};  // of `from`
  std::map<Conversion, ValueId> converted{};
  LocalValues* values = nullptr;

  TensorType local(ValueId v, const Layout& layout) const { return local_type(from.type(v), layout, wishes.members, member); }
  MeshAxis axis() const { return {wishes.axis, wishes.members}; }
};

Local local_of(const Graph& from, const GraphLayouts& layouts, const AxisWishes& wishes, std::int64_t member, LocalValues* values) {
  Local out{from, layouts, wishes, member, empty_like(from)};
  out.values = values;
  out.value.resize(from.values.size());
  out.producer = producers(from);
  return out;
}

ValueId converted(Local& l, ValueId v, const Layout& to, const Op& reader);

// A view, where what it views can be converted instead: a collective takes what lies in memory, and a view would be copied for it.
ValueId converted_before(Local& l, ValueId v, const Layout& to, const Op& marks) {
  const auto before = viewed(l.from, l.producer[v], l.layouts, l.wishes.members, {v, to});
  if (!before) return {};
  const TensorType type = l.local(v, to);
  Op made_here = l.from.ops[l.producer[v]];
  made_here.operands = {converted(l, before->value, before->layout, marks)};
  made_here.results = {l.graph.add_value(type)};
  if (made_here.name == "reshape") made_here.attributes["shape"] = type.shape;
  made_here.stage = marks.stage;
  made_here.phase = marks.phase;
  l.graph.ops.push_back(std::move(made_here));
  return l.graph.ops.back().results[0];
}

// Zeros are made as they are to lie, so that they are still known to be zeros.
ValueId zeros_as(Local& l, ValueId v, const Layout& to, const Op& marks) {
  const OpId made = l.producer[v];
  if (!made || !is_zeros(l.from.ops[made])) return {};
  const TensorType type = l.local(v, to);
  return add_beside({l.graph, marks, l.axis(), l.member}, "full", {}, {{"dtype", type.dtype}, {"fill_value", 0.0}, {"size", type.shape}});
}

// The value in another layout.
ValueId converted(Local& l, ValueId v, const Layout& to, const Op& reader) {
  const Layout& from = l.layouts.values[v];
  if (from == to) return l.value[v];
  const Op& marks = marks_of_conversion(l.from, l.producer[v], from, reader);
  const Conversion key = conversion_for(v, to, marks.phase, marks.stage);
  if (const auto found = l.converted.find(key); found != l.converted.end()) return found->second;
  ValueId out = zeros_as(l, v, to, marks);
  if (!out) out = converted_before(l, v, to, marks);
  if (!out) out = convert({l.graph, marks, l.axis(), l.member}, l.value[v], l.from.type(v), from, to);
  return l.converted[key] = out;
}

Graph local_graph(Local l);

void add_loop(Local& l, const Op& op, const LayoutRow& row) {
  Op made = op;
  for (std::size_t i = 0; i < op.operands.size(); ++i) made.operands[i] = converted(l, op.operands[i], row.operands[i], op);
  for (std::size_t i = 0; i < op.results.size(); ++i)
    made.results[i] = l.value[op.results[i]] = l.graph.add_value(l.local(op.results[i], row.results[i]));
  if (l.values) l.values->body = std::make_shared<LocalValues>();
  LocalValues* values = l.values ? l.values->body.get() : nullptr;
  made.body = std::make_shared<Graph>(local_graph(local_of(*op.body, *l.layouts.body, l.wishes, l.member, values)));
  l.graph.ops.push_back(std::move(made));
}

void add_attention_in_parts(Local& l, OpId i, const LayoutRow& row) {
  const Op& op = l.from.ops[i];
  std::vector<ValueId> operands;
  for (std::size_t o = 0; o < op.operands.size(); ++o) operands.push_back(converted(l, op.operands[o], row.operands[o], op));
  const std::vector<ValueId> results = attention_in_parts({l.graph, op, l.axis(), l.member}, operands, i.value);
  for (std::size_t r = 0; r < results.size(); ++r) l.value[op.results[r]] = results[r];
}

void add_op(Local& l, const Op& op, const LayoutRow& row) {
  Op made = local_op_by_places(l.from, op, row, l.wishes.members, l.member);
  const bool adds_terms = op.name == "add_n" && row.results[0].is_term();
  for (ValueId& operand : made.operands) {
    const std::size_t i = operand.index();
    operand = converted(l, op.operands[i], row.operands[i], op);
    if (adds_terms && row.operands[i].is_whole()) operand = term_of_first({l.graph, op, l.axis(), l.member}, operand);
  }
  for (std::size_t i = 0; i < op.results.size(); ++i)
    made.results[i] = l.value[op.results[i]] = l.graph.add_value(l.local(op.results[i], row.results[i]));
  l.graph.ops.push_back(std::move(made));
}

Graph local_graph(Local l) {
  for (ValueId input : l.from.inputs)
    l.value[input] = l.graph.add_input(l.local(input, l.layouts.values[input]), l.from.values[input].name);
  for (const OpId i : l.from.ops.ids()) {
    const Op& op = l.from.ops[i];
    const LayoutRow& row = l.layouts.rows[i];
    if (op.body)
      add_loop(l, op, row);
    else if (is_in_parts(op, row))
      add_attention_in_parts(l, i, row);
    else if (is_link_end(op))
      l.value[op.results[0]] = converted(l, op.operands[0], row.operands[0], op);
    else
      add_op(l, op, row);
  }
  for (std::size_t o = 0; o < l.from.outputs.size(); ++o) {
    const ValueId v = l.from.outputs[o];
    const OpId made = l.producer[v];
    l.graph.outputs.push_back(converted(l, v, l.layouts.outputs[o], made ? l.from.ops[made] : Op()));
  }
  if (l.values) l.values->values = std::move(l.value);
  return std::move(l.graph);
}

}  // namespace

Graph localise(const Graph& step, const GraphLayouts& layouts, const AxisWishes& wishes, std::int64_t member, LocalValues* values) {
  return local_graph(local_of(step, layouts, wishes, member, values));
}

}  // namespace penstock
