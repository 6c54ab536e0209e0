// SPDX-License-Identifier: Apache-2.0
#include "transform/collectives.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "ops/definition.h"
#include "penstock/error.h"
#include "transform/conversions.h"
#include "transform/rewrite.h"

namespace penstock {
namespace {

MeshAxis axis_said_by(const Op& op) {
  return {attribute<std::string>(op, "axis"), attribute<std::int64_t>(op, "size")};
}

bool is_along(const Op& op, const MeshAxis& axis) {
  return is_collective(op) && attribute<std::string>(op, "axis") == axis.name;
}

std::vector<std::string> made_in(const Op& op) {
  return op.origin.empty() ? std::vector<std::string>() : std::vector{concat("made in ", op.origin)};
}

void collect_axes(const Graph& graph, std::vector<MeshAxis>& axes) {
  for (const Op& op : graph.ops) {
    if (op.body) collect_axes(*op.body, axes);
    if (!is_collective(op)) continue;
    const MeshAxis axis = axis_said_by(op);
    const auto known = std::ranges::find(axes, axis.name, &MeshAxis::name);
    if (known == axes.end()) {
      axes.push_back(axis);
    } else if (known->size != axis.size) {
      throw Error(concat("graph @", graph.name, ": ", op.name, " is along axis ", quote(axis.name), " of ", axis.size,
                         " members, another op along it has ", known->size),
                  made_in(op), "give all ops along an axis the same MeshAxis");
    }
  }
}

std::string mesh_text(std::span<const LayoutAxis> mesh) {
  if (mesh.empty()) return "the mesh has no axes inside an actor";
  return concat("the mesh's axes inside an actor: ", join(mesh, ", ", [](const LayoutAxis& a) { return concat(a.name, " of ", a.size); }));
}

void check_axis(const Graph& graph, const Op& op, std::span<const LayoutAxis> mesh) {
  const MeshAxis axis = axis_said_by(op);
  const std::string what = concat("graph @", graph.name, ": ", op.name, " is along axis ", quote(axis.name), " of ", axis.size, " members");
  std::vector<std::string> details = made_in(op);
  const auto found = std::ranges::find(mesh, axis.name, &LayoutAxis::name);
  if (found == mesh.end()) {
    details.insert(details.begin(), mesh_text(mesh));
    throw Error(concat(what, ", which the mesh does not have"), details, concat("--mesh ", axis.name, "=", axis.size));
  }
  if (found->size != axis.size)
    throw Error(concat(what, ", the mesh's has ", found->size), details,
                concat("--mesh ", axis.name, "=", axis.size, ", or make the model for ", found->size));
  std::set<std::string> split = found->dims;
  for (const auto& [stage, names] : found->stage_dims) split.insert(names.begin(), names.end());
  if (!split.empty()) {
    const std::vector<std::string> dims(split.begin(), split.end());
    throw Error(concat(what, ", over which dims are split too"), {concat("the dims: ", join(dims, ", "))},
                concat("along an axis either the model or [layout] says what members do: --set layout.", dims[0], "="));
  }
}

void check_axes(const Graph& graph, std::span<const LayoutAxis> mesh) {
  for (const Op& op : graph.ops) {
    if (op.body) check_axes(*op.body, mesh);
    if (is_collective(op)) check_axis(graph, op, mesh);
  }
}

// Checks that no collective stands ahead of the loop: each actor computes that code for itself, as one task.
void check_places(const Graph& step) {
  IdVector<ValueId, bool> depends(step.values.size());
  for (const Op& op : step.ops) {
    const bool any = op.body || std::ranges::any_of(op.operands, [&](ValueId v) { return depends[v]; });
    for (ValueId v : op.results) depends[v] = any;
    if (any || !is_collective(op) || op.name == "keep_member" || op.name == "reduce_gradient") continue;
    throw Error(concat("graph @", step.name, ": ", op.name, " stands outside of the loop and depends on nothing that the loop makes"),
                made_in(op), "write it in the loop, where its result is used");
  }
}

// --- all members as one

// The values that the members have for one value: one for all, or one for each.
using Held = std::vector<ValueId>;

struct Together {
  const Graph& from;
  const MeshAxis& axis;
  Graph graph{};
  IdVector<ValueId, Held> held{};        // of `from`
  IdVector<ValueId, const Op*> cause{};  // of what differs: the op that made it differ
  std::vector<Held> outputs{};

