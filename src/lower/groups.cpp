// Actors that are groups of devices. Lowering thinks in actors: one device of each, a *plane*, runs the table on micro-batches of its own.
// Here the sums that each device has made become the group's (reduce_over_groups), and the planes are written out (spread_groups).
//
// Micro-batch m of the table is cut into `replicas` parts, of which plane d takes part d: micro-batch m * replicas + d of the step. What
// flows between actors stays on its plane. After its all_reduce every member has the same sums and makes the same update, so no state has
// to be sent; the first member owns it, the others hold copies.
#include <algorithm>

#include "base/text.h"
#include "lower/draft.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// Behind the last run that adds to it, each accumulator is summed over the group, while the device goes on with other stages.
void reduce_over_group(const Lowering& lowering, std::vector<Run>& runs, const std::vector<bool>& accumulators) {
  std::vector<std::ptrdiff_t> last(lowering.draft.instances.size(), -1);
  for (std::size_t r = 0; r < runs.size(); ++r)
    for (const Write& write : runs[r].writes) last[static_cast<std::size_t>(write.instance)] = static_cast<std::ptrdiff_t>(r);
  std::vector<Run> out;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    out.push_back(std::move(runs[r]));
    const std::vector<Write> writes = out.back().writes;
    for (const Write& write : writes) {
      const auto i = static_cast<std::size_t>(write.instance);
      if (!accumulators[i] || last[i] != static_cast<std::ptrdiff_t>(r)) continue;
      Run reduce;
      reduce.opcode = Opcode::all_reduce;
      reduce.stage = out.back().stage;
      reduce.kind = Kind::REDUCE_GRAD;
      reduce.action = true;
      reduce.reads = {write.instance};
      reduce.writes = {{write.instance, ResultMode::update}};
      out.push_back(std::move(reduce));
    }
  }
  runs = std::move(out);
}

// The same of a plane's instance on plane `d`.
Instance on_plane(const Instance& instance, std::int32_t replicas, std::int32_t d) {
  Instance out = instance;
  if (out.home >= 0) out.home = out.home * replicas + d;
  if (out.source == Instance::Source::data && out.microbatch >= 0) out.microbatch = out.microbatch * replicas + d;
  out.owned = d == 0;
  return out;
}

// Instance i of plane d.
std::int32_t number(std::int32_t i, std::int32_t replicas, std::int32_t d) {
  return i * replicas + d;
}

Run on_plane(const Run& run, std::int32_t actor, std::int32_t replicas, std::int32_t d) {
  Run out = run;
  if (out.microbatch >= 0) out.microbatch = out.microbatch * replicas + d;
  for (std::int32_t& read : out.reads) read = number(read, replicas, d);
  for (Write& write : out.writes) write.instance = number(write.instance, replicas, d);
  if (is_collective(out.opcode)) out.group = actor;
  return out;
}

}  // namespace

void reduce_over_groups(Lowering& lowering) {
  if (lowering.replicas == 1) return;
  for (const LoopEnds::Use& use : lowering.ends.uses)
    if (use.microbatch >= 0)
      throw Error(concat("what the loop splits into micro-batches is computed before it (operand ", use.operand, " of the loop)"), {},
                  "with data parallelism the loop can only split data ports");
  std::vector<bool> accumulators(lowering.draft.instances.size(), false);
  for (const LoopEnds::Partial& partial : lowering.ends.partials) accumulators[static_cast<std::size_t>(partial.instance)] = true;
  for (std::vector<Run>& runs : lowering.draft.actors) reduce_over_group(lowering, runs, accumulators);
}

void spread_groups(Lowering& lowering) {
  const std::int32_t replicas = lowering.replicas;
  if (replicas == 1) return;
  const Draft planes = std::move(lowering.draft);
  Draft& out = lowering.draft = {};
  for (const Instance& instance : planes.instances)
    for (std::int32_t d = 0; d < replicas; ++d) out.instances.push_back(on_plane(instance, replicas, d));
  for (std::int32_t actor = 0; actor < static_cast<std::int32_t>(planes.actors.size()); ++actor) {
    std::vector<std::int32_t>& group = lowering.program.groups.emplace_back();
    for (std::int32_t d = 0; d < replicas; ++d) {
      group.push_back(actor * replicas + d);
      std::vector<Run>& runs = out.actors.emplace_back();
      for (const Run& run : planes.actors[static_cast<std::size_t>(actor)])
        if (run.opcode != Opcode::output || d == 0) runs.push_back(on_plane(run, actor, replicas, d));
    }
  }
  for (const std::int32_t state : planes.refreshed)
    for (std::int32_t d = 0; d < replicas; ++d) out.refreshed.push_back(number(state, replicas, d));
}

}  // namespace penstock
