// SPDX-License-Identifier: Apache-2.0
#include "lower/lower.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "lower/member_inputs.h"
#include "lower/passes.h"
#include "lower/sizes.h"
#include "ops/verify.h"
#include "penstock/error.h"
#include "program/piece.h"
#include "schedule/forward_stages.h"
#include "schedule/kinds.h"
#include "schedule/versions.h"
#include "schedule/work.h"
#include "stage/loop.h"
#include "transform/collectives.h"
#include "transform/conversions.h"
#include "transform/passes.h"

namespace penstock {
namespace {

void check_stage_count(const Schedule& schedule, const IdVector<StageId, std::string>& stages) {
  if (schedule.stages() == std::ssize(stages)) return;
  throw Error(concat("schedule ", schedule.name, " is for ", schedule.stages(), " stages; the model has ", stages.size()),
              {concat("the model's stages: ", join(stages, ", "))},
              concat("mark ", schedule.stages(), " stages in the model, or make the table for ", stages.size()));
}

// An R has nothing to do where the backward recomputes by itself.
void check_recomputation(const Schedule& schedule, const StageDag& dag, const CompileOptions& options) {
  for (const auto& row : schedule.actors)
    for (const Action& action : row) {
      if (action.kind != Kind::R) continue;
      const std::string& stage = dag.names[action.stage];
      if (options.recompute == Recompute::inputs)
        throw Error(
            concat("schedule ", schedule.name, ": ", text(action, schedule.slices, schedule.blocks), " has nothing to recompute"),
            {concat("pipeline.recompute = \"inputs\": the backward of stage ", action.stage, " (", quote(stage), ") recomputes by itself")},
            "set pipeline.recompute = \"none\", or take the R actions out of the table");
    }
}

// Checks that a backward which recomputes reads the versions of parameters that its forward read: else it would not make the same values.
void check_recomputed_versions(const LowerInput& input) {
  const Schedule& schedule = input.schedule;
  if (schedule.steps == 1 || !input.recomputes) return;
  const std::vector<std::vector<ReadVersion>> read = read_versions(schedule);
  std::map<std::pair<std::int32_t, std::int32_t>, ReadVersion> forward;  // by stage and micro-batch
  const auto for_each = [&](const auto& act) {
    for (std::int32_t actor = 0; actor < std::ssize(schedule.actors); ++actor)
      for (std::int32_t i = 0; i < std::ssize(schedule.actors[actor]); ++i)
        act(Position{actor, i}, schedule.actors[actor][i], read[actor][i]);
  };
  for_each([&](Position, const Action& action, const ReadVersion& version) {
    if (action.kind == Kind::F) forward[{action.stage, action.microbatch}] = version;
  });
  const auto shown = [](const ReadVersion& version) {
    return concat(version.version, version.ahead > 0 ? concat("+", version.ahead) : "");
  };
  for_each([&](Position here, const Action& action, const ReadVersion& version) {
    if (!is_compute(action.kind) || action.kind == Kind::F) return;
    const ReadVersion& before = forward.at({action.stage, action.microbatch});
    if (version == before) return;
    throw Error(concat(place(schedule, here), ": ", text(action, schedule.slices, schedule.blocks), " reads version ", shown(version),
                       " of its stage, its forward version ", shown(before)),
                {"pipeline.recompute, or \"recompute\" of its plan: it would recompute its forward with other parameters than that had"},
                "set pipeline.recompute = \"none\", or let each backward read what its forward read, as in pipedream");
  });
}

// Stages of which the table has an action of one of the kinds.
std::vector<bool> stages_with(const Schedule& schedule, std::size_t stages, std::initializer_list<Kind> kinds) {
  std::vector<bool> out(stages);
  for (const auto& row : schedule.actors)
    for (const Action& action : row)
      if (std::find(kinds.begin(), kinds.end(), action.kind) != kinds.end() && action.stage < static_cast<std::int32_t>(stages))
        out[action.stage] = true;
  return out;
}

// The axes of the model's own collectives. The members must have all states alike: they are copies of each other.
std::vector<MeshAxis> check_own_axes(const Graph& step, std::span<const LayoutAxis> axes) {
  std::vector<MeshAxis> own = axes_of_collectives(step);
  if (own.empty()) return own;
  check_collectives(step, axes);
  of_all_members(step);
  return own;
}

// Gradients of parameters that are read cast lie apart from others, so that the parameters are gathered apart, too: a block is cast as a
// whole. The gradient of a cast is a cast, or the sum of those of several stages or slices.
void set_casts_apart(StagedStep& staged) {
  constexpr std::uint32_t kCast = 1u << 31;
  const Graph& body = *staged.step.ops[loop_of(staged.step)].body;
  const IdVector<ValueId, OpId> producer = producers(body);
  staged.apart.resize(body.outputs.size());
  const auto is_cast = [&](ValueId v) { return producer[v] && body.ops[producer[v]].name == "to"; };
  for (std::size_t o = 0; o < body.outputs.size(); ++o) {
    const OpId made = producer[body.outputs[o]];
    const bool is_sum = made && body.ops[made].name == "add_n";
    if (is_sum ? std::ranges::all_of(body.ops[made].operands, is_cast) : is_cast(body.outputs[o])) staged.apart[o] |= kCast;
  }
}

// Sums to which a class adds nothing lie apart from those to which it adds something, so that others' sums are the same bundles
// (lower/classes.cpp).
void set_constants_apart(StagedStep& staged) {
  constexpr std::uint32_t kConstant = 1u << 30;
  const Graph& body = *staged.step.ops[loop_of(staged.step)].body;
  const IdVector<ValueId, OpId> producer = producers(body);
  staged.apart.resize(body.outputs.size());
  for (std::size_t o = 0; o < body.outputs.size(); ++o)
    if (const OpId made = producer[body.outputs[o]]; made && is_zeros(body.ops[made])) staged.apart[o] |= kConstant;
}

}  // namespace

int shares_of(const std::vector<int>& devices) {
  return std::accumulate(devices.begin(), devices.end(), 1, [](int a, int b) { return std::lcm(a, b); });
}

std::vector<bool> split_stages(const Schedule& schedule, std::size_t stages) {
  return stages_with(schedule, stages, {Kind::I, Kind::W});
}

std::vector<bool> recomputed_stages(const Schedule& schedule, std::size_t stages) {
  return stages_with(schedule, stages, {Kind::R});
}

StagedStep prepare_stages(const Graph& traced, bool hoist, std::span<const LayoutAxis> axes) {
  verify(traced);
  const std::vector<MeshAxis> own = check_own_axes(traced, axes);
  // Dead code first: what nobody reads must not take part in placing stages.
  Graph step = eliminate_dead_code(own.size() < axes.size() ? traced : drop_constraints(traced));
  // Work that is the same for every micro-batch leaves the loop; it would be done once per micro-batch, and it blurs stages.
  if (hoist) step = hoist_invariants(step);
  // After hoisting: the same cast in two stages is one cast now. Ops of different stages are not merged.
  step = eliminate_common_subexpressions(step);
  return assign_stages(std::move(step));
}

StagedStep prepare_for_slices(const Graph& traced, std::int64_t slices, const CompileOptions& options, bool window) {
  std::vector<LayoutAxis> axes = options.axes;
  axes.push_back({"slice", static_cast<int>(slices), {}});
  return prepare_stages(traced, options.zero < 3 && (options.axes.empty() || window), axes);
}

bool recompute_loop(StagedStep& staged, bool all) {
  Op& loop = staged.step.ops[loop_of(staged.step)];
  const auto again = [&](const Op& op) { return all || op.attributes.contains(kRecompute); };
  if (std::ranges::none_of(loop.body->ops, again)) return false;
  loop.body = std::make_shared<Graph>(eliminate_dead_code(recompute(*loop.body, again)));
  return true;
}

StageDag cut_for(const StagedStep& step, const Schedule& schedule, const CompileOptions& options) {
  const std::size_t stages = step.stages.size();
  return cut(
      step, split_stages(schedule, stages), recomputed_stages(schedule, stages),
      {.sums_in_w = shares_of(options.devices) > 1, .gathered = options.zero == 3, .slices = schedule.slices, .blocks = schedule.blocks});
}

StagedStep staged_step(const Graph& traced, const Schedule& schedule, const CompileOptions& options, bool hoist) {
  // In a window of steps each micro-batch reads a version of its own.
  StagedStep staged = prepare_stages(traced, hoist && options.zero < 3 && schedule.steps == 1, options.axes);
  if (options.recompute == Recompute::selective) staged.step = mark_cheap(std::move(staged.step));
  return staged;
}

LowerInput cut_input(StagedStep staged, const Schedule& schedule, const CompileOptions& options) {
  LowerInput input;
  // After the merging of common subexpressions, which would undo it.
  input.recomputes = recompute_loop(staged, options.recompute == Recompute::inputs);
  if (options.zero == 3) set_casts_apart(staged);
  set_constants_apart(staged);
  input.dag = cut_for(staged, schedule, options);
  input.step = std::move(staged.step);
  // Generators know no stages without a backward; what a file says is held against the step as it is.
  input.schedule = schedule.cells.empty() ? without_absent_backwards(schedule, input.dag.shape) : schedule;
  input.options = options;
  input.loop = loop_of(input.step);
  input.group_size.assign(options.devices.begin(), options.devices.end());
  input.group_size.resize(schedule.actors.size(), 1);
  input.shares = shares_of(options.devices);
  input.microbatches = static_cast<std::int32_t>(attribute<std::int64_t>(input.loop_op(), "microbatches"));
  if (options.zero == 3) input.local = options.local;
  input.input_of.resize(input.step.values.size());
  for (std::size_t i = input.step.inputs.size(); i-- > 0;) input.input_of[input.step.inputs[i]] = InputId(i);
  return input;
}

LowerInput checked_input(LowerInput input) {
  take_sizes(input);
  check_stage_count(input.schedule, input.dag.names);
  check_frozen_stages(input);
  if (input.microbatches % input.shares != 0)
    throw Error(concat("the step has ", input.microbatches, " micro-batches, and each of the table's is ", input.shares, " of them"), {},
                concat("trace the step with a multiple of ", input.shares));
  validate(input.schedule, input.dag.shape, input.table_microbatches() * input.schedule.steps);
  check_recomputation(input.schedule, input.dag, input.options);
  check_recomputed_versions(input);
  return input;
}

LowerInput staged_input(StagedStep staged, const Schedule& schedule, const CompileOptions& options) {
  return checked_input(cut_input(std::move(staged), schedule, options));
}

LowerInput lower_input(const Graph& traced, const Schedule& schedule, const CompileOptions& options) {
  return staged_input(staged_step(traced, schedule, options), schedule, options);
}

std::vector<std::vector<std::string>> parameter_blocks(const Graph& training_step, const Schedule& schedule,
                                                       const CompileOptions& options) {
  std::vector<std::vector<std::string>> out;
  for (const LowerInput& input : member_inputs(training_step, schedule, options)) {
    Draft draft;
    find_blocks(input, draft);
    for (const ShareBlock& block : draft.blocks) {
      std::vector<std::string> names;
      for (InputId parameter : block.parameters) names.push_back(input.step.values[input.value(parameter)].name);
      if (!names.empty() && std::ranges::find(out, names) == out.end()) out.push_back(std::move(names));
    }
  }
  return out;
}

}  // namespace penstock