  std::size_t members() const { return static_cast<std::size_t>(axis.size); }
  ValueId of(ValueId v, std::size_t member) const { return held[v].size() == 1 ? held[v][0] : held[v][member]; }
  bool is_alike(ValueId v) const { return held[v].size() == 1; }
};

Together together(const Graph& from, const MeshAxis& axis) {
  Together out{from, axis, empty_like(from)};
  out.held.resize(from.values.size());
  out.cause.resize(from.values.size());
  return out;
}

const Op* cause_of(const Together& t, const Op& op) {
  for (ValueId v : op.operands)
    if (!t.is_alike(v)) return t.cause[v];
  return &op;
}

Held all_of(const Together& t, ValueId v) {
  Held out;
  for (std::size_t m = 0; m < t.members(); ++m) out.push_back(t.of(v, m));
  return out;
}

ValueId slice_for(const ConversionSite& s, ValueId v, std::int64_t dim, std::size_t member) {
  const std::int64_t size = s.graph.type(v).shape[dim] / s.axis.size, begin = static_cast<std::int64_t>(member) * size;
  return add_beside(s, "slice", {v}, {{"dim", dim}, {"start", begin}, {"end", begin + size}, {"step", std::int64_t{1}}});
}

// The collective's result on all members, made of what they have of its operand.
Held result_of(Together& t, const Op& op) {
  const ConversionSite site{t.graph, op, t.axis};
  const ValueId operand = op.operands[0];
  if (op.name == "reduce_gradient") return t.held[operand];
  const auto root = static_cast<std::size_t>(attribute_or(op, "root", std::int64_t{0}));
  const auto dim = attribute_or(op, "dim", std::int64_t{0});
  const Held all = all_of(t, operand);
  const auto sum = [&] { return all.size() == 1 ? all[0] : add_beside(site, "add_n", all, {}); };
  if (op.name == "all_reduce") return {sum()};
  if (op.name == "broadcast") return {all[root]};
  if (op.name == "all_gather") return {add_beside(site, "cat", all, {{"dim", dim}})};
  Held out;
  if (op.name == "shift_members") {
    const auto by = static_cast<std::size_t>(attribute<std::int64_t>(op, "by"));
    for (std::size_t m = 0; m < t.members(); ++m) out.push_back(all[(m + by) % t.members()]);
  } else if (op.name == "keep_member") {
    const TensorType& type = t.from.type(operand);
    for (std::size_t m = 0; m < t.members(); ++m)
      out.push_back(m == root ? all[m] : add_beside(site, "full", {}, {{"dtype", type.dtype}, {"fill_value", 0.0}, {"size", type.shape}}));
  } else if (op.name == "reduce_scatter") {
    const ValueId whole = sum();
    for (std::size_t m = 0; m < t.members(); ++m) out.push_back(slice_for(site, whole, dim, m));
  } else {
    for (std::size_t m = 0; m < t.members(); ++m) {
      Held pieces;
      for (ValueId v : all) pieces.push_back(slice_for(site, v, dim, m));
      out.push_back(add_beside(site, "cat", pieces, {{"dim", dim}}));
    }
  }
  return out;
}

// Once, or once for each member.
void add_op_of_all(Together& t, const Op& op) {
  const bool alike = std::ranges::all_of(op.operands, [&](ValueId v) { return t.is_alike(v); });
  for (ValueId v : op.results) t.cause[v] = cause_of(t, op);
  for (std::size_t m = 0; m < (alike ? 1 : t.members()); ++m) {
    Op made = op;
    for (ValueId& v : made.operands) v = t.of(v, m);
    for (ValueId& v : made.results) {
      t.held[v].push_back(t.graph.add_value(t.from.type(v)));
      v = t.held[v].back();
    }
    t.graph.ops.push_back(std::move(made));
  }
}

void add_ops_of_all(Together& t);

// One loop for all members: it reads and sums what they have, one after the other.
void add_loop_of_all(Together& t, const Op& op) {
  Together inner = together(*op.body, t.axis);
  Op made = op;
  made.operands.clear();
  made.results.clear();
  const auto split = static_cast<std::size_t>(attribute<std::int64_t>(op, "split"));
  for (std::size_t i = 0; i < op.operands.size(); ++i) {
    if (i == split) made.attributes["split"] = std::ssize(made.operands);
    const ValueId input = op.body->inputs[i];
    inner.cause[input] = t.cause[op.operands[i]];
    for (ValueId v : t.held[op.operands[i]]) {
      made.operands.push_back(v);
      const std::string number = inner.held[input].empty() ? "" : concat(".", inner.held[input].size());
      inner.held[input].push_back(inner.graph.add_input(op.body->type(input), op.body->values[input].name + number));
    }
  }
  if (split == op.operands.size()) made.attributes["split"] = std::ssize(made.operands);
  add_ops_of_all(inner);
  for (std::size_t i = 0; i < op.results.size(); ++i) {
    const ValueId inside = op.body->outputs[i];
    t.cause[op.results[i]] = inner.cause[inside];
    for (ValueId v : inner.held[inside]) {
      inner.graph.outputs.push_back(v);
      made.results.push_back(t.graph.add_value(t.from.type(op.results[i])));
      t.held[op.results[i]].push_back(made.results.back());
    }
  }
  made.body = std::make_shared<const Graph>(std::move(inner.graph));
  t.graph.ops.push_back(std::move(made));
}

void add_ops_of_all(Together& t) {
  for (const Op& op : t.from.ops) {
    if (op.body) {
      add_loop_of_all(t, op);
    } else if (is_along(op, t.axis)) {
      t.held[op.results[0]] = result_of(t, op);
      t.cause[op.results[0]] = cause_of(t, op);
    } else {
      add_op_of_all(t, op);
    }
  }
}

[[noreturn]] void fail_state(const Together& t, const std::string& name, const Op& cause) {
  throw Error(concat("state ", quote(name), " does not stay the same on the ", t.axis.size, " members of axis ", quote(t.axis.name)),
              {concat("its next value is made of what differs between them since ", cause.name,
                      cause.origin.empty() ? "" : concat(", made in ", cause.origin))},
              concat("reduce its gradient along the axis: read it as reduce_gradient(x, {", quote(t.axis.name), ", ", t.axis.size, "})"));
}

// --- one member

// The value on the member that keeps it, and zeros on others, by the same ops: so nothing becomes dead or equal on some members alone that
// all must do together.
ValueId kept(Graph& graph, const Op& op, ValueId v, const MeshAxis& axis, std::int64_t member) {
  const ConversionSite site{graph, op, axis, member};
  const auto scalar = [&](DType dtype, double value) {
    return add_beside(site, "full", {}, {{"dtype", dtype}, {"fill_value", value}, {"size", std::vector<std::int64_t>()}});
  };
  const ValueId keeps = scalar(DType::boolean, member == attribute<std::int64_t>(op, "root") ? 1 : 0);
  return add_beside(site, "where", {keeps, v, scalar(graph.type(v).dtype, 0)}, {});
}

// --- packing

// Returns for each value whether a task must write it: an output, a state or a term of a sum. A collective's result is only read by tasks.
IdVector<ValueId, bool> written_by_tasks(const Graph& graph) {
  IdVector<ValueId, bool> out(graph.values.size());
  for (ValueId v : graph.outputs) out[v] = true;
  for (const Op& op : graph.ops)
    if (op.name == "add_n")
      for (ValueId v : op.operands) out[v] = true;
  return out;
}

ValueId viewed(const ConversionSite& site, ValueId v) {
  return add_beside(site, "reshape", {v}, {{"shape", site.graph.type(v).shape}});
}

}  // namespace

std::vector<MeshAxis> axes_of_collectives(const Graph& step) {
  std::vector<MeshAxis> axes;
  collect_axes(step, axes);
  return axes;
}

void check_collectives(const Graph& step, std::span<const LayoutAxis> mesh) {
  check_axes(step, mesh);
  check_places(step);
}

Graph of_all_members(const Graph& step, const MeshAxis& axis) {
  Together t = together(step, axis);
  for (ValueId input : step.inputs) t.held[input] = {t.graph.add_input(step.type(input), step.values[input].name)};
  add_ops_of_all(t);
  for (std::size_t o = 0; o < step.outputs.size(); ++o) {
    const ValueId v = step.outputs[o];
    if (static_cast<int>(o) < step.state && !t.is_alike(v)) fail_state(t, step.values[step.inputs[o]].name, *t.cause[v]);
    t.graph.outputs.push_back(t.held[v][0]);
  }
  return std::move(t.graph);
}

Graph of_all_members(Graph step) {
  for (const MeshAxis& axis : axes_of_collectives(step)) step = of_all_members(step, axis);
  return step;
}

Graph of_member(const Graph& step, const MeshAxis& axis, std::int64_t member) {
  Rewrite out = Rewrite::with_inputs(step);
  for (const Op& op : step.ops) {
    if (op.body) {
      out.copy(op, of_member(*op.body, axis, member));
    } else if (is_along(op, axis) && op.name == "reduce_gradient") {
      out[op.results[0]] = out[op.operands[0]];
    } else if (is_along(op, axis) && op.name == "keep_member") {
      out[op.results[0]] = kept(out.graph, op, out[op.operands[0]], axis, member);
    } else {
      out.copy(op);
    }
  }
  return out.finish();
}

Graph pack_collectives(const Graph& step, std::span<const MeshAxis> axes, std::span<const std::int64_t> place) {
  Rewrite out = Rewrite::with_inputs(step);
  const IdVector<ValueId, OpId> producer = producers(step);
  const IdVector<ValueId, bool> by_tasks = written_by_tasks(step);
  for (const Op& op : step.ops) {
    if (op.body) {
      out.copy(op, pack_collectives(*op.body, axes, place));
      continue;
    }
    const auto along = std::ranges::find_if(axes, [&](const MeshAxis& axis) { return is_along(op, axis); });
    if (along == axes.end()) {
      out.copy(op);
      continue;
    }
    const ConversionSite site{out.graph, op, *along, place[static_cast<std::size_t>(along - axes.begin())]};
    const OpId from = producer[op.operands[0]];
    const bool constant = from && step.ops[from].operands.empty();  // it is cloned to whoever reads it, and a collective is a task alone
    ValueId v = out[op.operands[0]];
    v = pack_collective(site, op, constant ? viewed(site, v) : v);
    out[op.results[0]] = by_tasks[op.results[0]] && is_collective(out.graph.ops.back()) ? viewed(site, v) : v;
  }
  return out.finish();
}

}  // namespace penstock
