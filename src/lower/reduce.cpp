// Pass: the sums that each device of an actor has made become its group's.
#include <algorithm>
#include <iterator>
#include <map>

#include "base/text.h"
#include "lower/draft.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// Sums the accumulators of one actor over its devices, while these go on with other stages: each behind the last run that adds to it.
// An accumulator whose tensors are a block is scattered: each device gets the sum of its share. From level 2 on that is done at each
// REDUCE_GRAD of its stage too: what is added later makes a new accumulator, whose sum is added to the share. Where nodes have parameters
// alike, that share is a node's, and scattered over its devices behind the last run.
class Reducer {
 public:
  Reducer(Lowering& lowering, std::int32_t actor, bool at_actions)
      : l_(lowering), actor_(actor), at_actions_(at_actions), last_(lowering.draft.instances.size(), -1) {}

  void run() {
    std::vector<Run> runs = std::move(l_.draft.actors[static_cast<std::size_t>(actor_)]);
    for (std::size_t r = 0; r < runs.size(); ++r)
      for (const Write& write : runs[r].writes) last_[static_cast<std::size_t>(write.instance)] = static_cast<std::ptrdiff_t>(r);
    for (LoopEnds::Partial& partial : l_.ends.partials)
      if (partial.actor == actor_) note(partial);
    for (std::size_t r = 0; r < runs.size(); ++r) {
      if (runs[r].placeholder && runs[r].kind == Kind::REDUCE_GRAD) {
        if (at_actions_) reduce_stage(runs[r].stage);
        continue;
      }
      add(std::move(runs[r]), static_cast<std::ptrdiff_t>(r));
    }
    put_later();
    l_.draft.actors[static_cast<std::size_t>(actor_)] = std::move(out_);
  }

 private:
  struct Accumulator {
    std::int32_t stage = -1;
    std::int32_t block = -1;  // -1: its sum goes to all
    std::int32_t sum = -1;    // instance: each device's part of the sum
    std::int32_t share = -1;  // instance: each node's part, or `sum`
    std::int32_t now = -1;    // instance that is added to
    bool is_open = false;     // something was added to it since the last reduction,
    bool has_share = false;   // and there was one
  };

  // Of what the loop leaves behind; scattered, its parts are those of the share.
  void note(LoopEnds::Partial& partial) {
    const auto member = l_.sharded_results.find(partial.result);
    const auto [it, added] = accumulators_.try_emplace(partial.instance);
    Accumulator& accumulator = it->second;
    if (added) {
      accumulator.now = partial.instance;
      accumulator.stage = partial.stage;
      if (member != l_.sharded_results.end()) {
        const std::string name = l_.draft.instances[static_cast<std::size_t>(partial.instance)].name;
        accumulator.block = member->second.block;
        accumulator.now = l_.add_block(accumulator.block, actor_, concat(name, ".0"), Extent::whole);
        accumulator.sum = accumulator.share = l_.add_block(accumulator.block, actor_, name, Extent::device);
        if (l_.parameter_extent() == Extent::node)
          accumulator.share = l_.add_block(accumulator.block, actor_, concat(name, ".node"), Extent::node);
      }
    }
    if (accumulator.block >= 0) partial.instance = accumulator.sum;
  }

  void add(Run run, std::ptrdiff_t number) {
    std::vector<Accumulator*> complete;
    for (Write& write : run.writes) {
      const auto found = accumulators_.find(write.instance);
      if (found == accumulators_.end()) continue;
      Accumulator& accumulator = found->second;
      if (last_[static_cast<std::size_t>(write.instance)] == number) complete.push_back(&accumulator);
      write = {accumulator.now, accumulator.is_open ? ResultMode::add : ResultMode::store};
      accumulator.is_open = true;
    }
    if (run.placeholder) put_later();  // a U reads what was summed
    const std::int32_t stage = run.stage;
    const bool computes = !is_beside(run);
    out_.push_back(std::move(run));
    if (computes) put_later();
    for (Accumulator* accumulator : complete) {
      reduce(*accumulator, stage);
      if (accumulator->share != accumulator->sum)
        later_.push_back(action(Opcode::reduce_scatter, stage, accumulator->share, {accumulator->sum}));
    }
  }

  void put_later() {
    std::ranges::move(later_, std::back_inserter(out_));
    later_.clear();
  }

  void reduce_stage(std::int32_t stage) {
    for (auto& [instance, accumulator] : accumulators_)
      if (accumulator.stage == stage && accumulator.block >= 0 && accumulator.is_open) reduce(accumulator, stage);
  }

  static Run action(Opcode opcode, std::int32_t stage, std::int32_t from, Write to) {
    Run run;
    run.opcode = opcode;
    run.stage = stage;
    run.kind = Kind::REDUCE_GRAD;
    run.action = true;
    run.reads = {from};
    run.writes = {to};
    return run;
  }

  void reduce(Accumulator& accumulator, std::int32_t stage) {
    if (accumulator.block < 0) {
      out_.push_back(action(Opcode::all_reduce, stage, accumulator.now, {accumulator.now, ResultMode::update}));
      return;
    }
    const std::string name = l_.draft.instances[static_cast<std::size_t>(accumulator.share)].name;
    const std::int32_t share = accumulator.has_share
                                   ? l_.add_block(accumulator.block, actor_, concat(name, ".share.", reductions_), l_.parameter_extent())
                                   : accumulator.share;
    out_.push_back(action(Opcode::reduce_scatter, stage, accumulator.now, {share}));
    if (accumulator.has_share) {
      later_.push_back(action(Opcode::run, stage, share, {accumulator.share, ResultMode::add}));
      later_.back().task = l_.copy_task(accumulator.block);
    }
    accumulator.now = l_.add_block(accumulator.block, actor_, concat(name, ".", ++reductions_), Extent::whole);
    accumulator.has_share = true;
    accumulator.is_open = false;
  }

  Lowering& l_;
  std::int32_t actor_;
  bool at_actions_;
  std::vector<std::ptrdiff_t> last_;                  // of each instance: the last run that writes it
  std::map<std::int32_t, Accumulator> accumulators_;  // by the instance that lower_actions made
  std::vector<Run> out_;
  std::vector<Run> later_;  // what waits for a reduction: behind the next run, which the device works on meanwhile
  int reductions_ = 0;
};

}  // namespace

void reduce_over_groups(Lowering& lowering, const Sharding& sharding) {
  for (const LoopEnds::Use& use : lowering.ends.uses)
    if (use.microbatch >= 0 && lowering.parts > 1)
      throw Error(concat("what the loop splits into micro-batches is computed before it (operand ", use.operand, " of the loop)"), {},
                  "with data parallelism the loop can only split data ports");
  for (std::int32_t actor = 0; actor < lowering.actors(); ++actor) {
    std::vector<Run>& runs = lowering.draft.actors[static_cast<std::size_t>(actor)];
    if (lowering.group_sizes[static_cast<std::size_t>(actor)] > 1)
      Reducer(lowering, actor, sharding.level >= 2).run();
    else
      std::erase_if(runs, [](const Run& run) { return run.placeholder && run.kind == Kind::REDUCE_GRAD; });
  }
}

}  // namespace penstock
