// SPDX-License-Identifier: Apache-2.0
// Pass: the sums that each device of an actor has made become its group's, while the devices go on with other stages: each behind the last
// run that adds to it. An accumulator whose tensors are a block is scattered: each device gets the sum of its share. From level 2 on that
// is done at each REDUCE_GRAD of its stage too: what is added later makes a new accumulator, whose sum is added to the share. Where hosts
// have parameters alike, that share is a host's, and scattered over its devices behind the last run.
#include <algorithm>
#include <iterator>
#include <map>

#include "base/text.h"
#include "lower/passes.h"
#include "penstock/error.h"

namespace penstock {
namespace {

struct Accumulator {
  StageId stage;
  BlockId block;           // none: its sum goes to all
  InstanceId sum;          // each device's part of the sum
  InstanceId share;        // each host's part, or `sum`
  InstanceId now;          // that is added to
  bool is_open = false;    // something was added to it since the last reduction,
  bool has_share = false;  // and there was one
};

// One actor's row under construction.
struct Row {
  ActorId actor;
  Holding device_share;
  std::map<InstanceId, Accumulator> accumulators{};  // by the instance that lower_actions made
  std::vector<Run> runs{};
  std::vector<Run> later{};  // what waits for a reduction: behind the next run, which the device works on meanwhile
  int reductions = 0;
};

Accumulator accumulator_of(Draft& draft, const Row& row, const PartialSum& partial) {
  Accumulator out;
  out.now = partial.instance;
  out.stage = partial.stage;
  const auto member = draft.sharded_results.find(partial.result);
  if (member == draft.sharded_results.end()) return out;
  const std::string name = draft.instances[partial.instance].name;
  out.block = member->second.block;
  out.now = add_block(draft, out.block, row.actor, concat(name, ".0"), {});
  out.sum = out.share = add_block(draft, out.block, row.actor, name, row.device_share);
  if (row.device_share != kHostShare) out.share = add_block(draft, out.block, row.actor, concat(name, ".node"), kHostShare);
  return out;
}

// Finds the sums that the loop leaves behind on the actor; where they are scattered, their parts are those of the share.
void find_accumulators(Draft& draft, Row& row) {
  for (PartialSum& partial : draft.partials) {
    if (draft.instances[partial.instance].home != row.actor) continue;
    auto found = row.accumulators.find(partial.instance);
    if (found == row.accumulators.end()) found = row.accumulators.emplace(partial.instance, accumulator_of(draft, row, partial)).first;
    if (found->second.block) partial.instance = found->second.sum;
  }
}

Run reduction(Opcode opcode, StageId stage, InstanceId from, Write to) {
  Run run;
  run.opcode = opcode;
  run.stage = stage;
  run.kind = Kind::REDUCE_GRAD;
  run.reads = {from};
  run.writes = {to};
  return run;
}

void reduce(Draft& draft, Row& row, Accumulator& sum, StageId stage) {
  if (!sum.block) {
    row.runs.push_back(reduction(Opcode::all_reduce, stage, sum.now, {sum.now, ResultMode::update}));
    return;
  }
  const std::string name = draft.instances[sum.share].name;
  const InstanceId share =
      sum.has_share ? add_block(draft, sum.block, row.actor, concat(name, ".share.", row.reductions), kHostShare) : sum.share;
  row.runs.push_back(reduction(Opcode::reduce_scatter, stage, sum.now, {share}));
  if (sum.has_share) {
    row.later.push_back(reduction(Opcode::run, stage, share, {sum.share, ResultMode::add}));
    row.later.back().task = copy_task(draft, sum.block);
    ++draft.instances[sum.share].terms;
  }
  sum.now = add_block(draft, sum.block, row.actor, concat(name, ".", ++row.reductions), {});
  sum.has_share = true;
  sum.is_open = false;
}

void put_later(Row& row) {
  std::ranges::move(row.later, std::back_inserter(row.runs));
  row.later.clear();
}

// `complete`: the accumulators to which nothing behind the run adds.
void put(Draft& draft, Row& row, Run run, const std::vector<Accumulator*>& complete) {
  if (run.placeholder) put_later(row);  // a U reads what was summed
  const StageId stage = run.stage;
  const bool computes = !is_beside(run);
  row.runs.push_back(std::move(run));
  if (computes) put_later(row);
  for (Accumulator* sum : complete) {
    reduce(draft, row, *sum, stage);
    if (sum->share != sum->sum) row.later.push_back(reduction(Opcode::reduce_scatter, stage, sum->share, {sum->sum}));
  }
}

// Lets the run add to what its accumulators are now. Gives those that it is the last to add to.
std::vector<Accumulator*> redirect(Draft& draft, Row& row, Run& run, std::size_t number, const IdVector<InstanceId, std::size_t>& last) {
  std::vector<Accumulator*> complete;
  for (Write& write : run.writes) {
    const auto found = row.accumulators.find(write.instance);
    if (found == row.accumulators.end()) continue;
    Accumulator& sum = found->second;
    if (last[write.instance] == number) complete.push_back(&sum);
    if (sum.block && sum.is_open) ++draft.instances[sum.now].terms;
    write = {sum.now, sum.is_open ? ResultMode::add : ResultMode::store};
    sum.is_open = true;
  }
  return complete;
}

void reduce_actor(const LowerInput& input, Draft& draft, ActorId actor) {
  Row row{actor, device_share(input)};
  std::vector<Run> runs = std::move(draft.actors[actor]);
  IdVector<InstanceId, std::size_t> last(draft.instances.size());  // of each instance: the last run that writes it
  for (std::size_t r = 0; r < runs.size(); ++r)
    for (const Write& write : runs[r].writes) last[write.instance] = r;
  find_accumulators(draft, row);
  for (std::size_t r = 0; r < runs.size(); ++r) {
    Run& run = runs[r];
    if (!run.placeholder || run.kind != Kind::REDUCE_GRAD) {
      const std::vector<Accumulator*> complete = redirect(draft, row, run, r, last);
      put(draft, row, std::move(run), complete);
      continue;
    }
    for (auto& [instance, sum] : row.accumulators)
      if (input.options.zero >= 2 && sum.stage == run.stage && sum.block && sum.is_open) reduce(draft, row, sum, run.stage);
  }
  put_later(row);
  draft.actors[actor] = std::move(row.runs);
}

}  // namespace

void reduce_over_groups(const LowerInput& input, Draft& draft) {
  for (const LoopUse& use : draft.uses)
    if (use.unit && input.shares > 1)
      throw Error(concat("what the loop splits into micro-batches is computed before it (operand ", use.operand, " of the loop)"), {},
                  "with data parallelism the loop can only split data ports");
  for (const ActorId actor : draft.actors.ids()) {
    if (input.devices(actor) > 1)
      reduce_actor(input, draft, actor);
    else
      std::erase_if(draft.actors[actor], [](const Run& run) { return run.placeholder && run.kind == Kind::REDUCE_GRAD; });
  }
}

}  // namespace penstock
