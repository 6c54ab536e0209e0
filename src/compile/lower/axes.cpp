// SPDX-License-Identifier: Apache-2.0
// Pass: the drafts of the members of the mesh's axes become one: the device d of member m is device d * members + m. Here runs along an
// axis get their groups, and who reads what another member gives reads it where that wrote it.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/invariant.h"
#include "base/text.h"
#include "lower/passes.h"

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
  const Lowering& lowering;
  std::map<GivenAlong, std::vector<InstanceId>> given{};
  std::vector<Taken> taken{};
  std::map<std::vector<std::int32_t>, std::int32_t> groups{};
  Draft draft{};

  std::int32_t members() const { return static_cast<std::int32_t>(lowering.size()); }
  const MemberLine& line(std::int32_t member, std::int32_t axis) const { return lowering[member].input.lines[axis]; }
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
  const MemberLine& line = j.line(member, axis);
  for (std::int32_t place = 0; place < line.size; ++place) out.push_back(j.device(of_member, line.member_at(member, place)).value);
  return out;
}

// A message leaves nothing but that its readers read what the other member wrote: the transfers follow from that as between actors.
void note_message(JoiningMembers& j, const Run& run, ActorId actor, std::int32_t member) {
  const MemberLine& line = j.line(member, run.axis);
  const std::int32_t giver = line.member_at(member, (line.place + run.by) % line.size);
  std::vector<InstanceId>& own = j.given[{actor, run.axis, run.message, run.unit, member}];
  for (const Write& write : run.writes) j.taken.push_back({write.instance, {actor, run.axis, run.message, run.unit, giver}, own.size()});
  own.push_back(run.reads[0]);
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

// The group of devices in which the run is done; `own`: the groups of the member's draft.
std::int32_t group_of(JoiningMembers& j, const Run& run, const std::vector<std::vector<std::int32_t>>& own, ActorId actor,
                      std::int32_t member) {
  if (run.axis >= 0) return group(j, beside(j, actor, member, run.axis));
  if (run.group < 0) return -1;
  std::vector<std::int32_t> devices;
  for (const std::int32_t d : own[run.group]) devices.push_back(j.device(ActorId(d), member).value);
  return group(j, std::move(devices));
}

// The member that gives a broadcast has a copy of what it gives.
void push_broadcast(const MemberLine& line, Run run, std::vector<Run>& row) {
  if (line.place != run.root) {
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

Renumbering take(JoiningMembers& j, Draft& from, std::int32_t member) {
  Renumbering out;
  const std::string suffix = member > 0 ? concat(".member", member) : "";
  for (const Task& task : from.tasks) out.tasks.push_back(add_task(j.draft, task, suffix));
  const auto blocks = static_cast<std::int32_t>(j.draft.blocks.size());
  for (ShareBlock& block : from.blocks) j.draft.blocks.push_back(std::move(block));
  for (Instance& instance : from.instances) {
    if (instance.home) instance.home = j.device(instance.home, member);
    if (instance.block) instance.block.value += blocks;
    if (instance.source == Instance::Source::state && j.lowering[member].input.is_copy[instance.input]) instance.owned = false;
    out.instances.push_back(add(j.draft, std::move(instance)));
  }
  for (const InstanceId state : from.refreshed) j.draft.refreshed.push_back(out.instances[state]);
  return out;
}

void join_member(JoiningMembers& j, Draft from, std::int32_t member) {
  const Renumbering taken = take(j, from, member);
  for (const ActorId actor : from.actors.ids()) {
    std::vector<Run>& row = j.draft.actors[j.device(actor, member)];
    for (Run& run : from.actors[actor]) {
      if (run.opcode == Opcode::output && member > 0) continue;
      renumber(run, taken);
      if (run.message >= 0) {
        note_message(j, run, actor, member);
        continue;
      }
      run.group = group_of(j, run, from.groups, actor, member);
      if (run.opcode == Opcode::broadcast)
        push_broadcast(j.line(member, run.axis), std::move(run), row);
      else
        row.push_back(std::move(run));
    }
  }
}

Draft joined(Lowering& lowering) {
  JoiningMembers j{lowering};
  const Draft& first = lowering[0].steps[0];
  const std::size_t devices = first.actors.size();
  j.draft.actors.resize(devices * lowering.size());
  j.draft.sharded_states = first.sharded_states;
  j.draft.sharded_results = first.sharded_results;
  j.draft.whole_ports = first.whole_ports;
  for (std::size_t m = 0; m < lowering.size(); ++m) {
    Draft& draft = lowering[m].steps[0];
    invariant(draft.actors.size() == devices, "all members have as many devices");
    join_member(j, std::move(draft), static_cast<std::int32_t>(m));
  }
  read_where_made(j);
  return std::move(j.draft);
}

}  // namespace

void join_axes(Lowering& lowering) {
  if (lowering.size() == 1) return;
  Draft draft = joined(lowering);
  lowering.resize(1);
  lowering[0].steps[0] = std::move(draft);
}

}  // namespace penstock
