#include "lower/lower.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "lower/draft.h"
#include "ops/definition.h"
#include "ops/verify.h"
#include "penstock/error.h"
#include "program/memory_plan.h"
#include "program/verify.h"
#include "schedule/kinds.h"
#include "stage/loop.h"
#include "transform/passes.h"

namespace penstock {
namespace {

void check_stage_count(const Schedule& schedule, const std::vector<std::string>& stages) {
  if (schedule.stages() == static_cast<std::int32_t>(stages.size())) return;
  throw Error(concat("schedule ", schedule.name, " is for ", schedule.stages(), " stages; the model has ", stages.size()),
              {concat("the model's stages: ", join(stages, ", "))},
              concat("mark ", schedule.stages(), " stages in the model, or make the table for ", stages.size()));
}

// A collective is done by all members of its axis together, and a program has no task that all devices run at once: those it has are
// instructions that lowering makes itself.
void check_no_collectives(const Graph& graph) {
  for (const Op& op : graph.ops) {
    if (op.body) check_no_collectives(*op.body);
    const OpDefinition* definition = find_op(op.name);
    if (definition == nullptr || !definition->collective) continue;
    std::vector<std::string> details = {
        concat("axis ", quote(attribute<std::string>(op, "axis")), " of ", attribute<std::int64_t>(op, "size"), " members")};
    if (!op.origin.empty()) details.push_back("made in " + op.origin);
    throw Error(
        concat("graph @", graph.name, ": ", op.name, " is a collective of the model's, which no device can run"), details,
        "write the model for one device: pipeline.data and pipeline.zero spread it over several, with the collectives that this needs");
  }
}

// An R has nothing to do where the backward recomputes by itself.
void check_recomputation(const Schedule& schedule, const StageDag& dag, const LowerOptions& options) {
  for (const auto& row : schedule.actors)
    for (const Action& action : row) {
      if (action.kind != Kind::R) continue;
      const std::string& stage = dag.names[static_cast<std::size_t>(action.stage)];
      if (std::find(options.recompute.begin(), options.recompute.end(), stage) != options.recompute.end())
        throw Error(
            concat("schedule ", schedule.name, ": ", text(action), " has nothing to recompute"),
            {concat("pipeline.recompute = \"inputs\": the backward of stage ", action.stage, " (", quote(stage), ") recomputes by itself")},
            "set pipeline.recompute = \"none\", or take the R actions out of the table");
    }
}

// Stages of which the table has an action of one of the kinds.
std::vector<bool> stages_with(const Schedule& schedule, std::size_t stages, std::initializer_list<Kind> kinds) {
  std::vector<bool> out(stages);
  for (const auto& row : schedule.actors)
    for (const Action& action : row)
      if (std::find(kinds.begin(), kinds.end(), action.kind) != kinds.end() && action.stage < static_cast<std::int32_t>(stages))
        out[static_cast<std::size_t>(action.stage)] = true;
  return out;
}

}  // namespace

int parts_of(const std::vector<int>& devices) {
  return std::accumulate(devices.begin(), devices.end(), 1, [](int a, int b) { return std::lcm(a, b); });
}

Lowering::Lowering(const Graph& s, const StageDag& d, const Schedule& t, std::size_t l, const std::vector<int>& sizes)
    : step(s), dag(d), schedule(t), group_sizes(sizes.begin(), sizes.end()), parts(parts_of(sizes)), loop(l) {
  group_sizes.resize(schedule.actors.size(), 1);
}

bool is_beside(const Run& run) {
  return is_host_copy(run.opcode) || is_collective(run.opcode) || (run.action && is_collective(run.kind));
}

TaskId TaskTable::add(std::string name, Graph graph) {
  const std::uint64_t hash = structural_hash(graph);
  for (auto [it, end] = by_hash_.equal_range(hash); it != end; ++it)
    if (structurally_equal(tasks_[it->second.index()].graph, graph)) return it->second;
  graph.name = name;
  tasks_.push_back({std::move(name), std::move(graph), 0});
  const TaskId id(static_cast<std::int64_t>(tasks_.size()) - 1);
  by_hash_.emplace(hash, id);
  return id;
}

std::int32_t Lowering::add(Instance instance) {
  draft.instances.push_back(std::move(instance));
  return static_cast<std::int32_t>(draft.instances.size()) - 1;
}

std::int32_t Lowering::input_index(ValueId value) const {
  const auto found = std::find(step.inputs.begin(), step.inputs.end(), value);
  return found == step.inputs.end() ? -1 : static_cast<std::int32_t>(found - step.inputs.begin());
}

std::int32_t Lowering::input(std::int32_t index, std::int32_t microbatch) {
  const auto [it, added] = inputs.try_emplace({index, microbatch}, -1);
  if (!added) return it->second;
  const Value& value = step.values[step.inputs[static_cast<std::size_t>(index)].index()];
  Instance instance;
  instance.name = value.name;
  instance.types = {value.type};
  if (index < step.state) {
    instance.source = Instance::Source::state;
    if (const auto member = sharded_states.find(index); member != sharded_states.end()) {
      instance.block = member->second.block;
      instance.members = {member->second.index};
      instance.extent = extent_of(index);
    }
  } else {
    instance.source = Instance::Source::data;
    instance.port = index - step.state;
    instance.microbatch = microbatch;
    if (microbatch >= 0) {
      instance.name += concat(".", microbatch);
      instance.types[0].shape[0] /= program.microbatches;
    }
  }
  return it->second = add(std::move(instance));
}

Extent Lowering::extent_of(std::int32_t state) const {
  const auto member = sharded_states.find(state);
  if (member == sharded_states.end()) return Extent::whole;
  const std::vector<std::int32_t>& parameters = blocks[static_cast<std::size_t>(member->second.block)].parameters;
  const bool is_parameter = std::find(parameters.begin(), parameters.end(), state) != parameters.end();
  return is_parameter ? parameter_extent() : Extent::device;
}

std::int32_t Lowering::add_block(std::int32_t block, std::int32_t actor, std::string name, Extent extent) {
  Instance instance;
  instance.name = std::move(name);
  instance.types = blocks[static_cast<std::size_t>(block)].members;
  instance.home = actor;
  instance.block = block;
  instance.members.resize(instance.types.size());
  std::iota(instance.members.begin(), instance.members.end(), 0);
  instance.extent = extent;
  return add(std::move(instance));
}

TaskId Lowering::copy_task(std::int32_t block) {
  Graph graph;
  for (const TensorType& member : blocks[static_cast<std::size_t>(block)].members)
    graph.outputs.push_back(graph.add_input(member, concat("x", graph.inputs.size())));
  return tasks.add(concat("copy.", block), std::move(graph));
}

std::vector<bool> split_stages(const Schedule& schedule, std::size_t stages) {
  return stages_with(schedule, stages, {Kind::I, Kind::W});
}

std::vector<bool> recomputed_stages(const Schedule& schedule, std::size_t stages) {
  return stages_with(schedule, stages, {Kind::R});
}

StagedStep prepare_stages(const Graph& traced, bool hoist) {
  verify(traced);
  // Dead code first: what nobody reads must not take part in placing stages.
  Graph step = eliminate_dead_code(traced);
  check_no_collectives(step);
  // Work that is the same for every micro-batch leaves the loop; it would be done once per micro-batch, and it blurs stages.
  if (hoist) step = hoist_invariants(step);
  // After hoisting: the same cast in two stages is one cast now. Ops of different stages are not merged.
  step = eliminate_common_subexpressions(step);
  return assign_stages(step);
}

StageDag cut_for(const StagedStep& step, const Schedule& schedule, const LowerOptions& options) {
  const std::size_t stages = step.stages.size();
  return cut(step, split_stages(schedule, stages), recomputed_stages(schedule, stages),
             {.sums_in_w = parts_of(options.devices) > 1, .gathered = options.sharding.level == 3});
}

std::vector<std::vector<std::string>> parameter_blocks(const Graph& training_step, const Schedule& schedule, const LowerOptions& options) {
  const StagedStep staged = prepare_stages(training_step, options.sharding.level < 3);
  check_stage_count(schedule, staged.stages);
  const StageDag dag = cut_for(staged, schedule, options);
  Lowering lowering(staged.step, dag, schedule, loop_of(staged.step), options.devices);
  find_blocks(lowering, options.sharding);
  std::vector<std::vector<std::string>> out;
  for (const ShareBlock& block : lowering.blocks) {
    if (block.parameters.empty()) continue;
    std::vector<std::string>& names = out.emplace_back();
    for (std::int32_t s : block.parameters)
      names.push_back(staged.step.values[staged.step.inputs[static_cast<std::size_t>(s)].index()].name);
  }
  return out;
}

Program lower(const Graph& traced, const Schedule& schedule, const LowerOptions& options) {
  StagedStep staged = prepare_stages(traced, options.sharding.level < 3);
  check_stage_count(schedule, staged.stages);
  // After the merging of common subexpressions, which would undo it.
  if (!options.recompute.empty()) {
    Op& loop = staged.step.ops[loop_of(staged.step)];
    loop.body = std::make_shared<Graph>(recompute(*loop.body, options.recompute));
  }
  const StageDag dag = cut_for(staged, schedule, options);
  Lowering lowering(staged.step, dag, schedule, loop_of(staged.step), options.devices);
  const auto microbatches = static_cast<int>(attribute<std::int64_t>(lowering.loop_op(), "microbatches"));
  validate(schedule, dag.shape, microbatches / lowering.parts);
  check_recomputation(schedule, dag, options);

  lowering.program.name = staged.step.name;
  lowering.program.microbatches = microbatches;
  find_blocks(lowering, options.sharding);
  lower_actions(lowering);
  reduce_over_groups(lowering, options.sharding);
  // Needs to know which actors read which loop operands and hold which partial sums.
  place_outside(lowering);
  spread_groups(lowering);
  emit_program(lowering, options.receive_ahead);
  plan_memory(lowering.program);
  verify(lowering.program, {ChannelModel::serial, -1});  // so it also finishes where transfers are independent
  return std::move(lowering.program);
}

}  // namespace penstock
