// The members' drafts become one.
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/invariant.h"
#include "base/text.h"
#include "lower/members.h"

namespace penstock {
namespace {

// The key of a value that a member writes for the others along an axis: device of the member, axis, message, unit and member: several,
// where a stage computes again.
using GivenAlong = std::tuple<ActorId, std::int32_t, std::int32_t, Unit, std::int32_t>;
struct Taken {
  InstanceId instance;  // is another member's:
  GivenAlong given;
  std::size_t number = 0;  // of several
};

struct JoiningMembers {
  const std::vector<LowerInput>& inputs;
  std::map<GivenAlong, std::vector<InstanceId>> given{};
  std::vector<Taken> taken{};
  std::map<std::vector<std::int32_t>, std::int32_t> groups{};
  Draft draft{};

  std::int32_t members() const { return static_cast<std::int32_t>(inputs.size()); }
  ActorId device(ActorId of_member, std::int32_t member) const { return ActorId(of_member.value * members() + member); }
};

std::int32_t group(JoiningMembers& j, std::vector<std::int32_t> devices) {
  const auto [it, added] = j.groups.try_emplace(devices, static_cast<std::int32_t>(j.groups.size()));
  if (added) j.draft.groups.push_back(std::move(devices));
  return it->second;
}

// The devices beside one along an axis.
std::vector<std::int32_t> beside(const JoiningMembers& j, ActorId of_member, std::int32_t member, std::int32_t axis) {
  std::vector<std::int32_t> out;
  const MemberLine& line = j.inputs[member].lines[axis];
  for (std::int32_t place = 0; place < line.size; ++place) out.push_back(j.device(of_member, line.member_at(member, place)).value);
  return out;
}

// A message leaves nothing but that its readers read what the other member wrote: the transfers follow from that as between actors.
void note_message(JoiningMembers& j, const Run& run, std::int32_t first, ActorId actor, std::int32_t member) {
  const MemberLine& line = j.inputs[member].lines[run.axis];
  const std::int32_t giver = line.member_at(member, (line.place + run.by) % line.size);
  std::vector<InstanceId>& own = j.given[{actor, run.axis, run.message, run.unit, member}];
  for (const Write& write : run.writes)
    j.taken.push_back({InstanceId(write.instance.value + first), {actor, run.axis, run.message, run.unit, giver}, own.size()});
  own.emplace_back(run.reads[0].value + first);
}

void read_where_made(JoiningMembers& j) {
  std::map<InstanceId, InstanceId> made;
  // A device may have one of the same name of its own.
  std::set<InstanceId> named;
  for (const auto& [key, instances] : j.given)
    for (const InstanceId i : instances)
      if (named.insert(i).second) j.draft.instances[i].name += concat(".of", std::get<4>(key));
  for (const Taken& taken : j.taken) {
    made[taken.instance] = j.given.at(taken.given).at(taken.number);
    invariant(j.draft.instances[taken.instance].types == j.draft.instances[made[taken.instance]].types, "a message is what was given");
  }
  for (std::vector<Run>& row : j.draft.actors)
    for (Run& run : row)
      for (InstanceId& read : run.reads)
        if (const auto found = made.find(read); found != made.end()) read = found->second;
}

Run joined(JoiningMembers& j, Run run, const std::vector<std::vector<std::int32_t>>& groups, const IdVector<TaskId, TaskId>& tasks,
           std::int32_t first, ActorId actor, std::int32_t member) {
  if (run.task) run.task = tasks[run.task];
  for (InstanceId& read : run.reads) read.value += first;
  for (Write& write : run.writes) write.instance.value += first;
  if (run.axis >= 0) {
    run.group = group(j, beside(j, actor, member, run.axis));
  } else if (run.group >= 0) {
    std::vector<std::int32_t> devices;
    for (std::int32_t d : groups[run.group]) devices.push_back(j.device(ActorId(d), member).value);
    run.group = group(j, std::move(devices));
  }
  return run;
}

// The member that gives a broadcast has a copy of what it gives.
void push_broadcast(const LowerInput& input, Run run, std::int32_t axis, std::vector<Run>& row) {
  if (input.lines[axis].place != run.root) {
    run.reads.clear();
    return row.push_back(std::move(run));
  }
  Run copy = run;
  copy.opcode = Opcode::copy;
  copy.axis = copy.group = copy.root = -1;
  run.writes.clear();
  row.push_back(std::move(run));
  row.push_back(std::move(copy));
}

void join_member(JoiningMembers& j, Draft from, std::int32_t member) {
  const LowerInput& input = j.inputs[member];
  const auto first = static_cast<std::int32_t>(j.draft.instances.size()), blocks = static_cast<std::int32_t>(j.draft.blocks.size());
  IdVector<TaskId, TaskId> tasks;
  for (Task& task : from.tasks) {
    std::string name = member > 0 ? concat(task.name, ".member", member) : task.name;
    tasks.push_back(member > 0 ? add_task(j.draft, std::move(name), Graph(*task.graph)) : add_task(j.draft, std::move(name), task.graph));
  }
  for (ShareBlock& block : from.blocks) j.draft.blocks.push_back(std::move(block));
  for (Instance& instance : from.instances) {
    if (instance.home) instance.home = j.device(instance.home, member);
    if (instance.block) instance.block.value += blocks;
    if (instance.source == Instance::Source::state && input.is_copy[instance.input]) instance.owned = false;
    j.draft.instances.push_back(std::move(instance));
  }
  for (const ActorId actor : from.actors.ids()) {
    std::vector<Run>& row = j.draft.actors[j.device(actor, member)];
    for (Run& run : from.actors[actor]) {
      if (run.opcode == Opcode::output && member > 0) continue;
      if (run.message >= 0) {
        note_message(j, run, first, actor, member);
        continue;
      }
      const std::int32_t axis = run.axis;
      Run here = joined(j, std::move(run), from.groups, tasks, first, actor, member);
      if (here.opcode == Opcode::broadcast)
        push_broadcast(input, std::move(here), axis, row);
      else
        row.push_back(std::move(here));
    }
  }
  for (InstanceId state : from.refreshed) j.draft.refreshed.emplace_back(state.value + first);
}

}  // namespace

Draft join_members(const std::vector<LowerInput>& inputs, std::vector<Draft> drafts) {
  JoiningMembers j{inputs};
  const std::size_t devices = drafts[0].actors.size();
  j.draft.actors.resize(devices * drafts.size());
  j.draft.after = drafts[0].after;
  j.draft.sharded_states = drafts[0].sharded_states;
  j.draft.sharded_results = drafts[0].sharded_results;
  for (std::size_t m = 0; m < drafts.size(); ++m) {
    invariant(drafts[m].actors.size() == devices, "all members have as many devices");
    join_member(j, std::move(drafts[m]), static_cast<std::int32_t>(m));
  }
  read_where_made(j);
  return std::move(j.draft);
}

}  // namespace penstock
