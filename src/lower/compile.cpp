#include "penstock/compile.h"

#include <algorithm>

#include "base/text.h"
#include "lower/classes.h"
#include "lower/lower.h"
#include "lower/members.h"
#include "lower/passes.h"
#include "penstock/error.h"
#include "schedule/kinds.h"
#include "stage/loop.h"

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

Sharding sharding_of(const Graph& step, const CompileOptions& options) {
  Sharding out{.level = options.zero, .parameters = options.parameters, .blocks = options.blocks};
  if (out.level > 0 && out.parameters.empty()) out.parameters = floating_states_in_loop(step);
  return out;
}

LowerOptions lower_options(const Graph& step, const CompileOptions& options) {
  return {.devices = options.devices,
          .local = options.local,
          .sharding = sharding_of(step, options),
          .axes = options.axes,
          .dims = options.dims,
          .told = options.told,
          .attention = options.attention};
}

// Level 2 and 3 keep sums or parameters in shares between the runs of a stage, so the table has to say when they are whole.
Schedule gathering(Schedule schedule, int level) {
  return level < 2 || has_gathers(schedule) ? std::move(schedule) : with_gathers(std::move(schedule), /*turns=*/true);
}

bool has_backward(const Graph& step) {
  const Graph& body = *step.ops[loop_of(step)].body;
  return std::any_of(body.ops.begin(), body.ops.end(), [](const Op& op) { return op.phase == Phase::backward; });
}

}  // namespace

bool has_gathers(const Schedule& schedule) {
  return std::any_of(schedule.actors.begin(), schedule.actors.end(), [](const std::vector<Action>& row) {
    return std::any_of(row.begin(), row.end(), [](const Action& action) { return is_collective(action.kind); });
  });
}

Schedule forward_only(Schedule schedule) {
  schedule.cells.clear();
  for (auto& actions : schedule.actors) {
    std::erase_if(actions, [](const Action& action) { return action.kind != Kind::F; });
    for (Action& action : actions) action.fused_with_next = false;
  }
  return schedule;
}

std::vector<LowerInput> compile_inputs(const Graph& step, const Schedule& schedule, const CompileOptions& options) {
  LowerOptions lowering = lower_options(step, options);
  Schedule table = gathering(schedule, options.zero);
  if (!has_backward(step)) {
    table = forward_only(std::move(table));
    return member_inputs(step, options.zero == 3 ? gathering(std::move(table), 3) : table, lowering);
  }
  if (options.recompute) lowering.recompute = prepare_stages(step, true, options.axes).stages;
  return member_inputs(step, table, lowering);
}

std::vector<AxisDecision> compile_layouts(const Graph& step, const Schedule& schedule, const CompileOptions& options) {
  return decide_axes(step, schedule, lower_options(step, options));
}

LowerInput compile_input(const Graph& step, const Schedule& schedule, const CompileOptions& options) {
  return std::move(compile_inputs(step, schedule, options)[0]);
}

Program compile(const Graph& step, const Schedule& schedule, const CompileOptions& options) {
  return lower(compile_inputs(step, schedule, options));
}

LowerInput compile_class(const Graph& step, const Schedule& schedule, const CompileOptions& options) {
  if (parts_of(options.devices) > 1 || !options.axes.empty())
    throw Error("micro-batches of different shapes: each actor is one device", {},
                "give each replica actors of its own in the table, which hold the same stages");
  LowerOptions lowering = lower_options(step, options);
  if (!has_backward(step)) return cut_input(staged_step(step, forward_only(schedule), lowering), forward_only(schedule), lowering);
  if (options.recompute) lowering.recompute = prepare_stages(step).stages;
  return cut_input(staged_step(step, schedule, lowering), schedule, lowering);
}

Program compile(const std::vector<Graph>& classes, const std::vector<int>& shape_class, const Schedule& schedule,
                const CompileOptions& options) {
  std::vector<LowerInput> inputs;
  for (const Graph& step : classes) inputs.push_back(compile_class(step, schedule, options));
  return lower(join_classes(inputs, has_backward(classes.at(0)) ? schedule : forward_only(schedule), shape_class));
}

std::vector<std::vector<std::string>> shared_blocks(const Graph& training, const Schedule& schedule, const CompileOptions& options) {
  if (options.zero < 3) return {};
  return parameter_blocks(training, gathering(schedule, options.zero), lower_options(training, options));
}

ModelPrograms compile(const Model& model, int batch, int context, const OptimiserOptions& optimiser, const Schedule& schedule,
                      CompileOptions options) {
  const int microbatches = schedule.microbatches() * parts_of(options.devices);
  if (options.parameters.empty())
    for (const ParameterSpec& parameter : model.parameters()) options.parameters.push_back(parameter.name);
  const Graph training = training_step(model, batch, context, microbatches, optimiser);
  Program program = compile(training, schedule, options);
  options.blocks = shared_blocks(training, schedule, options);
  return {std::move(program), compile(evaluation_step(model, batch, context, microbatches), schedule, options)};
}

}  // namespace penstock
