// SPDX-License-Identifier: Apache-2.0
#include "report/layout_costs.h"

#include <algorithm>
#include <map>
#include <ranges>

#include "base/text.h"
#include "base/words.h"
#include "report/table.h"
#include "stage/loop.h"

namespace penstock {
namespace {

void add_cost(const Graph& graph, const LayoutConversion& c, StageConversions& to) {
  if (c.from.is_whole()) {
    ++to.slices;
    return;
  }
  to.conversions.push_back({std::string(conversion_name(c.from, c.to)), concat("%", c.value.value, " ", graph.type(c.value).text()),
                            text_of(c.from), text_of(c.to), reader_text(graph, c), c.readers, c.bytes});
  to.bytes += c.bytes;
}

void sort_costs(StageConversions& costs) {
  std::ranges::stable_sort(costs.conversions, std::ranges::greater{}, &ConversionCost::bytes);
}

AxisConversions costs_along(const AxisDecision& axis) {
  AxisConversions out{axis.wishes.axis, axis.wishes.members, axis.own, {}, {}, 0};
  if (axis.own) return out;
  const Graph& body = *axis.step.ops[loop_of(axis.step)].body;
  std::map<std::string, StageConversions> stages;
  for (const LayoutConversion& c : conversions_in(body, *axis.layouts[0].body, axis.wishes.members)) add_cost(body, c, stages[c.stage]);
  for (const LayoutConversion& c : conversions_in(axis.step, axis.layouts[0], axis.wishes.members)) add_cost(axis.step, c, out.once);
  for (auto& [stage, costs] : stages) {
    costs.stage = stage;
    sort_costs(costs);
    out.bytes += costs.bytes;
    out.stages.push_back(std::move(costs));
  }
  sort_costs(out.once);
  return out;
}

std::string stage_text(const std::string& heading, const StageConversions& costs) {
  std::vector<std::vector<std::string>> rows;
  for (const ConversionCost& c : costs.conversions)
    rows.push_back({"  " + c.conversion, c.value, c.from, c.to, bytes_text(c.bytes),
                    concat(c.why, c.readers > 1 ? concat(" and ", c.readers - 1, " more") : "")});
  return concat("\n", heading, ": ", bytes_text(costs.bytes),
                costs.slices > 0 ? concat("; and ", counted(costs.slices, "slice"), ", which send nothing") : "", "\n",
                rows.empty() ? "" : table({"  conversion", "of", "from", "to", "each member sends", "for"}, rows));
}

}  // namespace

std::vector<AxisConversions> layout_costs(const std::vector<AxisDecision>& axes) {
  std::vector<AxisConversions> out;
  for (const AxisDecision& axis : axes | std::views::reverse) out.push_back(costs_along(axis));
  return out;
}

std::string text_of(const std::vector<AxisConversions>& axes) {
  std::string out;
  for (const AxisConversions& axis : axes) {
    out += concat(out.empty() ? "" : "\n", "axis ", axis.axis, " of ", axis.members, " members: ");
    if (axis.own) {
      out += "the model's own collectives\n";
      continue;
    }
    out += concat("each sends ", bytes_text(axis.bytes), " for a micro-batch, and ", bytes_text(axis.once.bytes), " once a step\n");
    for (const StageConversions& stage : axis.stages) out += stage_text(concat("stage ", quote(stage.stage), ", each micro-batch"), stage);
    if (!axis.once.conversions.empty() || axis.once.slices > 0) out += stage_text("outside of the loop, once a step", axis.once);
  }
  return out.empty() ? "no axis of the mesh splits tensors\n" : out;
}

}  // namespace penstock
