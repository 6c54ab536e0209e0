// Actors that are groups of devices. Lowering thinks in actors; here the sums that each device has made become its group's
// (reduce_over_groups), and the devices are written out (spread_groups).
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
// others hold copies.
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

// Where the instances and runs of actors go on their devices.
class Spread {
 public:
  explicit Spread(Lowering& lowering) : l_(lowering), actors_(std::move(lowering.draft)) {
    std::int32_t devices = 0;
    for (const std::int32_t size : l_.group_sizes) {
      first_.push_back(devices);
      devices += size;
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
    if (part) out.microbatch = instance.microbatch * l_.parts + c;
    if (instance.home >= 0) out.home = first_[static_cast<std::size_t>(instance.home)] + (part ? c / parts_of(instance.home) : c);
    out.owned = part || c == 0;
    return out;
  }

  // The clone that device `d` of the actor reads or writes. Of what another actor's devices all have alike, one gives it.
  std::int32_t clone_for(std::int32_t i, std::int32_t actor, std::int32_t d, std::int32_t part) const {
    const Instance& instance = actors_.instances[static_cast<std::size_t>(i)];
    const std::int32_t first = clone_[static_cast<std::size_t>(i)];
    if (instance.microbatch >= 0) return first + part;
    if (instance.home < 0) return first;
    return first + (instance.home == actor ? d : d * size(instance.home) / size(actor));
  }

  Run on_device(const Run& run, std::int32_t actor, std::int32_t d, std::int32_t part) const {
    Run out = run;
    for (std::int32_t& read : out.reads) read = clone_for(read, actor, d, part);
    for (Write& write : out.writes) {
      // The first part of the first micro-batch makes the accumulator.
      const bool again = run.microbatch >= 0 && part % parts_of(actor) > 0;
      if (again && actors_.instances[static_cast<std::size_t>(write.instance)].microbatch < 0) write.mode = ResultMode::add;
      write.instance = clone_for(write.instance, actor, d, part);
    }
    if (run.microbatch >= 0) out.microbatch = run.microbatch * l_.parts + part;
    if (is_collective(run.opcode)) out.group = static_cast<std::int32_t>(l_.program.groups.size()) - 1;
    return out;
  }

  void add_devices(std::int32_t actor) {
    if (size(actor) > 1) {
      std::vector<std::int32_t>& group = l_.program.groups.emplace_back();
      for (std::int32_t d = 0; d < size(actor); ++d) group.push_back(first_[static_cast<std::size_t>(actor)] + d);
    }
    for (std::int32_t d = 0; d < size(actor); ++d) {
      std::vector<Run>& runs = l_.draft.actors.emplace_back();
      for (const Run& run : actors_.actors[static_cast<std::size_t>(actor)]) {
        if (run.opcode == Opcode::output && d > 0) continue;
        if (run.microbatch < 0) {
          runs.push_back(on_device(run, actor, d, -1));
        } else {
          for (std::int32_t p = 0; p < parts_of(actor); ++p) runs.push_back(on_device(run, actor, d, d * parts_of(actor) + p));
        }
      }
    }
  }

  Lowering& l_;
  const Draft actors_;
  std::vector<std::int32_t> first_;  // device of each actor
  std::vector<std::int32_t> clone_;  // of each instance: the first of its clones
};

}  // namespace

void reduce_over_groups(Lowering& lowering) {
  if (lowering.parts == 1) return;
  for (const LoopEnds::Use& use : lowering.ends.uses)
    if (use.microbatch >= 0)
      throw Error(concat("what the loop splits into micro-batches is computed before it (operand ", use.operand, " of the loop)"), {},
                  "with data parallelism the loop can only split data ports");
  std::vector<bool> accumulators(lowering.draft.instances.size(), false);
  for (const LoopEnds::Partial& partial : lowering.ends.partials) accumulators[static_cast<std::size_t>(partial.instance)] = true;
  for (std::size_t actor = 0; actor < lowering.draft.actors.size(); ++actor)
    if (lowering.group_sizes[actor] > 1) reduce_over_group(lowering, lowering.draft.actors[actor], accumulators);
}

void spread_groups(Lowering& lowering) {
  if (lowering.parts > 1) Spread(lowering).run();
}

}  // namespace penstock
