// SPDX-License-Identifier: Apache-2.0
// Makes stages send each other values in parts: each member of an axis sends its own, and the members of the stage that reads gather them.
//
//   %v: whole on all members, or a term, made in stage A        %part = constrain(%v) in A: split, so a term is reduce-scattered
//   op(%v) in stage B                                     ~~>   %again = constrain(%part) in B: whole, so it is gathered
//                                                               op(%again) in B
//
// A value that lies split anyway stays as it is: it travels in parts, and what the reader needs of it is decided as ever.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/text.h"
#include "transform/layouts.h"
#include "transform/passes.h"

namespace penstock {
namespace {

constexpr std::int64_t kWholeAgain = -1;

// The values that travel in parts, each with the dim that is split, which is one on all of these steps.
using Links = std::map<ValueId, std::int64_t>;

// Whether the op is of another stage than what makes the value. What is made of nothing is made by each stage.
bool is_from_another_stage(const Graph& body, OpId made, const Op& reader) {
  if (!made || reader.stage.empty() || body.ops[made].operands.empty()) return false;
  return !body.ops[made].stage.empty() && body.ops[made].stage != reader.stage;
}

// The first dim of which all members get as much, on all of these graphs; else the first of which all get something; none: there is none.
std::optional<std::int64_t> dim_to_split(const std::vector<const Graph*>& bodies, ValueId v, std::int64_t members) {
  const auto dims = std::ssize(bodies[0]->type(v).shape);
  const auto find = [&](const auto& fits) -> std::optional<std::int64_t> {
    for (std::int64_t d = 0; d < dims; ++d)
      if (std::ranges::all_of(bodies, [&](const Graph* body) { return fits(body->type(v).shape[d]); })) return d;
    return std::nullopt;
  };
  const auto even = find([&](std::int64_t size) { return size > 0 && size % members == 0; });
  return even ? even : find([&](std::int64_t size) { return size >= members; });
}

Links links_of(const std::vector<const Graph*>& bodies, const GraphLayouts& layouts, const AxisWishes& wishes) {
  Links out;
  const Graph& body = *bodies[0];
  const IdVector<ValueId, OpId> producer = producers(body);
  for (const Op& op : body.ops)
    for (ValueId v : op.operands) {
      if (!is_from_another_stage(body, producer[v], op) || !is_floating(body.type(v).dtype)) continue;
      if (!layouts.values[v].is_whole() && !layouts.values[v].is_term()) continue;
      if (!wishes.dims_in(body.ops[producer[v]].stage).contains(kLinks)) continue;
      if (const auto dim = dim_to_split(bodies, v, wishes.members)) out[v] = *dim;
    }
  return out;
}

// Returns the value ahead of the constraints of the same stage that made `v` whole: it may be a term, which is then scattered instead.
ValueId before_constraints(const Graph& body, const IdVector<ValueId, OpId>& producer, ValueId v) {
  for (const std::string& stage = body.ops[producer[v]].stage;;) {
    const OpId made = producer[v];
    if (!made || body.ops[made].name != "constrain" || body.ops[made].stage != stage) return v;
    v = body.ops[made].operands[0];
  }
}

ValueId add_end(Graph& to, const Op& marks, ValueId from, std::int64_t dim) {
  const TensorType type = to.type(from);
  Op end = marks;
  end.name = "constrain";
  end.operands = {from};
  end.results = {to.add_value(type)};
  end.attributes = {{"dims", std::string(type.shape.size() - 1, ',')}, {"link", dim}};
  to.ops.push_back(std::move(end));
  return to.ops.back().results[0];
}

Graph in_parts(const Graph& body, const Links& links) {
  Graph out = body;
  out.ops = {};
  const IdVector<ValueId, OpId> producer = producers(body);
  std::map<ValueId, ValueId> parts;
  std::map<std::pair<ValueId, std::string>, ValueId> again;  // by the stage that reads
  for (const Op& op : body.ops) {
    Op made = op;
    for (ValueId& v : made.operands) {
      const auto link = links.find(v);
      if (link == links.end() || !is_from_another_stage(body, producer[v], op)) continue;
      ValueId &part = parts[v], &here = again[{v, op.stage}];
      if (!part) part = add_end(out, body.ops[producer[v]], before_constraints(body, producer, v), link->second);
      if (!here) here = add_end(out, op, part, kWholeAgain);
      v = here;
    }
    out.ops.push_back(std::move(made));
  }
  return out;
}

}  // namespace

bool is_link_end(const Op& op) {
  return op.attributes.contains("link");
}

Layout link_end_layout(const Op& end, const Shape& shape, std::int64_t members) {
  const auto dim = attribute<std::int64_t>(end, "link");
  return dim == kWholeAgain ? kWhole : split_layout(dim, 1, shape[dim], members);
}

std::vector<Graph> with_links(const std::vector<const Graph*>& steps, const GraphLayouts& layouts, const AxisWishes& wishes) {
  const auto loop_of = [](const Graph& step) { return std::ranges::find_if(step.ops, [](const Op& op) { return bool(op.body); }); };
  std::vector<const Graph*> bodies;
  for (const Graph* step : steps) bodies.push_back(loop_of(*step)->body.get());
  const Links links = links_of(bodies, *layouts.body, wishes);
  std::vector<Graph> out;
  for (const Graph* step : steps) {
    Graph made = *step;
    for (Op& op : made.ops)
      if (op.body) op.body = std::make_shared<const Graph>(in_parts(*op.body, links));
    out.push_back(eliminate_dead_code(made));  // a model's constraints that nobody reads any more
  }
  return out;
}

}  // namespace penstock
