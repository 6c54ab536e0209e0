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
#include "lower/draft.h"
#include "penstock/error.h"
#include "program/piece.h"

namespace penstock {
namespace {

// Where the instances and runs of actors go on their devices.
class Spread {
 public:
  explicit Spread(Lowering& lowering) : l_(lowering), actors_(std::move(lowering.draft)) {
    std::int32_t devices = 0;
    for (const std::int32_t size : l_.group_sizes) {
      first_.push_back(devices);
      devices += size;
      several_ = several_ || size < l_.parts;
    }
  }

  void run() {
    Draft& out = l_.draft = {};
    for (const Instance& instance : actors_.instances) {
      clone_.push_back(static_cast<std::int32_t>(out.instances.size()));
      for (std::int32_t c = 0; c < clones(instance); ++c) out.instances.push_back(clone(instance, c));
    }
    for (std::int32_t actor = 0; actor < l_.actors(); ++actor) add_devices(actor);
    for (const std::int32_t state : actors_.refreshed)
      for (std::int32_t c = 0; c < clones(actors_.instances[static_cast<std::size_t>(state)]); ++c)
        out.refreshed.push_back(clone_[static_cast<std::size_t>(state)] + c);
  }

 private:
  std::int32_t size(std::int32_t actor) const { return l_.group_sizes[static_cast<std::size_t>(actor)]; }
  std::int32_t parts_of(std::int32_t actor) const { return l_.parts / size(actor); }  // of a micro-batch, that each of its devices takes

  // One for each part of a micro-batch; of what lives once on an actor, one for each of its devices.
  std::int32_t clones(const Instance& instance) const {
    if (instance.microbatch >= 0) return l_.parts;
    return instance.home < 0 ? 1 : size(instance.home);
  }

  Instance clone(const Instance& instance, std::int32_t c) const {
    Instance out = instance;
    const bool part = instance.microbatch >= 0;
    if (part) {
      out.microbatch = instance.microbatch * l_.parts + c;
      if (several_) out.name += concat(".part", c);
    }
    if (instance.home >= 0) out.home = first_[static_cast<std::size_t>(instance.home)] + (part ? c / parts_of(instance.home) : c);
    out.owned = part || c % alike(instance) == 0;
    if (instance.block >= 0) place_block(instance, c, out);
    return out;
  }

  // Devices, one after the other, that have the same of it.
  std::int32_t alike(const Instance& instance) const {
    switch (instance.extent) {
      case Extent::device:
        return 1;
      case Extent::node:
        return l_.local;
      default:
        return clones(instance);
    }
  }

  bool is_all_of(const Instance& instance) const {
    return instance.members.size() == l_.blocks[static_cast<std::size_t>(instance.block)].members.size();
  }

  // Device d's, or its node's, share of each part. What collectives move is there on every device; else what is empty is not.
  std::vector<Share> shares_of(const Instance& instance, std::int32_t d) const {
    if (instance.extent == Extent::whole) return std::vector<Share>(instance.types.size());
    std::vector<Share> shares;
    bool is_empty = true;
    const std::int32_t count = alike(instance);
    for (std::int32_t member : instance.members) {
      shares.push_back(share_of(l_.blocks[static_cast<std::size_t>(instance.block)], member, d - d % count, count, size(instance.home)));
      is_empty = is_empty && shares.back().begin == shares.back().end;
    }
    shares.back().stands_in = is_empty && instance.source == Instance::Source::computed && is_all_of(instance);
    return shares;
  }

  void place_block(const Instance& instance, std::int32_t d, Instance& out) const {
    const std::int64_t bytes = share_bytes(l_.blocks[static_cast<std::size_t>(instance.block)], size(instance.home));
    if (is_all_of(instance)) out.room = bytes * alike(instance);
    if (instance.extent == Extent::whole) return;
    out.types.clear();
    const std::vector<Share> shares = shares_of(instance, d);
    for (std::size_t p = 0; p < shares.size(); ++p) {
      const auto [whole, begin, end, stands_in] = shares[p];
      const DType dtype = instance.types[p].dtype;
      if (begin < end) out.types.push_back({dtype, {end - begin}});
      if (begin == end && stands_in) out.types.push_back({dtype, {1}});
      if (instance.source == Instance::Source::state && begin < end) out.name = piece_name(instance.name, begin, end);
    }
  }

  // The clone that device `d` of the actor reads or writes. Of what another actor's devices all have alike, one gives it.
  std::int32_t clone_for(std::int32_t i, std::int32_t actor, std::int32_t d, std::int32_t part) const {
    const Instance& instance = actors_.instances[static_cast<std::size_t>(i)];
    const std::int32_t first = clone_[static_cast<std::size_t>(i)];
    if (instance.microbatch >= 0) return first + part;
    if (instance.home < 0) return first;
    return first + (instance.home == actor ? d : d * size(instance.home) / size(actor));
  }

