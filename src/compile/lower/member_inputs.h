// SPDX-License-Identifier: Apache-2.0
// The members of the mesh's axes inside of an actor: each gets a step of its own on what it has (transform/layouts.h), which is lowered as
// if it were alone as far as its devices' runs. Then the pass `axes` makes one of all drafts, in which it is settled who sends what when.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lower/draft.h"
#include "transform/layouts.h"

namespace penstock {

// Hands out the inputs of all members' lowering, as cut_members() gives them, each made when its turn comes: of a long sequence in many
// slices an input is large.
void take_members(const Graph& step, const Schedule& schedule, const CompileOptions& options, const std::function<void(LowerInput)>& take,
                  const LoopSums& sums = {});
// The inputs of all members' lowering, the last axis varying fastest; one where the mesh has no such axes. Throws Error as lower() does.
std::vector<LowerInput> member_inputs(const Graph& step, const Schedule& schedule, const CompileOptions& options);
// The same, not held against the table: the step may have another number of micro-batches.
std::vector<LowerInput> cut_members(const Graph& step, const Schedule& schedule, const CompileOptions& options, const LoopSums& sums = {});

// Returns the first member's step along all axes. Its parts are the largest, so costs are counted with it.
StagedStep first_member(const StagedStep& step, const CompileOptions& options);

// The decisions along one axis.
struct AxisDecision {
  AxisWishes wishes = {};
  bool own = false;  // it is that of the model's own collectives: nothing is decided
  Graph step = {};   // what the first member along the axes before has of it
  // The layouts of each member along the axes before, as these differ in sizes: the first of these axes varies slowest.
  std::vector<GraphLayouts> layouts = {};
  LocalValues values = {};  // of `step`, in the steps of the axis' members: they have the same numbers
};
// In the order in which axes are worked on: the last of the mesh first. Throws Error as member_inputs.
std::vector<AxisDecision> decide_axes(const Graph& step, const Schedule& schedule, const CompileOptions& options);
// Returns the layouts as text (transform/layouts.h).
std::string layouts_text(const std::vector<AxisDecision>& axes);

}  // namespace penstock
