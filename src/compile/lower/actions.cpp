// SPDX-License-Identifier: Apache-2.0
// Pass: the table's actions become runs. For each action its stage's task (a B of a split stage is its I, then its W), reading and
// writing the instances of the action's micro-batch. Where an R stands, F leaves to it what only the stage's own backward reads. R writes
// the instances that F would have, so a backward does not know which of the two made what it reads.
//
// Parameters that the actor's devices hold in shares are gathered where UNSHARD stands, for all slices of the stage, and read from there
// until the next one, or at their first reader where none stands before it. In a window they are gathered at the first reader behind
// UNSHARD, and anew for a reader of another version. They are there for a while only, so nothing that is made of them is hoisted out of the
// loop, and W, which may come later, reads none (CutOptions::gathered).
//
// Stages may take several micro-batches together (sizes.h). What they read of stages that take another number is cut, or put together,
// ahead of the first run that reads it.
//
// U, REDUCE_GRAD, OFFLOAD and RELOAD leave a placeholder, in whose place later passes put something, or nothing. Sends and receives are
// runs of nothing yet, at which the pass `transfers` lets transfers start.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include "base/text.h"
#include "lower/passes.h"
#include "lower/sizes.h"
#include "penstock/error.h"
#include "schedule/kinds.h"
#include "schedule/slices.h"
#include "schedule/versions.h"
#include "transform/rewrite.h"

namespace penstock {
namespace {

constexpr std::array kTaskKinds = {Kind::F, Kind::B, Kind::I, Kind::W, Kind::R};
static_assert(kTaskKinds[static_cast<std::size_t>(Kind::R)] == Kind::R && static_cast<std::size_t>(Kind::R) + 1 == kTaskKinds.size());

using TaskList = std::vector<StageTaskId>;

// The tasks of one stage, by kind (none: it has none), and its light F; and which micro-batches its R recomputes.
struct StageTasks {
  std::array<TaskList, kTaskKinds.size()> of{};
  TaskList light{};
  std::vector<bool> recomputed;

  const TaskList& operator[](Kind kind) const { return of[static_cast<std::size_t>(kind)]; }
};

template <class Do>
void for_each_action(const LowerInput& input, const Do& act) {
  for (const ActorId actor : ids<ActorId>(input.actors()))
    for (const Action& action : input.schedule.actors[actor.value]) {
      const std::int32_t size = std::min(input.size_of(StageId(action.stage)), action.count);
      for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; m += size) act(actor, action, Unit{m, size});
    }
}

// Returns for each stage its tasks for micro-batches of one shape class.
IdVector<StageId, StageTasks> tasks_of_stages(const LowerInput& input, std::int32_t shape_class) {
  IdVector<StageId, StageTasks> out(input.dag.names.size());
  const IdVector<StageTaskId, StageTask>& tasks = input.dag.tasks;
  for (const StageTaskId t : tasks.ids()) {
    StageTasks& stage = out[tasks[t].stage];
    if (tasks[t].shape_class == shape_class)
      (tasks[t].light ? stage.light : stage.of[static_cast<std::size_t>(tasks[t].kind)]).push_back(t);
  }
  for (StageTasks& stage : out) {
    for (TaskList& list : stage.of) std::ranges::sort(list, {}, [&](StageTaskId t) { return tasks[t].part; });
    std::ranges::sort(stage.light, {}, [&](StageTaskId t) { return tasks[t].part; });
    stage.recomputed.assign(input.table_microbatches(), false);
  }
  // A stage without an R of its own has nothing to recompute: its F stays whole.
  for_each_action(input, [&](ActorId, const Action& action, Unit unit) {
    StageTasks& stage = out[action.stage];
    if (action.kind == Kind::R && !stage[Kind::R].empty()) stage.recomputed[unit.microbatch] = true;
  });
  return out;
}

// The stage tasks that an action runs, in order.
TaskList tasks_of(const StageTasks& stage, Kind kind, Unit unit) {
  switch (kind) {
    case Kind::F:
      return stage.recomputed[unit.microbatch] ? stage.light : stage[kind];
    case Kind::I:
    case Kind::W:
    case Kind::R:
      return stage[kind];
    case Kind::B: {
      TaskList out = stage[Kind::B];
      for (Kind half : {Kind::I, Kind::W}) out.insert(out.end(), stage[half].begin(), stage[half].end());
      return out;
    }
    default:
      return {};  // communication is inferred
  }
}

// A block's parameters as they were when they were gathered.
struct Gathered {
  InstanceId instance;
  ReadVersion version;
};

// The rows under construction, and the instances of what the loop's tasks read and write.
struct Rows {
  const LowerInput& input;
  Draft& draft;
  std::vector<IdVector<StageId, StageTasks>> stages;                 // by shape class
  IdVector<StageTaskId, TaskId> task{};                              // none: it never runs
  IdVector<StageTaskId, std::vector<BlockId>> blocks{};              // of whose members it reads
  IdVector<BundleId, std::vector<InstanceId>> edges{};               // [micro-batch], the first of those together
  std::map<std::tuple<BundleId, ActorId, Unit>, InstanceId> used{};  // accumulators, what the loop uses, what is there in another size
  std::set<InstanceId> begun{};                                      // edges that are summed
  ReadVersion version{};                                             // that the action reads
  std::map<BlockId, Gathered> gathered{};                            // what was gathered last
  int gathers = 0;

