// SPDX-License-Identifier: Apache-2.0
// The input that the passes of lowering read. None changes it, but that behind the pass `steps` it has the ports and outputs of all steps
// of a window (lower/window.h).
#pragma once

#include <string_view>
#include <vector>

#include "lower/lower.h"
#include "penstock/compile.h"
#include "penstock/id.h"
#include "penstock/layout.h"
#include "penstock/ops.h"
#include "stage/stages.h"

namespace penstock {

struct AxisDecision;

// The members that differ in their place along an axis of the mesh only, or some of them that are beside each other and do micro-batches by
// themselves (lower/classes.h): one of them, as it finds the others.
struct MemberLine {
  std::string name;  // of the axis in the step's ops
  std::int32_t size = 1, place = 0, stride = 1;

  std::int32_t member_at(std::int32_t own, std::int32_t other_place) const { return own + (other_place - place) * stride; }
};

struct LowerInput {
  Graph step;  // with stages assigned
  StageDag dag;
  Schedule schedule;
  CompileOptions options;
  bool is_step = false;                        // the table is one step's of a window's (lower/window.h)
  bool recomputes = false;                     // backwards compute again some of what they read of their forward
  std::size_t loop = 0;                        // index of the accumulate in step.ops
  IdVector<ActorId, std::int32_t> group_size;  // devices
  // In a window's step: the actor that owns what a stage is first to read. In each step a frozen stage may be on other actors.
  IdVector<StageId, ActorId> owner_of_stage = {};
  std::int32_t shares = 1;  // of each of the table's micro-batches: the least that each group can share; one is a micro-batch of the step
  std::int32_t microbatches = 1;  // of the step
  // Where micro-batches have shapes of their own (lower/classes.h): the class of each of the table's, and the step's input that is the
  // first tensor of the step's first micro-batch. Those that the loop cuts of the second follow on it, and so on.
  std::vector<std::int32_t> shape_class = {};
  InputId first_port{};
  // Where the step's micro-batches are several of the table's, of which some stages take fewer (lower/sizes.h): that number, how many each
  // stage takes together, and, by bundle that is data or an edge, how the samples lie in each of its values, in as many equal parts.
  std::int32_t largest = 1;
  IdVector<StageId, std::int32_t> sizes = {};
  IdVector<BundleId, std::vector<Layout>> samples = {};
  std::int32_t local = 1;  // devices of a host; 1 below level 3
  // Where the mesh has axes inside of an actor, all of this is what one of their members does.
  std::int32_t members = 1;
  std::vector<MemberLine> lines;
  IdVector<InputId, bool> is_copy;                    // states that another member owns, which has the same
  IdVector<InputId, std::uint32_t> split_along = {};  // by state, a bit for each axis: the members along it have parts of it
  // By value of the step: the bytes of what the first member has of it. They decide where code behind the loop runs, as all members have to
  // run it alike, and what they have may differ in size. Empty: there is one member.
  IdVector<ValueId, std::int64_t> first_bytes;
  IdVector<ValueId, InputId> input_of;  // of the step; none: it is computed

  const Op& loop_op() const { return step.ops[loop]; }
  // Returns the shape class of a micro-batch of the table; 0 where the step has only one.
  std::int32_t class_of(std::int32_t microbatch) const { return shape_class.empty() || microbatch < 0 ? 0 : shape_class[microbatch]; }
  std::int32_t size_of(StageId stage) const { return sizes.empty() ? 1 : sizes[stage]; }
  std::int32_t actors() const { return static_cast<std::int32_t>(schedule.actors.size()); }
  std::int32_t devices(ActorId actor) const { return group_size[actor]; }
  std::int32_t table_microbatches() const { return microbatches / shares; }
  bool is_state(InputId input) const { return input && input.value < step.state; }
  ValueId value(InputId input) const { return step.inputs[input.index()]; }
  // Position in `lines`; -1: there is none of this name.
  std::int32_t line(std::string_view name) const;
  // With shape classes: the step's input that is an operand which the loop cuts, of a micro-batch of the step.
  InputId port_of(std::int32_t operand, std::int32_t microbatch) const;
  // Operand of the loop, as an input of the step; none: it is computed before the loop.
  InputId input_of_operand(std::int32_t operand) const { return input_of[loop_op().operands[operand]]; }
};

// Values of the step that depend on the loop's results.
IdVector<ValueId, bool> dependent_values(const LowerInput& input);

// The step cut for the schedule, but not held against it.
LowerInput cut_input(StagedStep staged, const Schedule& schedule, const CompileOptions& options);
// Throws Error where a stage that the table has as frozen reads a parameter that is trained: what it makes for the next step would be of
// parameters that this step has not updated yet.
void check_frozen_stages(const LowerInput& input);
// The input with the sizes of its stages (lower/sizes.h), step and table held against each other. Throws Error as lower() does.
LowerInput checked_input(LowerInput input);
// Two halves of lower_input, between which a step becomes its members': the step with its stages, as many as the schedule has (`hoist`:
// prepare_stages'); and both held against each other.
StagedStep staged_step(const Graph& traced, const Schedule& schedule, const CompileOptions& options, bool hoist = true);
LowerInput staged_input(StagedStep staged, const Schedule& schedule, const CompileOptions& options);
// The step as the passes read it: cut for the schedule, and both held against each other. Throws Error as lower() does.
LowerInput lower_input(const Graph& step, const Schedule& schedule, const CompileOptions& options = {});
// Returns what is decided along each axis of the mesh (lower/member_inputs.h).
std::vector<AxisDecision> compile_layouts(const Graph& step, const Schedule& schedule, const CompileOptions& options);

}  // namespace penstock
