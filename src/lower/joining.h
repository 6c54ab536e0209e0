// The steps of a window while they are joined (window.h), in two halves: merge_steps.cpp puts their runs into each other,
// window_versions.cpp lets them read the versions that the table says.
#pragma once

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lower/window.h"
#include "schedule/drained.h"

namespace penstock {

using HomedName = std::pair<std::string, ActorId>;

struct Joining {
  const LowerInput& input;          // of a step
  std::vector<std::int32_t> whole;  // whole_ports
  IdVector<InputId, bool> trained;
  std::vector<std::vector<ReadVersion>> versions;  // read_versions of the table
  std::vector<std::vector<FirstNeed>> needs;       // first_needs of the table
  Draft draft{};
  std::vector<IdVector<InstanceId, InstanceId>> instances{};  // by step: of each of its draft's
  std::vector<IdVector<TaskId, TaskId>> tasks{};              // likewise
  std::map<HomedName, InstanceId> shared{};                   // what all steps have
  // By state, version (from 1) and device: of those that are not trained, and of those that other devices than their owner read.
  std::map<std::tuple<InstanceId, std::int32_t, ActorId>, InstanceId> ahead{};
  // Trained states that other devices than their owner read, and the versions that they do.
  std::map<InstanceId, std::set<std::int32_t>> copied{};
  std::set<InstanceId> into_states{};  // that behind a step's last action next values of trained states are made of
  bool is_drained = false;             // check_drained has nothing against the table

  std::int32_t steps() const { return input.schedule.steps; }
  bool is_trained(InstanceId i) const {
    const Instance& instance = draft.instances[i];
    return instance.source == Instance::Source::state && trained[instance.input];
  }
};

// Notes what of this step's draft, whose instances and tasks are joined, next values of trained states are made of behind its last actions.
void note_into_states(Joining& j, const Draft& from, std::int32_t step);
// Throws Error unless updates may wait for other actors. `what`: does, as the error's second line.
void require_drained(Joining& j, const std::string& what);
// The runs of one device in the order of the table's row. What an update waits for stands where its step is drained: ahead of what no
// action of the step needs. Throws Error where something waits in a table that is not drained.
std::vector<PlacedRun> merged_row(Joining& j, const std::vector<Draft>& drafts, ActorId actor, ActorId device);

// States that are not trained: ahead of all other runs of the row their versions of all steps are made, which the runs of each step read.
// The last step's update stays. `producer`: of the step's values.
void make_untrained_ahead(Joining& j, std::vector<PlacedRun>& row, ActorId device, const IdVector<ValueId, OpId>& producer);
// The row with reads of the versions that the table says, and the copies and predictions that they need. What other devices read of a state
// its owner copies for them. Throws Error for a version that is not made, or cannot be predicted.
std::vector<Run> with_versions(Joining& j, std::vector<PlacedRun> row, ActorId device, const IdVector<ValueId, OpId>& producer);

}  // namespace penstock
