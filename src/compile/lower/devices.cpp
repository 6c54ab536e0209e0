// SPDX-License-Identifier: Apache-2.0
// Pass: actors become devices. Lowering thinks in actors up to here.
//
// A micro-batch of the table is cut into `shares`, the least common multiple of the groups' sizes; each device of an actor takes as many,
// one after the other: share p of micro-batch m is micro-batch m * shares + p of the step. What flows between actors flows share by share,
// so each device sends only what the other side needs, whatever the groups' sizes:
//
//   actor 0, 2 devices    actor 1, 4 devices        actor 2, 1 device
//   0: share 0, share 1     2: share 0   3: share 1     6: share 0, share 1, share 2, share 3
//   1: share 2, share 3     4: share 2   5: share 3
//
// After its all_reduce every member has the same sums and makes the same update, so no state has to be sent; the first member owns it, the
// others hold copies. Up to here tensors that lie flat (blocks.cpp) are whole. Now each device owns its range of them, and of a task that
// works on them it gets the part that localise() makes, along `data` and then along `local`; of tensors of which it has nothing it gets
// nothing (drop_empty).
//
// The devices of an actor are a mesh: hosts, the axis `data`, and the devices of each host, the axis `local`. What lies in a block is whole
// or flat along each, and a collective is along the axis where what it reads and makes lie otherwise: of the devices that are alike in all
// but this.
//
//   host 0, devices 0 1    along data, whole <-> a host's half: 0 2 and 1 3
//   host 1, devices 2 3    along local, a host's half <-> a device's quarter: 0 1 and 2 3
//
// In this pass device d of an actor is at place d / local along `data` and d % local along `local`. Where the latter is the outer axis
// (CompileOptions::local_outside) the draft that it leaves numbers them the other way.
#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

#include "base/text.h"
#include "lower/passes.h"
#include "program/piece.h"
#include "transform/layouts.h"
#include "transform/passes.h"

namespace penstock {
namespace {

// The layouts of a tensor along the axes of an actor's devices, and the elements begin <= i < end that one device has of it where it is
// flat.
struct Lying {
  Layout data, local;
  std::int64_t begin = 0, end = 0;
  bool kept = false;  // the device has none, but what a collective moves is there on all: one element of no meaning

  auto operator<=>(const Lying&) const = default;
};
// How a task's inputs and outputs lie on a device.
struct TaskEnds {
  std::vector<Lying> in{}, out{};

  auto operator<=>(const TaskEnds&) const = default;
};

// Where the instances and runs of actors go on their devices.
struct Spread {
  const LowerInput& input;
  Draft& draft;      // of devices, in the making
  const Draft from;  // actors
  // For each block, what member_offsets() returns.
  IdVector<BlockId, std::vector<std::int64_t>> offsets{};
  IdVector<ActorId, std::int32_t> first{};   // of its devices
  IdVector<InstanceId, InstanceId> clone{};  // the first of its clones
  bool several = false;                      // some device takes or reads several shares of a micro-batch: their slots' names differ
  // The tasks of single devices, each by the actor's task and how its inputs and outputs lie there. Every gather of a block is the same
  // one.
  std::map<std::tuple<TaskId, std::int32_t, TaskEnds>, TaskId> tasks{};
  std::map<std::vector<std::int32_t>, std::int32_t> groups{};  // members: the group

