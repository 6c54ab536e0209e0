// SPDX-License-Identifier: Apache-2.0
// The text form of a stage DAG (for reading; it is not read back).
#include "base/text.h"
#include "stage/stages.h"

namespace penstock {
namespace {

std::string show_types(const std::vector<TensorType>& types) {
  return concat("(", join(types, ", ", [](const TensorType& type) { return type.text(); }), ")");
}

std::string show_tasks(const StageDag& dag, const std::vector<StageTaskId>& tasks) {
  return join(tasks, ", ", [&](StageTaskId t) { return dag.tasks[t].graph->name; });
}

std::string show_bundle(const StageDag& dag, const Bundle& bundle) {
  const std::string members = join(bundle.members, ", ", [](std::int32_t member) { return std::to_string(member); });
  switch (bundle.source) {
    case Bundle::Source::data:
      return concat("data %", members, " ", show_types(bundle.types), " -> ", show_tasks(dag, bundle.readers));
    case Bundle::Source::invariant:
      return concat("invariant %", members, " ", show_types(bundle.types), " -> ", show_tasks(dag, bundle.readers));
    case Bundle::Source::edge:
      return concat("edge ", show_tasks(dag, bundle.producers), " -> ", show_tasks(dag, bundle.readers), " ", show_types(bundle.types),
                    bundle.stays ? " stays" : "");
    case Bundle::Source::accumulator:
      return concat("sum ", show_tasks(dag, bundle.producers), " -> result ", members, " ", show_types(bundle.types));
  }
  return {};
}

}  // namespace

std::string print(const StageDag& dag) {
  std::string out = "penstock stages 1\n";
  for (std::size_t s = 0; s < dag.names.size(); ++s)
    out += concat("stage ", s, " ", quote(dag.names[s]), " after {",
                  join(dag.shape.predecessors[s], ", ", [](std::int32_t p) { return std::to_string(p); }), "}\n");
  for (const Bundle& bundle : dag.bundles) out += show_bundle(dag, bundle) + "\n";
  for (const StageTask& task : dag.tasks) out += print_body(task.graph);
  return out;
}

}  // namespace penstock
