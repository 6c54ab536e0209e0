// Pass: the table's actions become runs. For each action its stage's task (a B of a split stage is its I, then its W), reading and
// writing the instances of the action's micro-batch. Where an R stands, F leaves to it what only the stage's own backward reads. OFFLOAD
// moves that to the host; after RELOAD the backward reads what was brought back. Parameters that the actor's devices hold in shares are
// gathered where UNSHARD stands, and read from there until the next one, or at their first reader where none stands before it.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include "base/invariant.h"
#include "base/text.h"
#include "lower/draft.h"
#include "penstock/error.h"

namespace penstock {
namespace {

class Actions {
 public:
  explicit Actions(Lowering& lowering) : l_(lowering), microbatches_(lowering.table_microbatches()) {
    edges_.assign(l_.dag.bundles.size() * static_cast<std::size_t>(microbatches_), -1);
    for (std::size_t s = 0; s < l_.dag.names.size(); ++s) {
      const auto stage = static_cast<std::int32_t>(s);
      for (Kind kind : kTaskKinds) task_of_.push_back(l_.dag.task(stage, kind));
      light_.push_back(l_.dag.task(stage, Kind::F, /*light=*/true));
    }
    note_recomputed();
    note_producers();
    add_tasks();
    note_weight_gradients();
  }

  void run() {
    l_.draft.actors.resize(static_cast<std::size_t>(l_.actors()));
    for (std::int32_t actor = 0; actor < l_.actors(); ++actor)
      for (const Action& action : l_.schedule.actors[static_cast<std::size_t>(actor)])
        for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m) lower_action(actor, action, m);
  }

 private:
  static constexpr std::array kTaskKinds = {Kind::F, Kind::B, Kind::I, Kind::W, Kind::R};
  static_assert(kTaskKinds[static_cast<std::size_t>(Kind::R)] == Kind::R && static_cast<std::size_t>(Kind::R) + 1 == kTaskKinds.size());

  std::int32_t task(std::int32_t stage, Kind kind) const {
    return task_of_[static_cast<std::size_t>(stage) * kTaskKinds.size() + static_cast<std::size_t>(kind)];
  }

  std::size_t unit(std::int32_t stage, std::int32_t microbatch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(microbatches_) + static_cast<std::size_t>(microbatch);
  }

  // A stage without an R of its own has nothing to recompute: its F stays whole.
  void note_recomputed() {
    recomputed_.assign(l_.dag.names.size() * static_cast<std::size_t>(microbatches_), false);
    for (const auto& row : l_.schedule.actors)
      for (const Action& action : row)
        if (action.kind == Kind::R && task(action.stage, Kind::R) >= 0)
          for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m) recomputed_[unit(action.stage, m)] = true;
  }

