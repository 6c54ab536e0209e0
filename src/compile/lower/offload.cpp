// SPDX-License-Identifier: Apache-2.0
// Pass: what F of a stage leaves to its own backward alone waits in the host's memory. OFFLOAD moves it to instances there; RELOAD moves
// these to new ones, which what follows in the row reads. What other stages read stays, what only a W on another actor reads, and where ops
// of the stage are marked (kOffload), what others make. A stage that leaves nothing has nothing moved: a searched table may hold both
// actions for any stage.
#include <algorithm>
#include <map>

#include "base/invariant.h"
#include "lower/passes.h"

namespace penstock {
namespace {

using StageUnit = std::pair<StageId, Unit>;

// Returns for each stage and unit the instances that its forward makes, that do not stay and that only runs of the same stage read. At
// least one of these runs is on the instance's home (an I or W may be elsewhere).
std::map<StageUnit, std::vector<InstanceId>> residuals(const Draft& draft) {
  std::map<StageUnit, std::vector<InstanceId>> made;
  for (const std::vector<Run>& runs : draft.actors)
    for (const Run& run : runs)
      if (run.placeholder && run.kind == Kind::OFFLOAD) made[{run.stage, run.unit}];
  IdVector<InstanceId, bool> is_read_by_others(draft.instances.size()), is_read_here(draft.instances.size());
  IdVector<InstanceId, StageId> stage(draft.instances.size());
  for (const std::vector<Run>& runs : draft.actors)
    for (const Run& run : runs)
      if (const auto of = made.find({run.stage, run.unit}); run.kind == Kind::F && of != made.end())
        for (const Write& write : run.writes) {
          stage[write.instance] = run.stage;
          const Instance& written = draft.instances[write.instance];
          if (write.mode == ResultMode::store && written.unit && !written.stays) of->second.push_back(write.instance);
        }
  for (const ActorId actor : draft.actors.ids())
    for (const Run& run : draft.actors[actor])
      for (InstanceId read : run.reads) {
        if (run.stage != stage[read]) is_read_by_others[read] = true;
        if (draft.instances[read].home == actor) is_read_here[read] = true;
      }
  for (auto& [of, instances] : made) std::erase_if(instances, [&](InstanceId i) { return is_read_by_others[i] || !is_read_here[i]; });
  return made;
}

}  // namespace

void offload_residuals(const LowerInput&, Draft& draft) {
  const auto moved = residuals(draft);
  if (moved.empty()) return;
  std::map<InstanceId, InstanceId> on_host, back;
  for (const ActorId actor : draft.actors.ids()) {
    for (Run& run : draft.actors[actor]) {
      if (!run.placeholder || (run.kind != Kind::OFFLOAD && run.kind != Kind::RELOAD)) {
        for (InstanceId& read : run.reads)
          if (const auto found = back.find(read); found != back.end() && draft.instances[read].home == actor) read = found->second;
        continue;
      }
      const bool out = run.kind == Kind::OFFLOAD;
      run.placeholder = false;
      run.opcode = out ? Opcode::offload : Opcode::reload;
      for (InstanceId original : moved.at({run.stage, run.unit})) {
        Instance to = draft.instances[original];
        to.name += out ? ".host" : ".back";
        to.host = out;
        to.terms = 1;
        run.reads.push_back(out ? original : on_host.at(original));
        run.writes.push_back({(out ? on_host : back)[original] = add(draft, std::move(to))});
      }
    }
    std::erase_if(draft.actors[actor], [](const Run& run) { return is_host_copy(run.opcode) && run.reads.empty(); });
  }
}

}  // namespace penstock
