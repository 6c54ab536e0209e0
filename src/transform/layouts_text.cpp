// The text of layouts: what each value is, and what is sent for it.
#include <map>

#include "base/text.h"
#include "transform/layouts.h"
#include "transform/viewed.h"

namespace penstock {
namespace {

std::string verb(const Layout& from, const Layout& to) {
  if (from.is_whole()) return "slice";
  if (from.is_term()) return to.is_whole() ? "all_reduce" : "reduce_scatter";
  return to.is_whole() ? "all_gather" : "all_to_all";
}

struct LayoutLines {
  const AxisWishes& wishes;
  std::string text{};
  double bytes = 0;                     // that a member sends, of the loop's body for one micro-batch
  std::map<std::string, int> counts{};  // of conversions
};

void add_conversions(const Graph& graph, const GraphLayouts& layouts, LayoutLines& out) {
  std::set<Conversion> seen;
  const IdVector<ValueId, OpId> producer = producers(graph);
  for (const OpId i : graph.ops.ids()) {
    const Op& op = graph.ops[i];
    for (std::size_t o = 0; o < op.operands.size(); ++o) {
      if (layouts.values[op.operands[o]] == layouts.rows[i].operands[o]) continue;
      const auto [v, to] = converted_for(graph, producer, layouts, out.wishes.members, {op.operands[o], layouts.rows[i].operands[o]});
      const Layout& from = layouts.values[v];
      const Op& marks = from.is_term() && producer[v] ? graph.ops[producer[v]] : op;
      if (!seen.insert(conversion_for(v, to, marks.phase, marks.stage)).second) continue;
      const double bytes = from.is_whole() ? 0 : conversion_bytes(from, to, static_cast<double>(graph.type(v).bytes()), out.wishes.members);
      out.bytes += bytes;
      ++out.counts[verb(from, to)];
      out.text += concat("  ", verb(from, to), " %", v.value, " ", graph.type(v).text(), ": ", text_of(from), " -> ", text_of(to), ", for ",
                         op.name, op.origin.empty() ? "" : " of " + op.origin, op.phase == Phase::backward ? " (backward)" : "",
                         op.stage.empty() ? "" : concat(" in stage ", op.stage), ": ", bytes_text(bytes), "\n");
    }
  }
}

void add_values(const Graph& graph, const GraphLayouts& layouts, LayoutLines& out) {
  for (ValueId v : graph.inputs)
    if (!layouts.values[v].is_whole())
      out.text += concat("  ", shown_name(graph.values[v].name), " ", graph.type(v).text(), ": ", text_of(layouts.values[v]), "\n");
  for (const OpId i : graph.ops.ids())
    for (ValueId v : graph.ops[i].results)
      if (!layouts.values[v].is_whole())
        out.text += concat("  %", v.value, " = ", graph.ops[i].name, " ", graph.type(v).text(), ": ", text_of(layouts.values[v]), "\n");
}

void add_graph(std::string_view title, const Graph& graph, const GraphLayouts& layouts, LayoutLines& out) {
  out.text += concat(title, ": values that are not whole\n");
  add_values(graph, layouts, out);
  out.text += concat(title, ": conversions\n");
  out.bytes = 0;
  out.counts.clear();
  add_conversions(graph, layouts, out);
  out.text +=
      concat(title, ": ",
             out.counts.empty() ? "no conversions" : join(out.counts, ", ", [](const auto& c) { return concat(c.second, " ", c.first); }),
             "; each member sends ", bytes_text(out.bytes), "\n");
}

}  // namespace

std::string layouts_text(const Graph& step, const GraphLayouts& layouts, const AxisWishes& wishes) {
  LayoutLines out{wishes};
  out.text = concat("axis ", wishes.axis, " of ", wishes.members, " members\n");
  for (const Op& op : step.ops)
    if (op.body && layouts.body) add_graph("each micro-batch", *op.body, *layouts.body, out);
  add_graph("outside of the loop", step, layouts, out);
  return out.text;
}

}  // namespace penstock
