// SPDX-License-Identifier: Apache-2.0
// The text of layouts: what each value is, and what is sent for it.
#include <map>

#include "base/text.h"
#include "transform/attention_in_parts.h"
#include "transform/layouts.h"
#include "transform/viewed.h"

namespace penstock {
namespace {

struct LayoutLines {
  const AxisWishes& wishes;
  std::string text{};
  double bytes = 0;                     // that a member sends, of the loop's body for one micro-batch
  std::map<std::string, int> counts{};  // of conversions
};

void add_conversions(const Graph& graph, const GraphLayouts& layouts, LayoutLines& out) {
  for (const OpId i : graph.ops.ids()) {
    const Op& op = graph.ops[i];
    if (!is_in_parts(op, layouts.rows[i])) continue;
    const double bytes = bytes_in_parts(graph, op, out.wishes.members);
    out.bytes += bytes;
    ++out.counts["attention in parts"];
    out.text += concat("  parts of keys and values, for ", op.name, op.origin.empty() ? "" : " of " + op.origin,
                       op.stage.empty() ? "" : concat(" in stage ", op.stage), ": ", bytes_text(bytes), "\n");
  }
  for (const LayoutConversion& c : conversions_in(graph, layouts, out.wishes.members)) {
    out.bytes += c.bytes;
    ++out.counts[std::string(conversion_name(c.from, c.to))];
    out.text += concat("  ", conversion_name(c.from, c.to), " %", c.value.value, " ", graph.type(c.value).text(), ": ", text_of(c.from),
                       " -> ", text_of(c.to), ", for ", reader_text(graph, c), c.stage.empty() ? "" : concat(" in stage ", c.stage), ": ",
                       bytes_text(c.bytes), "\n");
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

// A layout that an op, or the graph's outputs, ask of a value.
struct Asking {
  Asked asked;
  OpId reader;
};

std::vector<Asking> askings_of(const Graph& graph, const GraphLayouts& layouts) {
  std::vector<Asking> out;
  const auto add = [&](ValueId v, const Layout& layout, OpId reader) {
    if (layouts.values[v] != layout) out.push_back({{v, layout}, reader});
  };
  for (const OpId i : graph.ops.ids())
    for (std::size_t o = 0; o < graph.ops[i].operands.size(); ++o) add(graph.ops[i].operands[o], layouts.rows[i].operands[o], i);
  for (std::size_t o = 0; o < graph.outputs.size(); ++o) add(graph.outputs[o], layouts.outputs[o], {});
  return out;
}

}  // namespace

LayoutConversion asked_conversion(const Graph& graph, const IdVector<ValueId, OpId>& producers, const GraphLayouts& layouts,
                                  std::int64_t members, const Asked& asked, OpId reader) {
  const Op nobody;
  const OpId made = producers[asked.value];
  const Op& asks = reader ? graph.ops[reader] : made ? graph.ops[made] : nobody;
  // The marks are those of a view first, then of what it views.
  const Op& of_view = marks_of_conversion(graph, made, layouts.values[asked.value], asks);
  const auto [v, to] = converted_for(graph, producers, layouts, members, asked);
  const Layout& from = layouts.values[v];
  const Op& marks = marks_of_conversion(graph, producers[v], from, of_view);
  const double bytes = from.is_whole() ? 0 : conversion_bytes(from, to, static_cast<double>(graph.type(v).bytes()), members);
  return {v, from, to, reader, 1, marks.phase, marks.stage, bytes};
}

std::vector<LayoutConversion> conversions_in(const Graph& graph, const GraphLayouts& layouts, std::int64_t members) {
  std::vector<LayoutConversion> out;
  std::map<Conversion, std::size_t> found;
  const IdVector<ValueId, OpId> producer = producers(graph);
  for (const auto& [asked, reader] : askings_of(graph, layouts)) {
    LayoutConversion c = asked_conversion(graph, producer, layouts, members, asked, reader);
    const auto [at, added] = found.try_emplace(conversion_for(c.value, c.to, c.phase, c.stage), out.size());
    if (added)
      out.push_back(std::move(c));
    else
      ++out[at->second].readers;
  }
  return out;
}

std::string_view conversion_name(const Layout& from, const Layout& to) {
  if (from.is_whole()) return "slice";
  if (from.is_term()) return to.is_whole() ? "all_reduce" : "reduce_scatter";
  return to.is_split() && to.dim != from.dim ? "all_to_all" : "all_gather";
}

std::string reader_text(const Graph& graph, const LayoutConversion& c) {
  if (!c.reader) return "what the step gives";
  const Op& op = graph.ops[c.reader];
  if (is_link_end(op)) return c.to.is_whole() ? "what another stage gives" : "what other stages read";
  return concat(op.name, op.origin.empty() ? "" : " of " + op.origin, op.phase == Phase::backward ? " (backward)" : "");
}

std::string layouts_text(const Graph& step, const GraphLayouts& layouts, const AxisWishes& wishes) {
  LayoutLines out{wishes};
  out.text = concat("axis ", wishes.axis, " of ", wishes.members, " members\n");
  for (const Op& op : step.ops)
    if (op.body && layouts.body) add_graph("each micro-batch", *op.body, *layouts.body, out);
  add_graph("outside of the loop", step, layouts, out);
  return out.text;
}

}  // namespace penstock
