// Pass: the table's actions become runs. For each action its stage's task (a B of a split stage is its I, then its W), reading and
// writing the instances of the action's micro-batch. Where an R stands, F leaves to it what only the stage's own backward reads. Parameters
// that the actor's devices hold in shares are gathered where UNSHARD stands, and read from there until the next one, or at their first
// reader where none stands before it.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include "base/text.h"
#include "lower/passes.h"

namespace penstock {
namespace {

constexpr std::array kTaskKinds = {Kind::F, Kind::B, Kind::I, Kind::W, Kind::R};
static_assert(kTaskKinds[static_cast<std::size_t>(Kind::R)] == Kind::R && static_cast<std::size_t>(Kind::R) + 1 == kTaskKinds.size());

// The tasks of one stage, by kind (-1: it has none), and its light F; and which micro-batches its R recomputes.
struct StageTasks {
  std::array<std::int32_t, kTaskKinds.size()> of{};
  std::int32_t light = -1;
  std::vector<bool> recomputed;

  std::int32_t operator[](Kind kind) const { return of[static_cast<std::size_t>(kind)]; }
};

template <class Do>
void for_each_action(const LowerInput& input, const Do& act) {
  for (std::size_t a = 0; a < input.schedule.actors.size(); ++a)
    for (const Action& action : input.schedule.actors[a])
      for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m)
        act(ActorId(static_cast<std::int64_t>(a)), action, Unit{m});
}

std::vector<StageTasks> tasks_of_stages(const LowerInput& input) {
  std::vector<StageTasks> out(input.dag.names.size());
  for (std::size_t s = 0; s < out.size(); ++s) {
    const auto stage = static_cast<std::int32_t>(s);
    for (Kind kind : kTaskKinds) out[s].of[static_cast<std::size_t>(kind)] = input.dag.task(stage, kind);
    out[s].light = input.dag.task(stage, Kind::F, /*light=*/true);
    out[s].recomputed.assign(static_cast<std::size_t>(input.table_microbatches()), false);
  }
  // A stage without an R of its own has nothing to recompute: its F stays whole.
  for_each_action(input, [&](ActorId, const Action& action, Unit unit) {
    StageTasks& stage = out[StageId(action.stage).index()];
    if (action.kind == Kind::R && stage[Kind::R] >= 0) stage.recomputed[static_cast<std::size_t>(unit.microbatch)] = true;
  });
  return out;
}

// The stage tasks that an action runs.
std::vector<std::int32_t> tasks_of(const StageTasks& stage, Kind kind, Unit unit) {
  std::vector<std::int32_t> out;
  const auto add = [&](Kind which) {
    if (stage[which] >= 0) out.push_back(stage[which]);
  };
  switch (kind) {
    case Kind::F:
      if (stage.recomputed[static_cast<std::size_t>(unit.microbatch)]) {
        out.push_back(stage.light);
      } else {
        add(Kind::F);
      }
      break;
    case Kind::I:
    case Kind::W:
    case Kind::R:
      add(kind);
      break;
    case Kind::B:
      for (Kind which : {Kind::B, Kind::I, Kind::W}) add(which);
      break;
    default:
      break;  // communication is inferred
  }
  return out;
}

// The rows under construction, and the instances of what the loop's tasks read and write.
struct Rows {
  const LowerInput& input;
  Draft& draft;
  std::vector<StageTasks> stages;
  std::vector<TaskId> task{};                                            // of each stage task; none: it never runs
  std::vector<std::vector<BlockId>> blocks{};                            // of each stage task: of whose members it reads
  std::vector<InstanceId> edges{};                                       // [bundle][micro-batch]
  std::map<std::tuple<std::int32_t, ActorId, Unit>, InstanceId> used{};  // (bundle, actor, unit): accumulators, what the loop uses
  std::map<BlockId, InstanceId> gathered{};                              // the instance that was gathered last
  int gathers = 0;