  Run on_device(const Run& run, std::int32_t actor, std::int32_t d, std::int32_t part) {
    Run out = run;
    for (std::int32_t& read : out.reads) read = clone_for(read, actor, d, part);
    for (Write& write : out.writes) {
      // The first part of the first micro-batch makes the accumulator.
      const bool again = run.microbatch >= 0 && part % parts_of(actor) > 0;
      if (again && actors_.instances[static_cast<std::size_t>(write.instance)].microbatch < 0) write.mode = ResultMode::add;
      write.instance = clone_for(write.instance, actor, d, part);
    }
    if (run.microbatch >= 0) out.microbatch = run.microbatch * l_.parts + part;
    if (is_collective(run.opcode)) out.group = group_of(run, actor, d);
    if (run.opcode == Opcode::run) take_shares(run, d, out);
    return out;
  }

  // What the device does of a run on what it holds in part; of what it holds nothing of, nothing.
  void take_shares(const Run& run, std::int32_t d, Run& out) {
    bool in_part = false;
    std::vector<Share> inputs, outputs;
    const auto note = [&](std::int32_t i, std::vector<Share>& shares) {
      const Instance& instance = actors_.instances[static_cast<std::size_t>(i)];
      in_part = in_part || instance.extent != Extent::whole;
      const std::vector<Share> parts = shares_of(instance, d);
      shares.insert(shares.end(), parts.begin(), parts.end());
    };
    for (std::int32_t read : run.reads) note(read, inputs);
    for (const Write& write : run.writes) note(write.instance, outputs);
    if (!in_part) return;
    const auto is_absent = [&](std::int32_t i) { return l_.draft.instances[static_cast<std::size_t>(i)].types.empty(); };
    std::erase_if(out.reads, is_absent);
    std::erase_if(out.writes, [&](const Write& write) { return is_absent(write.instance); });
    if (out.writes.empty()) return;
    const auto [made, fresh] = shared_.try_emplace({run.task, inputs, outputs});
    if (!fresh) {
      out.task = made->second;
      return;
    }
    const Task& task = l_.program.tasks[run.task.index()];
    out.task = made->second = l_.tasks.add(concat(task.name, ".share", d), take_share(Graph(task.graph), inputs, outputs));
  }

  // Of a collective on device `d` of the actor: those that have different parts of the larger of what it reads and makes, and the same of
  // the smaller.
  std::int32_t group_of(const Run& run, std::int32_t actor, std::int32_t d) {
    const auto [narrow, wide] = std::minmax({alike(actors_.instances[static_cast<std::size_t>(run.reads[0])]),
                                             alike(actors_.instances[static_cast<std::size_t>(run.writes[0].instance)])});
    const bool all = run.opcode == Opcode::all_reduce;
    const std::int32_t count = all ? size(actor) : wide, step = all ? 1 : narrow;
    std::vector<std::int32_t> members;
    for (std::int32_t m = d - d % count + d % step; m < d - d % count + count; m += step)
      members.push_back(first_[static_cast<std::size_t>(actor)] + m);
    const auto [it, added] = groups_.try_emplace(std::move(members), static_cast<std::int32_t>(groups_.size()));
    if (added) l_.program.groups.push_back(it->first);
    return it->second;
  }

  void add_devices(std::int32_t actor) {
    for (std::int32_t d = 0; d < size(actor); ++d) {
      std::vector<Run>& runs = l_.draft.actors.emplace_back();
      for (const Run& run : actors_.actors[static_cast<std::size_t>(actor)]) {
        if (run.opcode == Opcode::output && d > 0) continue;
        if (run.microbatch < 0) {
          runs.push_back(on_device(run, actor, d, -1));
          if (run.opcode == Opcode::run && runs.back().writes.empty()) runs.pop_back();
        } else {
          for (std::int32_t p = 0; p < parts_of(actor); ++p) runs.push_back(on_device(run, actor, d, d * parts_of(actor) + p));
        }
      }
    }
  }

  Lowering& l_;
  const Draft actors_;
  bool several_ = false;                                      // some device takes several parts of a micro-batch: their slots' names differ
  std::vector<std::int32_t> first_;                           // device of each actor
  std::vector<std::int32_t> clone_;                           // of each instance: the first of its clones
  std::map<std::vector<std::int32_t>, std::int32_t> groups_;  // members: the group
  // The task on given shares of another task's inputs and outputs. Every gather of a block is the same one.
  std::map<std::tuple<TaskId, std::vector<Share>, std::vector<Share>>, TaskId> shared_;
};

// What was cut into the devices' shares runs nowhere as a whole.
void drop_unused_tasks(Lowering& lowering) {
  std::vector<Task>& tasks = lowering.program.tasks;
  std::vector<TaskId> kept(tasks.size());
  std::vector<Task> used;
  for (std::vector<Run>& runs : lowering.draft.actors)
    for (Run& run : runs) {
      if (run.opcode != Opcode::run) continue;
      TaskId& task = kept[run.task.index()];
      if (!task) {
        task = TaskId(static_cast<std::int64_t>(used.size()));
        used.push_back(std::move(tasks[run.task.index()]));
      }
      run.task = task;
    }
  tasks = std::move(used);
}

}  // namespace

void spread_groups(Lowering& lowering) {
  if (lowering.parts == 1) return;
  Spread(lowering).run();
  if (!lowering.blocks.empty()) drop_unused_tasks(lowering);
}

}  // namespace penstock
