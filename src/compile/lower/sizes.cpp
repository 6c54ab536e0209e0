// SPDX-License-Identifier: Apache-2.0
#include "lower/sizes.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "lower/member_inputs.h"
#include "penstock/error.h"
#include "schedule/sizes.h"
#include "transform/conversions.h"
#include "transform/layouts.h"

namespace penstock {
namespace {

constexpr const char* kSamples = "samples";  // no axis of the mesh
constexpr const char* kHint = "let every action of the table take one micro-batch (plan --microbatch-sizes N: one size for all stages)";

// The same split of a value among so many members.
Layout among(const Layout& layout, std::int64_t members) {
  return layout.is_split() ? split_layout(layout.dim, layout.outer, layout.units, members) : layout;
}

[[noreturn]] void fail_mixed(const LowerInput& input, const StageTask& task, const std::string& why) {
  throw Error(concat("stage ", quote(input.dag.names[task.stage]), ": ", name(task.kind), " of ", input.largest,
                     " micro-batches together is not that of each of them"),
              {why}, kHint);
}

// How the body's values lie where every sample that the loop reads is in one of the step's parts.
IdVector<ValueId, Layout> layouts_of_body(const LowerInput& input) {
  const Graph& body = *input.loop_op().body;
  IdVector<ValueId, Layout> values(body.values.size());
  const auto split = attribute<std::int64_t>(input.loop_op(), "split");
  for (std::int64_t i = 0; i < split; ++i) {
    const std::int64_t rows = body.type(body.inputs[i]).shape[0];
    if (rows % input.largest != 0)
      throw Error(concat(quote(body.values[body.inputs[i]].name), " has ", rows, " rows for ", input.largest,
                         " micro-batches of the table together"),
                  {"it is counted by micro-batch, not by sample, as what a step carries from one to the next is"}, kHint);
    values[body.inputs[i]] = split_layout(0, 1, rows, input.largest);
  }
  return decide_layouts(body, std::move(values), IdVector<ValueId, bool>(body.values.size()), input.largest).values;
}

// A sum over samples can be put together, not cut.
void check_terms(const LowerInput& input, const Bundle& bundle, const std::vector<Layout>& samples) {
  if (bundle.source != Bundle::Source::edge || std::ranges::none_of(samples, &Layout::is_term)) return;
  const std::int32_t made = input.size_of(input.dag.tasks[bundle.producers[0]].stage);
  for (const StageTaskId t : bundle.readers)
    if (const StageTask& reader = input.dag.tasks[t]; input.size_of(reader.stage) % made != 0)
      fail_mixed(input, reader, concat("it reads a sum over the samples of ", made, " micro-batches, which cannot be parted"));
}

// The layout of each of the bundle's values where tasks have them so: data and edges as the body has them, sums as terms.
std::vector<Layout> lying_of(const LowerInput& input, const Bundle& bundle, const IdVector<ValueId, Layout>& body) {
  std::vector<Layout> out;
  for (const std::int32_t member : bundle.members)
    out.push_back(bundle.source == Bundle::Source::accumulator ? kTerm
                  : bundle.source == Bundle::Source::edge      ? body[ValueId(member)]
                                                               : body[input.loop_op().body->inputs[member]]);
  return out;
}

// Whether what the op makes is the same wherever it is cut along the dim.
bool is_alike_along(const Graph& graph, const Op& op, std::int64_t dim) {
  if (op.name != "expand") return op.name == "full";
  const Shape& from = graph.type(op.operands[0]).shape;
  const std::int64_t own = dim - std::ssize(graph.type(op.results[0]).shape) + std::ssize(from);
  return own < 0 || from[own] == 1;
}

// The graph with slices of what is alike taken from the begin on, whichever part they are for.
Graph sliced_alike(Graph graph) {
  const IdVector<ValueId, OpId> producer = producers(graph);
  for (Op& op : graph.ops) {
    const OpId made = op.name == "slice" ? producer[op.operands[0]] : OpId();
    if (!made || !is_alike_along(graph, graph.ops[made], attribute<std::int64_t>(op, "dim"))) continue;
    op.attributes["end"] = attribute<std::int64_t>(op, "end") - attribute<std::int64_t>(op, "start");
    op.attributes["start"] = std::int64_t{0};
  }
  return graph;
}

// The task on one of `parts` parts of a micro-batch.
Graph of_part(const LowerInput& input, const StageTask& task, std::int32_t parts) {
  const Graph& graph = *task.graph;
  IdVector<ValueId, Layout> values(graph.values.size());
  const auto append = [&](std::vector<Layout>& out, const std::vector<BundleId>& bundles) {
    for (const BundleId b : bundles)
      for (const Layout& layout : input.samples[b]) out.push_back(among(layout, parts));
  };
  std::vector<Layout> in, out;
  append(in, task.reads);
  append(out, task.writes);
  for (std::size_t i = 0; i < in.size(); ++i) values[graph.inputs[i]] = in[i];
  GraphLayouts layouts = decide_layouts(graph, std::move(values), IdVector<ValueId, bool>(graph.values.size()), parts);
  layouts.outputs = std::move(out);
  for (const LayoutConversion& conversion : conversions_in(graph, layouts, parts))
    if (!conversion.from.is_whole())
      fail_mixed(input, task, concat("all samples of a micro-batch are needed for ", reader_text(graph, conversion)));
  for (const ValueId v : graph.values.ids())
    if (const DType dtype = graph.type(v).dtype; layouts.values[v].is_term() && is_floating(dtype) && byte_size(dtype) < 4)
      fail_mixed(input, task, concat("sums over the samples of a micro-batch are rounded to ", name(dtype)));
  AxisWishes wishes;
  wishes.axis = kSamples;
  wishes.members = parts;
  const auto part = [&](std::int64_t number) { return sliced_alike(localise(graph, layouts, wishes, number)); };
  Graph first = part(0);
  if (!structurally_equal(first, part(parts - 1)))
    fail_mixed(input, task, "it does not do the same for all parts, as where it adds something once for each micro-batch");
  first.name = graph.name;
  return first;
}

}  // namespace

void take_sizes(LowerInput& input) {
  const Schedule& schedule = input.schedule;
  const std::int32_t all = schedule.microbatches() * input.shares, largest = all / input.microbatches;
  if (largest < 2 || all % input.microbatches != 0 || micro_batches_together(schedule) % largest != 0 ||
      schedule.stages() != std::ssize(input.dag.names))
    return;
  input.largest = largest;
  input.microbatches = all;
  for (const std::int32_t size : sizes_together(schedule)) input.sizes.push_back(std::gcd(size, largest));
  const IdVector<ValueId, Layout> body = layouts_of_body(input);
  for (const Bundle& bundle : input.dag.bundles) {
    input.samples.push_back(lying_of(input, bundle, body));
    check_terms(input, bundle, input.samples.back());
  }
  // Whatever its size, a stage must do for each of the table's micro-batches what it would do for it alone.
  for (StageTask& task : input.dag.tasks) {
    Graph alone = of_part(input, task, largest);
    const std::int32_t parts = largest / input.size_of(task.stage);
    if (parts > 1) task.graph = parts == largest ? std::move(alone) : of_part(input, task, parts);
  }
}

std::string why_one_by_one(const Graph& step, const Schedule& schedule, const CompileOptions& options) {
  try {
    member_inputs(step, schedule, options);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

std::vector<TensorType> types_of(const LowerInput& input, BundleId bundle, std::int32_t count) {
  std::vector<TensorType> types = input.dag.bundles[bundle].types;
  for (std::size_t i = 0; input.largest > 1 && i < types.size(); ++i)
    types[i] = local_type(types[i], input.samples[bundle][i], input.largest / count, 0);
  return types;
}

Graph resizing(const LowerInput& input, BundleId bundle, std::int32_t made, Unit unit) {
  const std::int32_t piece = std::gcd(made, unit.count);
  const std::vector<TensorType> from = types_of(input, bundle, made), to = types_of(input, bundle, unit.count);
  Graph graph;
  const Op marks;
  const ConversionSite site{graph, marks, {kSamples, made / piece}};
  std::vector<std::vector<ValueId>> pieces(to.size());
  for (std::int32_t m = unit.microbatch / made * made; m < unit.microbatch + unit.count; m += made)
    for (std::size_t i = 0; i < to.size(); ++i) {
      const ValueId whole = graph.add_input(from[i], concat("x", graph.inputs.size()));
      const Layout& layout = input.samples[bundle][i];
      if (!layout.is_split()) {
        pieces[i].push_back(whole);
        continue;
      }
      const Layout split = split_layout(layout.dim, layout.outer, made / piece, made / piece);
      for (std::int32_t p = m; p < m + made; p += piece)
        if (p >= unit.microbatch && p < unit.microbatch + unit.count) pieces[i].push_back(part_of(site, whole, split, (p - m) / piece));
    }
  for (std::size_t i = 0; i < to.size(); ++i) {
    const Layout& layout = input.samples[bundle][i];
    if (layout.is_term() && pieces[i].size() > 1)
      graph.outputs.push_back(add_beside(site, "add_n", pieces[i], {}));
    else if (layout.is_split())
      graph.outputs.push_back(whole_of(site, pieces[i], split_layout(layout.dim, layout.outer, unit.count, 1), to[i].shape));
    else
      graph.outputs.push_back(pieces[i][0]);
  }
  return graph;
}

}  // namespace penstock
