// SPDX-License-Identifier: Apache-2.0
#include "penstock/compile.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "base/invariant.h"
#include "base/text.h"
#include "lower/classes.h"
#include "lower/lower.h"
#include "lower/member_inputs.h"
#include "lower/passes.h"
#include "lower/sizes.h"
#include "penstock/error.h"
#include "schedule/forward_stages.h"
#include "schedule/kinds.h"
#include "schedule/sizes.h"
#include "schedule/versions.h"
#include "stage/loop.h"
#include "transform/slices.h"

namespace penstock {
namespace {

std::vector<std::string> floating_states_in_loop(const Graph& step) {
  std::vector<std::string> out;
  const Op& loop = step.ops[loop_of(step)];
  for (int i = 0; i < step.state; ++i) {
    const ValueId state = step.inputs[i];
    const Value& value = step.values[state];
    if (is_floating(value.type.dtype) && std::find(loop.operands.begin(), loop.operands.end(), state) != loop.operands.end())
      out.push_back(value.name);
  }
  return out;
}

// Level 2 and 3 keep sums or parameters in shares between the runs of a stage, so the table has to say when they are whole. In a window
// each step's own table does (step_input).
Schedule gathering(Schedule schedule, int level) {
  return level < 2 || schedule.steps > 1 || has_gathers(schedule) ? std::move(schedule) : with_gathers(std::move(schedule), /*turns=*/true);
}

bool has_backward(const Graph& step) {
  const Graph& body = *step.ops[loop_of(step)].body;
  return std::any_of(body.ops.begin(), body.ops.end(), [](const Op& op) { return op.phase == Phase::backward; });
}

// A class that lacks stages has other numbers for the rest, and the table says by number what is split or recomputed: all stages or none.
void check_stages_of_class(const IdVector<StageId, std::string>& stages, const Schedule& table) {
  const auto all = static_cast<std::size_t>(table.stages());
  if (all == stages.size()) return;
  for (const std::vector<bool>& some : {split_stages(table, all), recomputed_stages(table, all)})
    if (std::ranges::count(some, some[0]) != std::ssize(some))
      throw Error(concat("schedule ", table.name, " splits or recomputes some stages, and a shape class has ", stages.size(), " of ", all,
                         " stages"),
                  {}, "where classes lack stages, split and recompute all stages or none");
}

}  // namespace

bool has_gathers(const Schedule& schedule) {
  return std::any_of(schedule.actors.begin(), schedule.actors.end(), [](const std::vector<Action>& row) {
    return std::any_of(row.begin(), row.end(), [](const Action& action) { return is_collective(action.kind); });
  });
}

Schedule forward_only(Schedule schedule) {
  return forwards_of(one_step(schedule, 0));
}

namespace {

// The table with what the step's devices need, and without what the step has not.
Schedule table_for(const Graph& step, const Schedule& schedule, int zero) {
  Schedule table = gathering(schedule, zero);
  if (has_backward(step)) return table;
  table = forward_only(std::move(table));
  return zero == 3 ? gathering(std::move(table), 3) : table;
}

// The options as lowering reads them: with what follows from the step.
CompileOptions options_for(const Graph& step, CompileOptions options) {
  if (options.zero > 0 && options.parameters.empty()) options.parameters = floating_states_in_loop(step);
  if (!has_backward(step)) options.recompute = Recompute::none;
  for (Schedule& other : options.others) other = table_for(step, other, options.zero);
  return options;
}

}  // namespace

std::vector<AxisDecision> compile_layouts(const Graph& step, const Schedule& schedule, const CompileOptions& options) {
  return decide_axes(step, schedule, options_for(step, options));
}

Lowering compile_lowering(const Graph& step, const Schedule& schedule, const CompileOptions& options) {
  return begin_lowering(step, table_for(step, schedule, options.zero), options_for(step, options));
}

Program compile(const Graph& step, const Schedule& schedule, const CompileOptions& options) {
  return lower(step, table_for(step, schedule, options.zero), options_for(step, options));
}

// The axis of fewer members has a name of its own, by which its ops find the group's line (LowerInput::lines).
CompileOptions for_group(CompileOptions options, int degree) {
  std::vector<LayoutAxis>& axes = options.axes;
  invariant(!axes.empty() && degree >= 1 && axes[0].size % degree == 0, "groups divide the members of the first axis");
  axes[0].in_groups = true;
  if (degree < axes[0].size) axes[0].name += concat(" in groups of ", degree);
  axes[0].size = degree;
  if (degree == 1) axes.erase(axes.begin());
  return options;
}

LoopSums loop_sums(const Graph& step, const Schedule& schedule, const CompileOptions& options) {
  LoopSums out;
  if (options.axes.empty()) return out;
  for (const AxisDecision& axis : decide_axes(step, table_for(step, schedule, options.zero), options_for(step, options)))
    for (const GraphLayouts& layouts : axis.layouts) out[axis.wishes.axis].push_back(layouts.body->outputs);
  return out;
}

ShapeClass compile_class(const Graph& step, const Schedule& schedule, const CompileOptions& options, const LoopSums& sums) {
  const Schedule table = table_for(step, schedule, options.zero);
  ShapeClass out = cut_members(step, table, options_for(step, options), sums);
  check_stages_of_class(out[0].dag.names, table);
  return out;
}

std::vector<LowerInput> joined_inputs(std::span<const PlacedClass> classes, const std::vector<std::int32_t>& shape_class,
                                      const Schedule& schedule, const CompileOptions& options) {
  const Schedule table = table_for(classes[0].inputs->front().step, schedule, options.zero);
  std::vector<LowerInput> members;
  const auto all = static_cast<std::int32_t>(classes[0].inputs->size());
  const std::int32_t of_each = options.axes.empty() ? 1 : all / options.axes[0].size;  // along the other axes
  for (std::int32_t m = 0; m < all; ++m) {
    std::vector<MemberClass> of_member;
    for (const auto& [inputs, first] : classes) {
      const std::int32_t own = m - first * of_each;
      const bool works = 0 <= own && own < std::ssize(*inputs);
      of_member.push_back({&inputs->at(works ? own : m % of_each), works});
    }
    const auto works = [&](std::int32_t c) { return c < 0 || c >= std::ssize(classes) || of_member[c].works; };
    if (std::ranges::none_of(shape_class, works))
      throw Error(concat("member ", m, " of the mesh's axes has no micro-batch"), {}, "let each member be in some micro-batch's group");
    members.push_back(join_classes(of_member, table, shape_class));
  }
  return members;
}

Program compile_joined(std::span<const PlacedClass> classes, const std::vector<std::int32_t>& shape_class, const Schedule& schedule,
                       const CompileOptions& options, TaskPool& pool) {
  return lower(joined_inputs(classes, shape_class, schedule, options), &pool);
}

Program compile(const std::vector<Graph>& classes, const std::vector<int>& shape_class, const Schedule& schedule,
                const CompileOptions& options) {
  if (classes.empty()) throw Error("there is no shape class");
  std::vector<ShapeClass> inputs;
  std::vector<PlacedClass> each;
  const LoopSums sums = loop_sums(classes[0], schedule, options);
  for (const Graph& step : classes) inputs.push_back(compile_class(step, schedule, options, sums));
  for (const ShapeClass& input : inputs) each.push_back({&input});
  TaskPool pool;
  return compile_joined(each, shape_class, schedule, options, pool);
}

Graph in_slices(const Graph& step, const Schedule& schedule, const CompileOptions& options, const std::vector<std::int64_t>& lengths) {
  const StagedStep staged = prepare_for_slices(step, schedule.slices, options, schedule.steps > 1);
  std::vector<AttentionBlock> apart;
  for (const StagePart& block : schedule.blocks)
    if (block.stage < std::ssize(staged.stages)) apart.push_back({staged.stages[StageId(block.stage)], block.slice, block.block});
  const std::vector<std::string> stages(staged.stages.begin(), staged.stages.end());
  return unroll_slices(staged.step, schedule.slices, lengths, apart, stages);
}

std::vector<std::vector<std::string>> shared_blocks(const Graph& training, const Schedule& schedule, const CompileOptions& options) {
  if (options.zero < 3) return {};
  return parameter_blocks(training, gathering(schedule, options.zero), options_for(training, options));
}

ModelPrograms compile(const Model& model, StepShape shape, const OptimiserOptions& optimiser, const Schedule& schedule,
                      CompileOptions options) {
  const int together = micro_batches_together(schedule);
  shape.microbatches = schedule.microbatches() / together * shares_of(options.devices);
  if (options.parameters.empty())
    for (const ParameterSpec& parameter : model.parameters()) options.parameters.push_back(parameter.name);
  Graph training = training_step(model, shape, optimiser);
  std::string apart = together > 1 ? why_one_by_one(training, gathering(schedule, options.zero), options) : "";
  if (!apart.empty()) {
    shape.microbatches *= together;
    training = training_step(model, shape, optimiser);
  }
  Program program = compile(training, schedule, options);
  options.blocks = shared_blocks(training, schedule, options);
  return {std::move(program), compile(evaluation_step(model, shape), schedule, options), std::move(apart)};
}

}  // namespace penstock