  const StageTask& stage_task(std::int32_t t) const { return input.dag.tasks[static_cast<std::size_t>(t)]; }
  const Bundle& bundle(std::int32_t b) const { return input.dag.bundles[static_cast<std::size_t>(b)]; }
  InstanceId& edge(std::int32_t b, Unit unit) {
    return edges[static_cast<std::size_t>(b) * static_cast<std::size_t>(input.table_microbatches()) +
                 static_cast<std::size_t>(unit.microbatch)];
  }
};

// Homes of edge instances must be known before their readers are lowered, whatever the actors' order.
void make_edges(Rows& rows) {
  rows.edges.resize(rows.input.dag.bundles.size() * static_cast<std::size_t>(rows.input.table_microbatches()));
  for_each_action(rows.input, [&](ActorId actor, const Action& action, Unit unit) {
    for (std::int32_t t : tasks_of(rows.stages[StageId(action.stage).index()], action.kind, unit))
      for (std::int32_t b : rows.stage_task(t).writes) {
        const Bundle& bundle = rows.bundle(b);
        if (bundle.source != Bundle::Source::edge) continue;
        const StageTask& from = rows.stage_task(bundle.producers[0]);
        Instance made;
        made.name = concat(name(from.kind), from.stage, ":", b, ".", unit.microbatch);
        made.types = bundle.types;
        made.home = actor;
        made.unit = unit;
        rows.edge(b, unit) = add(rows.draft, std::move(made));
      }
  });
}

// Where the bundle is a parameter that devices hold in shares.
Member member_of(const Rows& rows, std::int32_t b) {
  const Bundle& bundle = rows.bundle(b);
  if (bundle.source != Bundle::Source::invariant) return {};
  const auto found = rows.draft.sharded_states.find(rows.input.input_of_operand(bundle.members[0]));
  return found == rows.draft.sharded_states.end() ? Member() : found->second;
}

std::vector<BlockId> blocks_of(const Rows& rows, const StageTask& task) {
  std::set<BlockId> blocks;
  for (std::int32_t b : task.reads)
    if (const Member member = member_of(rows, b); member.block) blocks.insert(member.block);
  return {blocks.begin(), blocks.end()};
}

// The task with all members of its blocks behind its other inputs, in order, as a gathered block lies in memory.
Graph on_blocks(const Rows& rows, const StageTask& task, const std::vector<BlockId>& blocks) {
  Graph graph = task.graph;
  std::vector<ValueId> others;
  std::map<std::pair<BlockId, std::int32_t>, ValueId> members;
  auto input = graph.inputs.begin();
  for (std::int32_t b : task.reads) {
    const auto parts = static_cast<std::ptrdiff_t>(rows.bundle(b).types.size());
    if (const Member member = member_of(rows, b); member.block)
      members[{member.block, member.index}] = *input;
    else
      others.insert(others.end(), input, input + parts);
    input += parts;
  }
  graph.inputs = std::move(others);
  for (BlockId block : blocks) {
    const std::vector<TensorType>& types = rows.draft.at(block).members;
    for (std::size_t i = 0; i < types.size(); ++i) {
      const auto found = members.find({block, static_cast<std::int32_t>(i)});
      graph.inputs.push_back(found != members.end() ? found->second : graph.add_value(types[i], concat("unused.", block.value, ".", i)));
    }
  }
  return graph;
}

// Of those that run: a stage of which every micro-batch is recomputed has no use for its whole F.
void add_tasks(Rows& rows) {
  std::vector<bool> runs(rows.input.dag.tasks.size(), false);
  for_each_action(rows.input, [&](ActorId, const Action& action, Unit unit) {
    for (std::int32_t t : tasks_of(rows.stages[StageId(action.stage).index()], action.kind, unit)) runs[static_cast<std::size_t>(t)] = true;
  });
  for (std::size_t t = 0; t < runs.size(); ++t) {
    const StageTask& task = rows.input.dag.tasks[t];
    rows.blocks.push_back(blocks_of(rows, task));
    rows.task.push_back(runs[t] ? add_task(rows.draft, task.graph.name, on_blocks(rows, task, rows.blocks.back())) : TaskId());
  }
}

InstanceId read(Rows& rows, std::int32_t b, ActorId actor, Unit unit) {
  const Bundle& bundle = rows.bundle(b);
  if (bundle.source == Bundle::Source::edge) return rows.edge(b, unit);
  const std::int32_t operand = bundle.members[0];
  const Unit part = bundle.source == Bundle::Source::data ? unit : Unit();
  if (const InputId input = rows.input.input_of_operand(operand)) return input_instance(rows.input, rows.draft, input, part);
  InstanceId& instance = rows.used[{b, actor, part}];
  if (!instance) {
    Instance made;
    made.name = concat("before:", operand, part ? concat(".", part.microbatch) : "");
    made.types = bundle.types;
    made.home = actor;
    instance = add(rows.draft, std::move(made));
    rows.draft.uses.push_back({operand, part, actor, instance});
  }
  return instance;
}

// Whose terms an accumulator sums; none: several stages'.
StageId stage_of(const Rows& rows, const Bundle& bundle) {
  const std::int32_t stage = rows.stage_task(bundle.producers[0]).stage;
  const bool same = std::ranges::all_of(bundle.producers, [&](std::int32_t t) { return rows.stage_task(t).stage == stage; });
  return same ? StageId(stage) : StageId();
}

Write write(Rows& rows, std::int32_t b, ActorId actor, Unit unit) {
  const Bundle& bundle = rows.bundle(b);
  if (bundle.source == Bundle::Source::edge) return {rows.edge(b, unit), ResultMode::store};
  InstanceId& instance = rows.used[{b, actor, Unit()}];  // one accumulator per actor
  if (instance) return {instance, ResultMode::add};
  Instance sum;
  sum.name = concat("sum:", b, ".", actor.value);
  sum.types = bundle.types;
  sum.home = actor;
  instance = add(rows.draft, std::move(sum));
  for (std::size_t part = 0; part < bundle.members.size(); ++part)
    rows.draft.partials.push_back(
        {ResultId(bundle.members[part]), actor, instance, static_cast<std::int32_t>(part), stage_of(rows, bundle)});
  return {instance, ResultMode::store};
}

Run run_of(Opcode opcode, StageId stage, Kind kind, Unit unit = {}) {
  Run run;
  run.opcode = opcode;
  run.stage = stage;
  run.kind = kind;
  run.unit = unit;
  return run;
}

// Each device's share of the parameters as one message, from all to all.
void gather(Rows& rows, BlockId block, ActorId actor, StageId stage) {
  const std::string name = concat("block:", block.value, ".", rows.gathers++);
  Run pack = run_of(Opcode::run, stage, Kind::UNSHARD), all = run_of(Opcode::all_gather, stage, Kind::UNSHARD);
  pack.task = copy_task(rows.draft, block);
  for (InputId state : rows.draft.at(block).parameters) pack.reads.push_back(input_instance(rows.input, rows.draft, state));
  const InstanceId share = add_block(rows.draft, block, actor, concat(name, ".share"), parameter_extent(rows.input));
  pack.writes = {{share}};
  all.reads = {share};
  all.writes = {{rows.gathered[block] = add_block(rows.draft, block, actor, name, Extent::whole)}};
  rows.draft.row(actor).push_back(std::move(pack));
  rows.draft.row(actor).push_back(std::move(all));
}

InstanceId gathered(Rows& rows, BlockId block, ActorId actor, StageId stage) {
  if (!rows.gathered.contains(block)) gather(rows, block, actor, stage);
  return rows.gathered.at(block);
}

void run_task(Rows& rows, std::int32_t t, ActorId actor, StageId stage, Unit unit) {
  const StageTask& task = rows.stage_task(t);
  Run run = run_of(Opcode::run, stage, task.kind, unit);
  run.task = rows.task[static_cast<std::size_t>(t)];
  for (std::int32_t b : task.reads)
    if (!member_of(rows, b).block) run.reads.push_back(read(rows, b, actor, unit));
  for (BlockId block : rows.blocks[static_cast<std::size_t>(t)]) run.reads.push_back(gathered(rows, block, actor, stage));
  for (std::int32_t b : task.writes) run.writes.push_back(write(rows, b, actor, unit));
  rows.draft.row(actor).push_back(std::move(run));
}

void lower_action(Rows& rows, ActorId actor, const Action& action, Unit unit) {
  const StageId stage(action.stage);
  switch (action.kind) {
    case Kind::U:
    case Kind::REDUCE_GRAD:
    case Kind::OFFLOAD:
    case Kind::RELOAD: {
      Run& placeholder = rows.draft.row(actor).emplace_back(run_of(Opcode::run, stage, action.kind, unit));
      placeholder.placeholder = true;
      break;
    }
    case Kind::UNSHARD:
      for (std::size_t b = 0; b < rows.draft.blocks.size(); ++b)
        if (rows.draft.blocks[b].readers.contains(stage)) gather(rows, BlockId(static_cast<std::int64_t>(b)), actor, stage);
      break;
    default:
      for (std::int32_t t : tasks_of(rows.stages[stage.index()], action.kind, unit)) run_task(rows, t, actor, stage, unit);
  }
}

}  // namespace

void lower_actions(const LowerInput& input, Draft& draft) {
  draft.actors.resize(input.schedule.actors.size());
  Rows rows{input, draft, tasks_of_stages(input)};
  make_edges(rows);
  add_tasks(rows);
  for_each_action(input, [&](ActorId actor, const Action& action, Unit unit) { lower_action(rows, actor, action, unit); });
}

}  // namespace penstock