  const Instance& at(InstanceId id) const { return from.instances[id]; }
  // The device of the draft that the actor's device d is.
  ActorId device(ActorId actor, std::int32_t d) const {
    const std::int32_t local = input.local, hosts = input.devices(actor) / local;
    return ActorId(first[actor] + (input.options.local_outside ? d % local * hosts + d / local : d));
  }
  std::int32_t shares_of(ActorId actor) const { return input.shares / input.devices(actor); }  // of a micro-batch, for each of its devices
};

// Device `d` of an actor.
struct DeviceOf {
  ActorId actor;
  std::int32_t d = 0;
};

// One for each share of a micro-batch; of what lives once on an actor, one for each of its devices.
std::int32_t clones(const LowerInput& input, const Instance& instance) {
  if (instance.unit) return input.shares;
  return instance.home ? input.devices(instance.home) : 1;
}

// Devices, one after the other, that have the same of it.
std::int32_t alike(const LowerInput& input, const Instance& instance) {
  if (instance.held.is_whole()) return clones(input, instance);
  return instance.held == kHostShare ? input.local : 1;
}

// The instance's tensors for device d of its home.
std::vector<Lying> lying_of(const Spread& s, const Instance& instance, std::int32_t d) {
  std::vector<Lying> out(instance.types.size());
  if (instance.held.is_whole()) return out;
  const std::int32_t local = s.input.local, host = d / local, devices = s.input.devices(instance.home);
  const ShareBlock& block = s.from.blocks[instance.block];
  bool has_none = true;
  for (std::size_t p = 0; p < out.size(); ++p) {
    Lying& tensor = out[p];
    tensor.data = flat_in(block, s.offsets[instance.block], instance.members[p], devices, local);
    LayoutRange range = range_of(tensor.data, instance.types[p].elements(), devices / local, host);
    tensor.begin = range.begin;
    if (instance.held != kHostShare) {
      tensor.local = flat_in_host(tensor.data, host, local);
      range = range_of(tensor.local, range.size(), local, d % local);
      tensor.begin += range.begin;
    }
    tensor.end = tensor.begin + range.size();
    has_none = has_none && range.size() == 0;
  }
  out.back().kept = has_none && instance.source == Instance::Source::computed && is_all_of_block(s.from, instance);
  return out;
}

void place_block(const Spread& s, const Instance& instance, std::int32_t d, Instance& out) {
  const ShareBlock& block = s.from.blocks[instance.block];
  const std::int64_t bytes = share_bytes(block, s.offsets[instance.block], s.input.devices(instance.home)) /
                             byte_size(block.members[0].dtype) * byte_size(instance.types[0].dtype);
  if (is_all_of_block(s.from, instance)) out.room = bytes * alike(s.input, instance);
  if (instance.held.is_whole()) return;
  out.types.clear();
  for (std::size_t p = 0; const auto& [data, local, begin, end, kept] : lying_of(s, instance, d)) {
    const DType dtype = instance.types[p++].dtype;
    if (begin < end || kept) out.types.push_back({dtype, {kept ? 1 : end - begin}});
    if (begin < end && instance.source == Instance::Source::state) out.name = piece_name(instance.name, begin, end);
  }
}

Instance clone_of(const Spread& s, const Instance& instance, std::int32_t c) {
  Instance out = instance;
  if (instance.unit) {
    out.unit.microbatch = instance.unit.microbatch * s.input.shares + c;
    if (s.several) out.name += concat(".part", c);
  }
  if (instance.unit && instance.source == Instance::Source::data && !s.input.shape_class.empty()) {  // each share has a port of its own
    out.input.value += c * static_cast<std::int32_t>(attribute<std::int64_t>(s.input.loop_op(), "split"));
    out.name = s.input.step.values[s.input.value(out.input)].name;
    out.unit = {};
  }
  if (instance.home) out.home = s.device(instance.home, instance.unit ? c / s.shares_of(instance.home) : c);
  out.owned = instance.source != Instance::Source::state || c % alike(s.input, instance) == 0;
  if (instance.block) place_block(s, instance, c, out);
  return out;
}

// The sums to which runs on micro-batches add: each device adds as often as it takes shares.
IdVector<InstanceId, bool> sums_of_parts(const Draft& from) {
  IdVector<InstanceId, bool> out(from.instances.size());
  for (const std::vector<Run>& runs : from.actors)
    for (const Run& run : runs)
      for (const Write& write : run.writes)
        if (run.unit && !from.instances[write.instance].unit) out[write.instance] = true;
  return out;
}

// The clone that a device reads or writes. Of what another actor's devices all have alike, one gives it.
InstanceId clone_for(const Spread& s, InstanceId i, DeviceOf on, std::int32_t share) {
  const Instance& instance = s.at(i);
  const std::int32_t first = s.clone[i].value;
  if (instance.unit) return InstanceId(first + share);
  if (!instance.home) return InstanceId(first);
  return InstanceId(first + (instance.home == on.actor ? on.d : on.d * s.input.devices(instance.home) / s.input.devices(on.actor)));
}

// Returns the part of a task that one member of an axis does, where the task's inputs and outputs lie so. Terms are summed behind it, over
// all devices: outputs that `is_term` says are some along the axes before are terms along this one too, and those along this one are noted
// there.
Graph along_axis(const Graph& task, const TaskEnds& ends, Layout Lying::* layout, const MemberLine& line, std::vector<bool>& is_term) {
  IdVector<ValueId, Layout> values(task.values.size());
  for (std::size_t i = 0; i < ends.in.size(); ++i) values[task.inputs[i]] = ends.in[i].*layout;
  GraphLayouts layouts = decide_layouts(task, std::move(values), IdVector<ValueId, bool>(task.values.size()), line.size);
  for (std::size_t o = 0; o < ends.out.size(); ++o)
    if (layouts.outputs[o].is_term())
      is_term[o] = true;
    else
      layouts.outputs[o] = is_term[o] ? kTerm : ends.out[o].*layout;
  return localise(task, layouts, {line.name, line.size, {}, {}}, line.place);
}

Graph task_of_device(const Spread& s, const Graph& task, const TaskEnds& ends, DeviceOf on) {
  const std::int32_t local = s.input.local, hosts = s.input.devices(on.actor) / local;
  std::vector<bool> is_term(ends.out.size());
  Graph graph = along_axis(task, ends, &Lying::data, {"data", hosts, on.d / local}, is_term);
  if (local > 1) graph = along_axis(graph, ends, &Lying::local, {"local", local, on.d % local}, is_term);
  const auto kept = [](const std::vector<Lying>& tensors) {
    std::vector<bool> all;
    for (const Lying& tensor : tensors) all.push_back(tensor.kept);
    return all;
  };
  return drop_empty(graph, kept(ends.in), kept(ends.out));
}

// Cuts a run that works on flat instances to the device's part; instances of which the device has nothing leave `out`.
void take_part(Spread& s, const Run& run, DeviceOf on, Run& out) {
  bool is_flat = false;
  TaskEnds ends;
  const auto note = [&](InstanceId i, std::vector<Lying>& tensors) {
    is_flat = is_flat || !s.at(i).held.is_whole();
    std::ranges::move(lying_of(s, s.at(i), on.d), std::back_inserter(tensors));
  };
  for (InstanceId read : run.reads) note(read, ends.in);
  for (const Write& write : run.writes) note(write.instance, ends.out);
  if (!is_flat) return;
  std::erase_if(out.reads, [&](InstanceId i) { return s.draft.instances[i].types.empty(); });
  std::erase_if(out.writes, [&](const Write& write) { return s.draft.instances[write.instance].types.empty(); });
  if (out.writes.empty()) return;
  const auto [made, fresh] = s.tasks.try_emplace({run.task, on.d, ends});
  if (fresh) {
    const Task& task = s.draft.tasks[run.task];
    made->second = add_task(s.draft, concat(task.name, ".share", on.d), task_of_device(s, task.graph, ends, on));
  }
  out.task = made->second;
}

// The members of a collective on a device of an actor, which differ in their places along the axes that it is along, and in no other.
std::int32_t group_of(Spread& s, const Run& run, DeviceOf on) {
  const Holding &from = s.at(run.reads[0]).held, &to = s.at(run.writes[0].instance).held;
  const bool all = run.opcode == Opcode::all_reduce, along_data = all || from.data != to.data, along_local = all || from.local != to.local;
  const std::int32_t local = s.input.local;
  std::vector<std::int32_t> members;
  for (std::int32_t m = 0; m < s.input.devices(on.actor); ++m)
    if ((along_data || m / local == on.d / local) && (along_local || m % local == on.d % local))
      members.push_back(s.device(on.actor, m).value);
  if (all) std::ranges::sort(members);  // the others are along one axis, along which devices ascend
  const auto [it, added] = s.groups.try_emplace(std::move(members), static_cast<std::int32_t>(s.groups.size()));
  if (added) s.draft.groups.push_back(it->first);
  return it->second;
}

Run on_device(Spread& s, const Run& run, DeviceOf on, std::int32_t share) {
  Run out = run;
  for (InstanceId& read : out.reads) read = clone_for(s, read, on, share);
  for (Write& write : out.writes) {
    // The first share of the first micro-batch makes the accumulator.
    const bool again = run.unit && share % s.shares_of(on.actor) > 0;
    if (again && !s.at(write.instance).unit) write.mode = ResultMode::add;
    write.instance = clone_for(s, write.instance, on, share);
  }
  if (run.unit) out.unit.microbatch = run.unit.microbatch * s.input.shares + share;
  if (is_collective(run.opcode) && run.axis < 0) out.group = group_of(s, run, on);
  if (run.opcode == Opcode::run) take_part(s, run, on, out);
  return out;
}

// Whether the device has nothing of what the run works on, or sums along an axis, whose other members have nothing of it then.
bool has_nothing(const Draft& draft, const Run& run) {
  if (run.opcode == Opcode::run) return run.writes.empty();
  return is_collective(run.opcode) && run.axis >= 0 && draft.instances[run.reads[0]].types.empty();
}

std::vector<Run> row_of(Spread& s, DeviceOf on) {
  std::vector<Run> runs;
  for (const Run& run : s.from.actors[on.actor]) {
    if (run.opcode == Opcode::output && on.d > 0) continue;
    const std::int32_t count = run.unit ? s.shares_of(on.actor) : 1;
    for (std::int32_t p = 0; p < count; ++p) {
      runs.push_back(on_device(s, run, on, run.unit ? on.d * count + p : -1));
      if (!run.unit && has_nothing(s.draft, runs.back())) runs.pop_back();
    }
  }
  return runs;
}

// Drops the whole tasks that were cut into the devices' shares: no run is left that executes them.
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

// Takes the actors' instances, rows and states out of the draft, to be replaced by the devices' own.
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
  if (input.shares == 1) return;
  Spread s{input, draft, without_actors(draft)};
  for (const ShareBlock& block : s.from.blocks) s.offsets.push_back(member_offsets(block));
  std::int32_t devices = 0;
  for (const std::int32_t size : input.group_size) {
    s.first.push_back(devices);
    devices += size;
    s.several = s.several || size < input.shares || input.options.prefetch;  // which reads the others' keys
  }
  const IdVector<InstanceId, bool> is_sum = sums_of_parts(s.from);
  for (const InstanceId i : s.from.instances.ids()) {
    s.clone.emplace_back(draft.instances.size());
    for (std::int32_t c = 0; c < clones(input, s.at(i)); ++c) {
      draft.instances.push_back(clone_of(s, s.at(i), c));
      if (is_sum[i]) draft.instances.back().terms *= s.shares_of(s.at(i).home);
    }
  }
  draft.actors.resize(static_cast<std::size_t>(devices));
  for (const ActorId actor : ids<ActorId>(input.actors()))
    for (std::int32_t d = 0; d < input.devices(actor); ++d) draft.actors[s.device(actor, d)] = row_of(s, {actor, d});
  for (const InstanceId state : s.from.refreshed)
    for (std::int32_t c = 0; c < clones(input, s.at(state)); ++c) draft.refreshed.emplace_back(s.clone[state].value + c);
  if (!draft.blocks.empty()) drop_unused_tasks(draft);
  draft.task_by_hash.clear();
}

}  // namespace penstock
