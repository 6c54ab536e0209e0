// Pass: actors become devices. Lowering thinks in actors up to here.
//
// A micro-batch of the table is cut into `parts`, the least common multiple of the groups' sizes; each device of an actor takes as many,
// one after the other: part p of micro-batch m is micro-batch m * parts + p of the step. What flows between actors flows part by part, so
// each device sends only what the other side needs, whatever the groups' sizes:
//
//   actor 0, 2 devices    actor 1, 4 devices        actor 2, 1 device
//   0: part 0, part 1     2: part 0   3: part 1     6: part 0, part 1, part 2, part 3
//   1: part 2, part 3     4: part 2   5: part 3
//
// After its all_reduce every member has the same sums and makes the same update, so no state has to be sent; the first member owns it, the
// others hold copies. What the members hold in shares each owns its share of, and does its share of the work on it.
//
// Where the devices of a node hold the same of a parameter, collectives are of the devices of a node (between what a node has and a
// device's share), or of those with the same place in each node (between that and the whole):
//
//   node 0, devices 0 1    whole <-> a node's half: 0 2 and 1 3
//   node 1, devices 2 3    a node's half <-> a device's quarter: 0 1 and 2 3
#include <algorithm>
#include <map>
#include <tuple>

#include "base/text.h"
#include "lower/passes.h"
#include "program/piece.h"

namespace penstock {
namespace {

// Where the instances and runs of actors go on their devices.
struct Spread {
  const LowerInput& input;
  const Draft from;                        // actors
  IdVector<ActorId, std::int32_t> first;   // of its devices
  IdVector<InstanceId, InstanceId> clone;  // the first of its clones
  bool several = false;                    // some device takes several parts of a micro-batch: their slots' names differ

