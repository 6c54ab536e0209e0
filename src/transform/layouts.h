// Named axes of a mesh, one after the other: along one axis every value of a step gets a layout, and each member of the axis a step of its
// own on what it has, with the collectives that this needs (Shardy's factors, openxla/shardy docs/propagation.md; GSPMD, 2105.04663).
//
// An op takes the layouts (penstock/layout.h) that its operands come in with the fewest bytes; where one lies otherwise than the op needs
// it, a conversion stands: term -> whole an all_reduce, term -> split a reduce_scatter, split -> whole an all_gather, split -> another
// split an all_to_all, whole -> split a slice. The step is differentiated already, so no collective needs a gradient.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "penstock/graph.h"
#include "penstock/layout.h"

namespace penstock {

// What is asked for along one axis.
struct AxisWishes {
  std::string axis;
  std::int64_t members = 1;
  std::map<std::string, Layout> states;  // by name; other states follow what is computed of them, or are whole
  std::set<std::string> dims;            // names of dims that lie along the axis, for `constrain`
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

// The step of one member: local types and attributes, conversions as ops; states keep their names. Conversions of a term stand in the stage
// that makes it, others in the stage that reads; each is made once for a stage's forward and once for its backward.
Graph localise(const Graph& step, const GraphLayouts& layouts, const AxisWishes& wishes, std::int64_t member);

// The layouts as text: one line for each value that is not whole, and for each conversion why it is there and the bytes that each member
// sends.
std::string layouts_text(const Graph& step, const GraphLayouts& layouts, const AxisWishes& wishes);

// Bytes that a member sends (as the formulas of collectives count them) to have a tensor of so many bytes in another layout.
double conversion_bytes(const Layout& from, const Layout& to, double bytes, std::int64_t members);

}  // namespace penstock
