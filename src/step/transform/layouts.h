// SPDX-License-Identifier: Apache-2.0
// Named axes of a mesh, one after the other: along one axis every value of a step gets a layout, and each member of the axis a step of its
// own on what it has, with the collectives that this needs (Shardy's factors, openxla/shardy docs/propagation.md; GSPMD, 2105.04663).
//
// An op takes the layouts (penstock/layout.h) that its operands come in with the fewest bytes; where one lies otherwise than the op needs
// it, a conversion stands: term -> whole an all_reduce, term -> split a reduce_scatter, split -> whole an all_gather, split -> another
// split an all_to_all, whole -> split the range that a member has. The step is differentiated already, so no collective needs a gradient.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "penstock/graph.h"
#include "penstock/layout.h"

namespace penstock {

// This name is no dim of a model: where it lies along the axis, what a stage gives others is split on the way (with_links).
inline constexpr const char* kLinks = "links";

// The layouts that are asked for along one axis.
struct AxisWishes {
  std::string axis;
  std::int64_t members = 1;
  std::map<std::string, Layout> states;                          // by name; other states follow what is computed of them, or are whole
  std::set<std::string> dims;                                    // names of dims that lie along the axis, for `constrain`
  std::map<std::string, std::set<std::string>> stage_dims = {};  // instead of these, in stages that have names of their own
  // Attention over split sequences is computed in parts (transform/attention_in_parts.h): what is constrained is split mirrored, where it
  // can be.
  bool attention_in_parts = false;
  bool in_slices = false;                           // the members are slices of a sequence, one after the other (transform/slices.h)
  const std::vector<std::int64_t>* ends = nullptr;  // where they end, in equal parts of the sequence; none: they are equal
  bool in_groups = false;                           // LayoutAxis::in_groups
  std::vector<Layout> sums = {};                    // how the loop's results lie; empty: as it comes cheapest

  const std::set<std::string>& dims_in(const std::string& stage) const {
    const auto own = stage_dims.find(stage);
    return own == stage_dims.end() ? dims : own->second;
  }
  bool has_links() const {
    return dims.contains(kLinks) || std::ranges::any_of(stage_dims, [](const auto& own) { return own.second.contains(kLinks); });
  }
};

// Layouts of one graph's values, with those of its loop's body.
struct GraphLayouts {
  IdVector<ValueId, Layout> values;  // as they are made
  IdVector<OpId, LayoutRow> rows;    // what each op reads and makes
  std::vector<Layout> outputs;       // as the graph gives them away
  std::shared_ptr<GraphLayouts> body;
};

// Layouts of a step whose ops have their stages. Throws Error where a constraint does not fit its tensor.
GraphLayouts decide_layouts(const Graph& step, const AxisWishes& wishes);
// The same for steps of the members of the axes before, which are one step in different sizes, but for what the first member alone adds:
// what they do together lies alike on all.
std::vector<GraphLayouts> decide_layouts(const std::vector<const Graph*>& steps, const std::vector<AxisWishes>& wishes);

// Layouts of a graph without a loop. `values`: how its inputs lie; of those that are `open`, if any, the first op that reads them says it.
// A flat value stays flat where there is a row for that, whatever else it costs.
GraphLayouts decide_layouts(const Graph& graph, IdVector<ValueId, Layout> values, IdVector<ValueId, bool> open, std::int64_t members);

// Whether a cross_entropy is of logits whose classes are split. Then it is better computed in parts: what the parts give is less than
// logits.
bool has_split_loss(const Graph& step, const GraphLayouts& layouts);
// The step with such a cross_entropy as cross_entropy_parts, a part for each member, and cross_entropy_join. The layouts are those of
// `step` or of a step that differs from it in sizes only; those of the new step are to be decided.
Graph losses_in_parts(const Graph& step, const GraphLayouts& layouts, std::int64_t members);

// The steps of all members of the axes before, in which each value that a stage reads of another and that is no split along this axis has
// two ends: ops by which it is split where it is made, if kLinks lies along the axis there, and whole again where it is read (`layouts`:
// of the first step; those of the new steps are to be decided). So what goes over a link between stages is each member's part. A value
// that cannot be split has none.
std::vector<Graph> with_links(const std::vector<const Graph*>& steps, const GraphLayouts& layouts, const AxisWishes& wishes);
bool is_link_end(const Op& op);
Layout link_end_layout(const Op& end, const Shape& shape, std::int64_t members);

// The values of a step in the step of one member, by their numbers in the first.
struct LocalValues {
  IdVector<ValueId, ValueId> values;  // as they are made; none: a member does without
  std::shared_ptr<LocalValues> body;
};
// The step of one member: local types and attributes, conversions as ops; states keep their names, and constraints stay for further axes.
// Conversions of a term stand in the stage that makes it, others in the stage that reads. `values`, if any, takes what became of the
// values.
Graph localise(const Graph& step, const GraphLayouts& layouts, const AxisWishes& wishes, std::int64_t member,
               LocalValues* values = nullptr);

// The layouts as text: one line for each value that is not whole, and for each conversion why it is there and the bytes that each member
// sends.
std::string layouts_text(const Graph& step, const GraphLayouts& layouts, const AxisWishes& wishes);

// A conversion is made once for each of these. What was gathered is not kept from a stage's forward to its backward, which gathers it
// again; a part of another dim is as large as the part that it came from, and is kept.
using Conversion = std::tuple<ValueId, Layout, Phase, std::string>;
inline Conversion conversion_for(ValueId v, const Layout& to, Phase phase, const std::string& stage) {
  return {v, to, to.is_whole() ? phase : Phase::forward, stage};
}

// Whose marks a conversion takes of what `made` makes, if an op does. A term becomes something else in the stage that makes it, the rest
// where it is read; a reader of no stage (a sum of several stages' terms) leaves all to who makes it.
inline const Op& marks_of_conversion(const Graph& graph, OpId made, const Layout& from, const Op& reader) {
  return made && (from.is_term() || reader.stage.empty()) ? graph.ops[made] : reader;
}

// A conversion that localise() makes, and why.
struct LayoutConversion {
  ValueId value;
  Layout from, to;
  OpId reader;      // the first op that asks for it; none: the graph gives it away
  int readers = 1;  // how many ask
  Phase phase = Phase::forward;
  std::string stage;  // where it stands
  double bytes = 0;   // that each member sends
};
// The conversions of one graph, without its loop's body, in its order.
std::vector<LayoutConversion> conversions_in(const Graph& graph, const GraphLayouts& layouts, std::int64_t members);
// "all_reduce", or "slice", which sends nothing.
std::string_view conversion_name(const Layout& from, const Layout& to);
// "linear of h.0.mlp.c_fc (backward)", or that the graph gives it away.
std::string reader_text(const Graph& graph, const LayoutConversion& conversion);

// Bytes that a member sends (as the formulas of collectives count them) to have a tensor of so many bytes in another layout.
double conversion_bytes(const Layout& from, const Layout& to, double bytes, std::int64_t members);

}  // namespace penstock