  const StageTasks& tasks(StageId stage, Unit unit) const { return stages[input.class_of(unit.microbatch)][stage]; }
  const StageTask& stage_task(StageTaskId t) const { return input.dag.tasks[t]; }
  const Bundle& bundle(BundleId b) const { return input.dag.bundles[b]; }
};

// Throws Error where another actor would add to a sum.
void check_one_actor(const Rows& rows, BundleId b, const Instance& sum, ActorId actor) {
  if (sum.home == actor) return;
  const auto name_of = [&](StageTaskId t) { return rows.input.dag.names[rows.stage_task(t).stage]; };
  throw Error(
      concat("schedule ", rows.input.schedule.name, ": actors ", sum.home.value, " and ", actor.value, " have slices of one stage"),
      {concat("they add up gradients for stage ", quote(name_of(rows.bundle(b).readers[0])), " of micro-batch ", sum.unit.microbatch)},
      "put all slices of a stage on one actor: they share the keys and values");
}

// Homes of edge instances must be known before their readers are lowered, whatever the actors' order.
void make_edges(Rows& rows) {
  rows.edges.assign(rows.input.dag.bundles.size(), std::vector<InstanceId>(rows.input.table_microbatches()));
  for_each_action(rows.input, [&](ActorId actor, const Action& action, Unit unit) {
    for (StageTaskId t : tasks_of(rows.tasks(StageId(action.stage), unit), action.kind, unit))
      for (BundleId b : rows.stage_task(t).writes) {
        const Bundle& bundle = rows.bundle(b);
        if (bundle.source != Bundle::Source::edge) continue;
        if (const InstanceId begun = rows.edges[b][unit.microbatch]; bundle.sums && begun) {
          check_one_actor(rows, b, rows.draft.instances[begun], actor);
          continue;
        }
        const StageTask& from = rows.stage_task(bundle.producers[0]);
        Instance made;
        made.name = concat(name(from.kind), from.stage.value, ":", b.value, ".", unit.microbatch);
        made.types = types_of(rows.input, b, unit.count);
        made.home = actor;
        made.unit = unit;
        made.stays = bundle.stays;
        rows.edges[b][unit.microbatch] = add(rows.draft, std::move(made));
      }
  });
}

// Where the bundle is a parameter that devices hold in shares.
Member member_of(const Rows& rows, BundleId b) {
  const Bundle& bundle = rows.bundle(b);
  if (bundle.source != Bundle::Source::invariant) return {};
  const auto found = rows.draft.sharded_states.find(rows.input.input_of_operand(bundle.members[0]));
  return found == rows.draft.sharded_states.end() ? Member() : found->second;
}

std::vector<BlockId> blocks_of(const Rows& rows, const StageTask& task) {
  std::set<BlockId> blocks;
  for (BundleId b : task.reads)
    if (const Member member = member_of(rows, b); member.block) blocks.insert(member.block);
  return {blocks.begin(), blocks.end()};
}

// The task's graph where the inputs that blocks have cast before they are gathered are what their casts are in the task.
TaskGraph without_casts(const Rows& rows, const StageTask& task) {
  std::map<ValueId, DType> cast;
  auto input = task.graph->inputs.begin();
  for (BundleId b : task.reads) {
    const BlockId block = member_of(rows, b).block;
    if (block && rows.draft.blocks[block].cast) cast[*input] = *rows.draft.blocks[block].cast;
    input += static_cast<std::ptrdiff_t>(rows.bundle(b).types.size());
  }
  if (cast.empty()) return task.graph;
  Rewrite out(task.graph);
  for (ValueId v : task.graph->inputs) {
    out.copy_input(v);
    if (const auto found = cast.find(v); found != cast.end()) out.graph.values[out[v]].type.dtype = found->second;
  }
  for (const Op& op : task.graph->ops)
    if (op.name == "to" && cast.contains(op.operands[0]))
      out[op.results[0]] = out[op.operands[0]];
    else
      out.copy(op);
  return out.finish();
}

// The task with all members of its blocks behind its other inputs, in order, as a gathered block lies in memory.
TaskGraph on_blocks(const Rows& rows, const StageTask& task, const std::vector<BlockId>& blocks) {
  if (blocks.empty()) return task.graph;
  Graph graph = *without_casts(rows, task);
  std::vector<ValueId> others;
  std::map<std::pair<BlockId, std::int32_t>, ValueId> members;
  auto input = graph.inputs.begin();
  for (BundleId b : task.reads) {
    const auto parts = static_cast<std::ptrdiff_t>(rows.bundle(b).types.size());
    if (const Member member = member_of(rows, b); member.block)
      members[{member.block, member.index}] = *input;
    else
      others.insert(others.end(), input, input + parts);
    input += parts;
  }
  graph.inputs = std::move(others);
  for (BlockId block : blocks) {
    const std::vector<TensorType> types = gathered_types(rows.draft.blocks[block]);
    for (std::size_t i = 0; i < types.size(); ++i) {
      const auto found = members.find({block, static_cast<std::int32_t>(i)});
      graph.inputs.push_back(found != members.end() ? found->second : graph.add_value(types[i], concat("unused.", block.value, ".", i)));
    }
  }
  return graph;
}

// Only tasks that run count: a stage of which every micro-batch is recomputed has no use for its whole F.
void add_tasks(Rows& rows) {
  IdVector<StageTaskId, bool> runs(rows.input.dag.tasks.size());
  for_each_action(rows.input, [&](ActorId, const Action& action, Unit unit) {
    for (StageTaskId t : tasks_of(rows.tasks(StageId(action.stage), unit), action.kind, unit)) runs[t] = true;
  });
  for (const StageTaskId t : runs.ids()) {
    const StageTask& task = rows.input.dag.tasks[t];
    rows.blocks.push_back(blocks_of(rows, task));
    if (!runs[t] || task.collective) {
      rows.task.emplace_back();
      continue;
    }
    std::string name = task.graph->name;
    if (task.shape_class > 0) name += concat(".class", task.shape_class);
    rows.task.push_back(add_task(rows.draft, std::move(name), on_blocks(rows, task, rows.blocks.back())));
  }
}

Run run_of(Opcode opcode, StageId stage, Kind kind, Unit unit = {}) {
  Run run;
  run.opcode = opcode;
  run.stage = stage;
  run.kind = kind;
  run.unit = unit;
  return run;
}

// The instance of the bundle that a run on the actor reads. `unit` has the size in which the bundle is made.
InstanceId read(Rows& rows, BundleId b, ActorId actor, Unit unit) {
  const Bundle& bundle = rows.bundle(b);
  if (bundle.source == Bundle::Source::edge) return rows.edges[b][unit.microbatch];
  const std::int32_t operand = bundle.members[0];
  if (bundle.source == Bundle::Source::data && !rows.input.shape_class.empty())
    return input_instance(rows.input, rows.draft, rows.input.port_of(operand, unit.microbatch * rows.input.shares),
                          rows.input.shares > 1 ? unit : Unit());
  const Unit part = bundle.source == Bundle::Source::data ? unit : Unit();
  if (const InputId input = rows.input.input_of_operand(operand)) return input_instance(rows.input, rows.draft, input, part);
  InstanceId& instance = rows.used[{b, actor, part}];
  if (!instance) {
    Instance made;
    made.name = concat("before:", operand, part ? concat(".", part.microbatch) : "");
    made.types = part ? types_of(rows.input, b, 1) : bundle.types;
    made.home = actor;
    instance = add(rows.draft, std::move(made));
    rows.draft.uses.push_back({operand, part, actor, instance});
  }
  return instance;
}

// How many micro-batches together the bundle's values are made for; 0: for all, or none.
std::int32_t size_made(const Rows& rows, const Bundle& bundle) {
  if (bundle.source == Bundle::Source::edge) return rows.input.size_of(rows.stage_task(bundle.producers[0]).stage);
  return bundle.source == Bundle::Source::data ? 1 : 0;
}

// The instance of the bundle that the run reads, in the size that it works on.
InstanceId read(Rows& rows, BundleId b, ActorId actor, const Run& reader) {
  const Unit unit = reader.unit;
  const std::int32_t made = size_made(rows, rows.bundle(b));
  if (made == 0 || made == unit.count) return read(rows, b, actor, unit);
  InstanceId& instance = rows.used[{b, actor, unit}];
  if (instance) return instance;
  Instance resized;
  resized.name = concat("sized:", b.value, ".", unit.microbatch, ".", actor.value);
  resized.types = types_of(rows.input, b, unit.count);
  resized.home = actor;
  resized.unit = unit;
  instance = add(rows.draft, std::move(resized));
  Run run = run_of(Opcode::run, reader.stage, reader.kind, unit);
  run.task = add_task(rows.draft, concat("sized.", b.value), resizing(rows.input, b, made, unit));
  for (std::int32_t m = unit.microbatch / made * made; m < unit.microbatch + unit.count; m += made)
    run.reads.push_back(read(rows, b, actor, Unit{m, made}));
  run.writes = {{instance}};
  rows.draft.actors[actor].push_back(std::move(run));
  return instance;
}

// Whose terms an accumulator sums, of a stage in slices its first; none: several stages'.
StageId stage_of(const Rows& rows, const Bundle& bundle) {
  const auto whole = [&](StageTaskId t) { return StageId(first_slice(rows.stage_task(t).stage.value, rows.input.schedule)); };
  const StageId stage = whole(bundle.producers[0]);
  const bool same = std::ranges::all_of(bundle.producers, [&](StageTaskId t) { return whole(t) == stage; });
  return same ? stage : StageId();
}

// A term more of a sum that another run has stored.
Write one_more(Rows& rows, InstanceId sum) {
  ++rows.draft.instances[sum].terms;
  return {sum, ResultMode::add};
}

Write write(Rows& rows, BundleId b, ActorId actor, Unit unit) {
  const Bundle& bundle = rows.bundle(b);
  if (bundle.source == Bundle::Source::edge) {
    const InstanceId edge = rows.edges[b][unit.microbatch];
    return bundle.sums && !rows.begun.insert(edge).second ? one_more(rows, edge) : Write{edge};
  }
  InstanceId& instance = rows.used[{b, actor, Unit()}];  // one accumulator per actor
  if (instance) return one_more(rows, instance);
  Instance sum;
  sum.name = concat("sum:", b.value, ".", actor.value);
  sum.types = bundle.types;
  sum.home = actor;
  instance = add(rows.draft, std::move(sum));
  const StageId stage = stage_of(rows, bundle);
  // In a window who owns the stage is sent what I and W have summed elsewhere, and updates it where its U stands.
  const Kind kind = rows.stage_task(bundle.producers[0]).kind;
  const bool is_sent = stage && (kind == Kind::I || kind == Kind::W) && !rows.input.owner_of_stage.empty();
  for (std::size_t part = 0; part < bundle.members.size(); ++part)
    rows.draft.partials.push_back({ResultId(bundle.members[part]), is_sent ? rows.input.owner_of_stage[stage] : actor, instance,
                                   static_cast<std::int32_t>(part), stage});
  return {instance, ResultMode::store};
}

// Each device's share of the parameters as one message, from all to all.
void gather(Rows& rows, BlockId block, ActorId actor, StageId stage) {
  const std::string name = concat("block:", block.value, ".", rows.gathers++);
  Run pack = run_of(Opcode::run, stage, Kind::UNSHARD), all = run_of(Opcode::all_gather, stage, Kind::UNSHARD);
  pack.task = cast_task(rows.draft, block);
  for (InputId state : rows.draft.blocks[block].parameters) pack.reads.push_back(input_instance(rows.input, rows.draft, state));
  const InstanceId share = add_gathered(rows.draft, block, actor, concat(name, ".share"), kHostShare);
  pack.writes = {{share}};
  all.reads = {share};
  rows.gathered[block] = {add_gathered(rows.draft, block, actor, name, {}), rows.version};
  all.writes = {{rows.gathered[block].instance}};
  rows.draft.actors[actor].push_back(std::move(pack));
  rows.draft.actors[actor].push_back(std::move(all));
}

// Whether a slice of the stage reads the block. `stage`: its slice 0, behind which are its other slices.
bool is_read_in(const Rows& rows, BlockId block, StageId stage) {
  const std::set<StageId>& readers = rows.draft.blocks[block].readers;
  const auto reader = readers.lower_bound(stage);
  return reader != readers.end() && first_slice(reader->value, rows.input.schedule) == stage.value;
}

InstanceId gathered(Rows& rows, BlockId block, ActorId actor, StageId stage) {
  const auto found = rows.gathered.find(block);
  if (found == rows.gathered.end() || found->second.version != rows.version) gather(rows, block, actor, stage);
  return rows.gathered.at(block).instance;
}

void run_task(Rows& rows, StageTaskId t, ActorId actor, StageId stage, Unit unit) {
  const StageTask& task = rows.stage_task(t);
  Run run = run_of(Opcode::run, stage, task.kind, unit);
  if (task.collective)
    make_collective(rows.input, task.graph->ops[0], run);
  else
    run.task = rows.task[t];
  for (BundleId b : task.reads)
    if (!member_of(rows, b).block) run.reads.push_back(read(rows, b, actor, run));
  for (BlockId block : rows.blocks[t]) run.reads.push_back(gathered(rows, block, actor, stage));
  for (BundleId b : task.writes) run.writes.push_back(write(rows, b, actor, unit));
  rows.draft.actors[actor].push_back(std::move(run));
}

void lower_action(Rows& rows, ActorId actor, const Action& action, Unit unit) {
  const StageId stage(action.stage);
  rows.version = {action.version, action.ahead};
  switch (action.kind) {
    case Kind::U:
    case Kind::REDUCE_GRAD:
    case Kind::OFFLOAD:
    case Kind::RELOAD: {
      Run& placeholder = rows.draft.actors[actor].emplace_back(run_of(Opcode::run, stage, action.kind, unit));
      placeholder.placeholder = true;
      break;
    }
    case Kind::SEND_F:
    case Kind::SEND_B:
    case Kind::RECV_F:
    case Kind::RECV_B:
      rows.draft.actors[actor].push_back(run_of(is_send(action.kind) ? Opcode::send : Opcode::recv, stage, action.kind, unit));
      break;
    case Kind::UNSHARD:
      for (const BlockId block : rows.draft.blocks.ids())
        if (is_read_in(rows, block, stage)) rows.input.is_step ? void(rows.gathered.erase(block)) : gather(rows, block, actor, stage);
      break;
    default:
      for (StageTaskId t : tasks_of(rows.tasks(stage, unit), action.kind, unit)) run_task(rows, t, actor, stage, unit);
  }
}

// By row and action: how many that the window's table has of this step stand before it. It has no gathers and reductions of sums.
std::vector<std::vector<std::int32_t>> numbers_in_window(const Schedule& schedule) {
  std::vector<std::vector<std::int32_t>> out;
  for (const std::vector<Action>& row : schedule.actors) {
    std::vector<std::int32_t>& numbers = out.emplace_back();
    for (std::int32_t number = 0; const Action& action : row) {
      numbers.push_back(number);
      number += !is_sharding(action.kind);
    }
  }
  return out;
}

}  // namespace

void lower_actions(const LowerInput& input, Draft& draft) {
  draft.actors.resize(input.schedule.actors.size());
  Rows rows{input, draft, {}};
  const std::int32_t classes = input.shape_class.empty() ? 1 : *std::ranges::max_element(input.shape_class) + 1;
  for (std::int32_t c = 0; c < classes; ++c) rows.stages.push_back(tasks_of_stages(input, c));
  make_edges(rows);
  add_tasks(rows);
  const std::vector<std::vector<std::int32_t>> numbers = numbers_in_window(input.schedule);
  for_each_action(input, [&](ActorId actor, const Action& action, Unit unit) {
    std::vector<Run>& row = draft.actors[actor];
    const std::size_t first = row.size();
    lower_action(rows, actor, action, unit);
    if (input.is_step && !is_sharding(action.kind))
      for (std::size_t r = first; r < row.size(); ++r)
        row[r].window.action = numbers[actor.value][&action - input.schedule.actors[actor.value].data()];
  });
}

}  // namespace penstock