  // Homes of edge instances must be known before their readers are lowered, whatever the actors' order.
  void note_producers() {
    for (std::int32_t actor = 0; actor < l_.actors(); ++actor)
      for (const Action& action : l_.schedule.actors[static_cast<std::size_t>(actor)])
        for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m)
          for (std::int32_t t : tasks_of(action, m))
            for (std::int32_t b : l_.dag.tasks[static_cast<std::size_t>(t)].writes)
              if (l_.dag.bundles[static_cast<std::size_t>(b)].source == Bundle::Source::edge) make_edge(b, m, actor);
  }

  // Those that run: a stage of which every micro-batch is recomputed has no use for its whole F.
  void add_tasks() {
    std::vector<bool> runs(l_.dag.tasks.size(), false);
    for (const auto& row : l_.schedule.actors)
      for (const Action& action : row)
        for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m)
          for (std::int32_t t : tasks_of(action, m)) runs[static_cast<std::size_t>(t)] = true;
    for (std::size_t t = 0; t < runs.size(); ++t) {
      const StageTask& task = l_.dag.tasks[t];
      blocks_.push_back(blocks_of(task));
      tasks_.push_back(runs[t] ? l_.tasks.add(task.graph.name, on_blocks(task, blocks_.back())) : TaskId());
    }
  }

  // The block of the parameter that a bundle is; -1: it is none that devices hold in shares.
  Member member_of(std::int32_t b) const {
    const Bundle& bundle = l_.dag.bundles[static_cast<std::size_t>(b)];
    if (bundle.source != Bundle::Source::invariant) return {};
    const auto found = l_.sharded_states.find(l_.input_index(l_.loop_op().operands[static_cast<std::size_t>(bundle.members[0])]));
    return found == l_.sharded_states.end() ? Member() : found->second;
  }

  // That the task reads of.
  std::vector<std::int32_t> blocks_of(const StageTask& task) const {
    std::set<std::int32_t> blocks;
    for (std::int32_t b : task.reads)
      if (const Member member = member_of(b); member.block >= 0) blocks.insert(member.block);
    return {blocks.begin(), blocks.end()};
  }

  // The task with all members of its blocks behind its other inputs, in order, as a gathered block lies in memory.
  Graph on_blocks(const StageTask& task, const std::vector<std::int32_t>& blocks) const {
    Graph graph = task.graph;
    std::vector<ValueId> others;
    std::map<std::pair<std::int32_t, std::int32_t>, ValueId> members;
    auto input = graph.inputs.begin();
    for (std::int32_t b : task.reads) {
      const auto parts = static_cast<std::ptrdiff_t>(l_.dag.bundles[static_cast<std::size_t>(b)].types.size());
      if (const Member member = member_of(b); member.block >= 0)
        members[{member.block, member.index}] = *input;
      else
        others.insert(others.end(), input, input + parts);
      input += parts;
    }
    graph.inputs = std::move(others);
    for (std::int32_t block : blocks) {
      const std::vector<TensorType>& types = l_.blocks[static_cast<std::size_t>(block)].members;
      for (std::size_t i = 0; i < types.size(); ++i) {
        const auto found = members.find({block, static_cast<std::int32_t>(i)});
        graph.inputs.push_back(found != members.end() ? found->second : graph.add_value(types[i], concat("unused.", block, ".", i)));
      }
    }
    return graph;
  }

  std::vector<std::int32_t> tasks_of(const Action& action, std::int32_t microbatch) const {
    std::vector<std::int32_t> out;
    const auto add = [&](Kind kind) {
      if (const std::int32_t t = task(action.stage, kind); t >= 0) out.push_back(t);
    };
    switch (action.kind) {
      case Kind::F:
        if (recomputed_[unit(action.stage, microbatch)]) {
          out.push_back(light_[static_cast<std::size_t>(action.stage)]);
        } else {
          add(Kind::F);
        }
        break;
      case Kind::I:
      case Kind::W:
      case Kind::R:
        add(action.kind);
        break;
      case Kind::B:
        add(Kind::B);
        add(Kind::I);
        add(Kind::W);
        break;
      default:
        break;  // communication is inferred
    }
    return out;
  }

  void make_edge(std::int32_t bundle, std::int32_t microbatch, std::int32_t actor) {
    const Bundle& b = l_.dag.bundles[static_cast<std::size_t>(bundle)];
    const StageTask& from = l_.dag.tasks[static_cast<std::size_t>(b.producers[0])];
    edge(bundle, microbatch) = l_.add(
        {Instance::Source::computed, concat(name(from.kind), from.stage, ":", bundle, ".", microbatch), b.types, actor, -1, microbatch});
  }

  std::int32_t& edge(std::int32_t bundle, std::int32_t microbatch) {
    return edges_[static_cast<std::size_t>(bundle) * static_cast<std::size_t>(microbatches_) + static_cast<std::size_t>(microbatch)];
  }

  const Instance& instance(std::int32_t number) const { return l_.draft.instances[static_cast<std::size_t>(number)]; }

  std::int32_t read(std::int32_t b, std::int32_t actor, std::int32_t microbatch) {
    const Bundle& bundle = l_.dag.bundles[static_cast<std::size_t>(b)];
    switch (bundle.source) {
      case Bundle::Source::edge: {
        const auto reloaded = reloaded_.find({b, microbatch});
        const std::int32_t original = edge(b, microbatch);
        return reloaded != reloaded_.end() && instance(original).home == actor ? reloaded->second : original;
      }
      default: {
        const std::int32_t operand = bundle.members[0];
        const std::int32_t part = bundle.source == Bundle::Source::data ? microbatch : -1;
        const std::int32_t input = l_.input_index(l_.loop_op().operands[static_cast<std::size_t>(operand)]);
        if (input >= 0) return l_.input(input, part);
        std::int32_t& instance = used_.try_emplace({b, actor, part}, -1).first->second;
        if (instance < 0) {
          instance = l_.add(
              {Instance::Source::computed, concat("before:", operand, part < 0 ? "" : concat(".", part)), bundle.types, actor, -1, -1});
          l_.ends.uses.push_back({operand, part, actor, instance});
        }
        return instance;
      }
    }
  }

  Write write(std::int32_t b, std::int32_t actor, std::int32_t microbatch) {
    const Bundle& bundle = l_.dag.bundles[static_cast<std::size_t>(b)];
    if (bundle.source == Bundle::Source::edge) return {edge(b, microbatch), ResultMode::store};
    std::int32_t& instance = used_.try_emplace({b, actor, -1}, -1).first->second;  // one accumulator per actor
    if (instance >= 0) return {instance, ResultMode::add};
    instance = l_.add({Instance::Source::computed, concat("sum:", b, ".", actor), bundle.types, actor, -1, -1});
    for (std::size_t part = 0; part < bundle.members.size(); ++part)
      l_.ends.partials.push_back({bundle.members[part], actor, instance, static_cast<std::int32_t>(part), stage_of(bundle)});
    return {instance, ResultMode::store};
  }

  // Whose terms an accumulator sums; -1: several stages'.
  std::int32_t stage_of(const Bundle& bundle) const {
    const std::int32_t stage = l_.dag.tasks[static_cast<std::size_t>(bundle.producers[0])].stage;
    const bool same = std::all_of(bundle.producers.begin(), bundle.producers.end(),
                                  [&](std::int32_t t) { return l_.dag.tasks[static_cast<std::size_t>(t)].stage == stage; });
    return same ? stage : -1;
  }

  void lower_action(std::int32_t actor, const Action& action, std::int32_t microbatch) {
    if (action.kind == Kind::U || action.kind == Kind::REDUCE_GRAD) {
      Run placeholder;
      placeholder.kind = action.kind;
      placeholder.stage = action.stage;
      placeholder.placeholder = true;
      l_.draft.actors[static_cast<std::size_t>(actor)].push_back(std::move(placeholder));
      return;
    }
    if (action.kind == Kind::UNSHARD) {
      for (std::size_t b = 0; b < l_.blocks.size(); ++b)
        if (l_.blocks[b].readers.contains(action.stage)) gather(static_cast<std::int32_t>(b), actor, action.stage);
      return;
    }
    if (action.kind == Kind::OFFLOAD || action.kind == Kind::RELOAD) return move_residuals(actor, action, microbatch);
    for (std::int32_t t : tasks_of(action, microbatch)) {
      const StageTask& task = l_.dag.tasks[static_cast<std::size_t>(t)];
      Run run;
      run.task = tasks_[static_cast<std::size_t>(t)];
      run.stage = action.stage;
      run.kind = task.kind;
      run.microbatch = microbatch;
      run.action = true;
      for (std::int32_t b : task.reads)
        if (member_of(b).block < 0) run.reads.push_back(read(b, actor, microbatch));
      for (std::int32_t block : blocks_[static_cast<std::size_t>(t)]) run.reads.push_back(gathered(block, actor, action.stage));
      for (std::int32_t b : task.writes) run.writes.push_back(write(b, actor, microbatch));
      l_.draft.actors[static_cast<std::size_t>(actor)].push_back(std::move(run));
    }
  }

  std::int32_t gathered(std::int32_t block, std::int32_t actor, std::int32_t stage) {
    if (!gathered_.contains(block)) gather(block, actor, stage);
    return gathered_.at(block);
  }

  // Each device's share of the parameters as one message, from all to all.
  void gather(std::int32_t block, std::int32_t actor, std::int32_t stage) {
    const std::string name = concat("block:", block, ".", gathers_++);
    Run pack, all;
    pack.task = l_.copy_task(block);
    all.opcode = Opcode::all_gather;
    pack.stage = all.stage = stage;
    pack.kind = all.kind = Kind::UNSHARD;
    pack.action = all.action = true;
    for (std::int32_t state : l_.blocks[static_cast<std::size_t>(block)].parameters) pack.reads.push_back(l_.input(state, -1));
    const std::int32_t share = l_.add_block(block, actor, concat(name, ".share"), l_.parameter_extent());
    pack.writes = {{share}};
    all.reads = {share};
    all.writes = {{gathered_[block] = l_.add_block(block, actor, name, Extent::whole)}};
    std::vector<Run>& runs = l_.draft.actors[static_cast<std::size_t>(actor)];
    runs.push_back(std::move(pack));
    runs.push_back(std::move(all));
  }

  void note_weight_gradients() {
    for (std::int32_t actor = 0; actor < l_.actors(); ++actor)
      for (const Action& action : l_.schedule.actors[static_cast<std::size_t>(actor)])
        if (action.kind == Kind::W)
          for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m) w_on_[{action.stage, m}] = actor;
  }

  // What F of the stage leaves to its own backward alone, as far as that runs on the same actor (a W may not).
  std::vector<std::int32_t> residuals(std::int32_t stage, std::int32_t actor, std::int32_t microbatch) const {
    const auto w = w_on_.find({stage, microbatch});
    const auto of_stage = [&](std::int32_t t) { return l_.dag.tasks[static_cast<std::size_t>(t)].stage == stage; };
    const auto here = [&](std::int32_t t) {
      return l_.dag.tasks[static_cast<std::size_t>(t)].kind != Kind::W || w == w_on_.end() || w->second == actor;
    };
    std::vector<std::int32_t> out;
    for (std::int32_t b : l_.dag.tasks[static_cast<std::size_t>(task(stage, Kind::F))].writes) {
      const Bundle& bundle = l_.dag.bundles[static_cast<std::size_t>(b)];
      if (bundle.source == Bundle::Source::edge && std::all_of(bundle.readers.begin(), bundle.readers.end(), of_stage) &&
          std::any_of(bundle.readers.begin(), bundle.readers.end(), here))
        out.push_back(b);
    }
    return out;
  }

  // OFFLOAD: to instances on the host. RELOAD: from there to new ones, which what follows in the row reads. Nothing of a stage that leaves
  // nothing, as a searched table may hold them for any stage.
  void move_residuals(std::int32_t actor, const Action& action, std::int32_t microbatch) {
    const bool out = action.kind == Kind::OFFLOAD;
    Run run;
    run.opcode = out ? Opcode::offload : Opcode::reload;
    run.stage = action.stage;
    run.kind = action.kind;
    run.microbatch = microbatch;
    run.action = true;
    for (std::int32_t b : residuals(action.stage, actor, microbatch)) {
      const std::int32_t original = edge(b, microbatch);
      Instance moved = instance(original);
      moved.name += out ? ".host" : ".back";
      moved.host = out;
      const std::int32_t to = l_.add(std::move(moved));
      run.reads.push_back(out ? original : offloaded_.at({b, microbatch}));
      run.writes.push_back({to});
      (out ? offloaded_ : reloaded_)[{b, microbatch}] = to;
    }
    if (!run.reads.empty()) l_.draft.actors[static_cast<std::size_t>(actor)].push_back(std::move(run));
  }

  Lowering& l_;
  std::int32_t microbatches_;                      // of the table
  std::vector<TaskId> tasks_;                      // of each stage task
  std::vector<std::vector<std::int32_t>> blocks_;  // of each stage task: whose members it reads
  std::map<std::int32_t, std::int32_t> gathered_;  // block: the instance that was gathered last
  int gathers_ = 0;
  std::vector<std::int32_t> task_of_;                                                   // [stage][kind of kTaskKinds]: stage task
  std::vector<std::int32_t> light_;                                                     // of each stage: its light F
  std::vector<bool> recomputed_;                                                        // [stage][micro-batch]: has an R
  std::vector<std::int32_t> edges_;                                                     // [bundle][micro-batch]: instance, for edges
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, std::int32_t> used_;   // (bundle, actor, micro-batch or -1): instance
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> offloaded_, reloaded_;  // (bundle, micro-batch): instance
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> w_on_;                  // (stage, micro-batch): actor of W
};

}  // namespace

void lower_actions(Lowering& lowering) {
  Actions(lowering).run();
}

}  // namespace penstock