  const Instance& at(InstanceId id) const { return from.instances[id]; }
  std::int32_t parts_of(ActorId actor) const { return input.parts / input.devices(actor); }  // of a micro-batch, for each of its devices
};

// A task on given shares of another task's inputs and outputs. Every gather of a block is the same one.
using SharedTasks = std::map<std::tuple<TaskId, std::vector<Share>, std::vector<Share>>, TaskId>;
using Groups = std::map<std::vector<std::int32_t>, std::int32_t>;  // members: the group

// One for each part of a micro-batch; of what lives once on an actor, one for each of its devices.
std::int32_t clones(const LowerInput& input, const Instance& instance) {
  if (instance.unit) return input.parts;
  return instance.home ? input.devices(instance.home) : 1;
}

// Devices, one after the other, that have the same of it.
std::int32_t alike(const LowerInput& input, const Instance& instance) {
  switch (instance.extent) {
    case Extent::device:
      return 1;
    case Extent::node:
      return input.local;
    default:
      return clones(input, instance);
  }
}

// Device d's, or its node's, share of each part. What collectives move is there on every device; else what is empty is not.
std::vector<Share> shares_of(const Spread& s, const Instance& instance, std::int32_t d) {
  if (instance.extent == Extent::whole) return std::vector<Share>(instance.types.size());
  std::vector<Share> shares;
  bool is_empty = true;
  const std::int32_t count = alike(s.input, instance);
  for (std::int32_t member : instance.members) {
    shares.push_back(share_of(s.from.blocks[instance.block], member, d - d % count, count, s.input.devices(instance.home)));
    is_empty = is_empty && shares.back().begin == shares.back().end;
  }
  shares.back().stands_in = is_empty && instance.source == Instance::Source::computed && is_all_of_block(s.from, instance);
  return shares;
}

void place_block(const Spread& s, const Instance& instance, std::int32_t d, Instance& out) {
  const std::int64_t bytes = share_bytes(s.from.blocks[instance.block], s.input.devices(instance.home));
  if (is_all_of_block(s.from, instance)) out.room = bytes * alike(s.input, instance);
  if (instance.extent == Extent::whole) return;
  out.types.clear();
  const std::vector<Share> shares = shares_of(s, instance, d);
  for (std::size_t p = 0; p < shares.size(); ++p) {
    const auto [whole, begin, end, stands_in] = shares[p];
    const DType dtype = instance.types[p].dtype;
    if (begin < end) out.types.push_back({dtype, {end - begin}});
    if (begin == end && stands_in) out.types.push_back({dtype, {1}});
    if (instance.source == Instance::Source::state && begin < end) out.name = piece_name(instance.name, begin, end);
  }
}

Instance clone_of(const Spread& s, const Instance& instance, std::int32_t c) {
  Instance out = instance;
  if (instance.unit) {
    out.unit.microbatch = instance.unit.microbatch * s.input.parts + c;
    if (s.several) out.name += concat(".part", c);
  }
  if (instance.home) out.home = ActorId(s.first[instance.home] + (instance.unit ? c / s.parts_of(instance.home) : c));
  out.owned = instance.source != Instance::Source::state || c % alike(s.input, instance) == 0;
  if (instance.block) place_block(s, instance, c, out);
  return out;
}

// The clone that device `d` of the actor reads or writes. Of what another actor's devices all have alike, one gives it.
InstanceId clone_for(const Spread& s, InstanceId i, ActorId actor, std::int32_t d, std::int32_t part) {
  const Instance& instance = s.at(i);
  const std::int32_t first = s.clone[i].value;
  if (instance.unit) return InstanceId(first + part);
  if (!instance.home) return InstanceId(first);
  return InstanceId(first + (instance.home == actor ? d : d * s.input.devices(instance.home) / s.input.devices(actor)));
}

// What the device does of a run on what it holds in part; of what it holds nothing of, nothing.
void take_shares(const Spread& s, const Run& run, std::int32_t d, SharedTasks& shared, Draft& draft, Run& out) {
  bool in_part = false;
  std::vector<Share> inputs, outputs;
  const auto note = [&](InstanceId i, std::vector<Share>& shares) {
    in_part = in_part || s.at(i).extent != Extent::whole;
    const std::vector<Share> parts = shares_of(s, s.at(i), d);
    shares.insert(shares.end(), parts.begin(), parts.end());
  };
  for (InstanceId read : run.reads) note(read, inputs);
  for (const Write& write : run.writes) note(write.instance, outputs);
  if (!in_part) return;
  std::erase_if(out.reads, [&](InstanceId i) { return draft.instances[i].types.empty(); });
  std::erase_if(out.writes, [&](const Write& write) { return draft.instances[write.instance].types.empty(); });
  if (out.writes.empty()) return;
  const auto [made, fresh] = shared.try_emplace({run.task, inputs, outputs});
  if (fresh) {
    const Task& task = draft.tasks[run.task];
    made->second = add_task(draft, concat(task.name, ".share", d), take_share(Graph(task.graph), inputs, outputs));
  }
  out.task = made->second;
}

// The members of a collective on device `d` of the actor: those that have different parts of the larger of what it reads and makes, and
// the same of the smaller.
std::int32_t group_of(const Spread& s, const Run& run, ActorId actor, std::int32_t d, Groups& groups, Draft& draft) {
  const auto [narrow, wide] = std::minmax({alike(s.input, s.at(run.reads[0])), alike(s.input, s.at(run.writes[0].instance))});
  const bool all = run.opcode == Opcode::all_reduce;
  const std::int32_t count = all ? s.input.devices(actor) : wide, step = all ? 1 : narrow;
  std::vector<std::int32_t> members;
  for (std::int32_t m = d - d % count + d % step; m < d - d % count + count; m += step) members.push_back(s.first[actor] + m);
  const auto [it, added] = groups.try_emplace(std::move(members), static_cast<std::int32_t>(groups.size()));
  if (added) draft.groups.push_back(it->first);
  return it->second;
}

struct Made {
  SharedTasks shared{};
  Groups groups{};
};

Run on_device(const Spread& s, const Run& run, ActorId actor, std::int32_t d, std::int32_t part, Made& made, Draft& draft) {
  Run out = run;
  for (InstanceId& read : out.reads) read = clone_for(s, read, actor, d, part);
  for (Write& write : out.writes) {
    // The first part of the first micro-batch makes the accumulator.
    const bool again = run.unit && part % s.parts_of(actor) > 0;
    if (again && !s.at(write.instance).unit) write.mode = ResultMode::add;
    write.instance = clone_for(s, write.instance, actor, d, part);
  }
  if (run.unit) out.unit.microbatch = run.unit.microbatch * s.input.parts + part;
  if (is_collective(run.opcode) && run.axis < 0) out.group = group_of(s, run, actor, d, made.groups, draft);
  if (run.opcode == Opcode::run) take_shares(s, run, d, made.shared, draft, out);
  return out;
}

std::vector<Run> row_of(const Spread& s, ActorId actor, std::int32_t d, Made& made, Draft& draft) {
  std::vector<Run> runs;
  for (const Run& run : s.from.actors[actor]) {
    if (run.opcode == Opcode::output && d > 0) continue;
    const std::int32_t count = run.unit ? s.parts_of(actor) : 1;
    for (std::int32_t p = 0; p < count; ++p) {
      runs.push_back(on_device(s, run, actor, d, run.unit ? d * count + p : -1, made, draft));
      if (!run.unit && run.opcode == Opcode::run && runs.back().writes.empty()) runs.pop_back();
    }
  }
  return runs;
}

// What was cut into the devices' shares runs nowhere as a whole.
void drop_unused_tasks(Draft& draft) {
  IdVector<TaskId, TaskId> kept(draft.tasks.size());
  std::vector<Task> used;
  for (std::vector<Run>& runs : draft.actors)
    for (Run& run : runs) {
      if (run.opcode != Opcode::run) continue;
      TaskId& task = kept[run.task];
      if (!task) {
        task = TaskId(used.size());
        used.push_back(std::move(draft.tasks[run.task]));
      }
      run.task = task;
    }
  draft.tasks = std::move(used);
}

// What the instances, rows and states are instead of the actors'.
Draft without_actors(Draft& draft) {
  Draft from;
  from.blocks = draft.blocks;
  from.instances = std::exchange(draft.instances, {});
  from.actors = std::exchange(draft.actors, {});
  from.refreshed = std::exchange(draft.refreshed, {});
  return from;
}

}  // namespace

void spread_groups(const LowerInput& input, Draft& draft) {
  draft.inputs.clear();
  if (input.parts == 1) return;
  Spread s{input, without_actors(draft), {}, {}};
  std::int32_t devices = 0;
  for (const std::int32_t size : input.group_size) {
    s.first.push_back(devices);
    devices += size;
    s.several = s.several || size < input.parts;
  }
  for (const Instance& instance : s.from.instances) {
    s.clone.emplace_back(draft.instances.size());
    for (std::int32_t c = 0; c < clones(input, instance); ++c) draft.instances.push_back(clone_of(s, instance, c));
  }
  Made made;
  for (const ActorId actor : ids<ActorId>(input.actors()))
    for (std::int32_t d = 0; d < input.devices(actor); ++d) draft.actors.push_back(row_of(s, actor, d, made, draft));
  for (const InstanceId state : s.from.refreshed)
    for (std::int32_t c = 0; c < clones(input, s.at(state)); ++c) draft.refreshed.emplace_back(s.clone[state].value + c);
  if (!draft.blocks.empty()) drop_unused_tasks(draft);
  draft.task_by_hash.clear();
}

}  // namespace penstock
