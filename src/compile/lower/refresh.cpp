// SPDX-License-Identifier: Apache-2.0
// Pass: which states' copies are refreshed at the step's end: those that their home writes and that actors read which do not. What does not
// depend on the loop's results is made by all who have it, and devices of one group make the same update, so these send nothing.
#include <set>

#include "lower/passes.h"

namespace penstock {

void refresh_copies(const LowerInput&, Draft& draft) {
  std::set<std::pair<InstanceId, ActorId>> read, written;
  for (const ActorId actor : draft.actors.ids())
    for (const Run& run : draft.actors[actor]) {
      for (InstanceId i : run.reads)
        if (draft.instances[i].source == Instance::Source::state) read.emplace(i, actor);
      for (const Write& write : run.writes)
        if (draft.instances[write.instance].source == Instance::Source::state) written.emplace(write.instance, actor);
    }
  std::set<InstanceId> stale;
  for (const auto& [state, actor] : read)
    if (written.contains({state, draft.instances[state].home}) && !written.contains({state, actor})) stale.insert(state);
  for (const auto& [of, state] : draft.inputs)
    if (stale.contains(state)) draft.refreshed.push_back(state);
}

}  // namespace penstock
