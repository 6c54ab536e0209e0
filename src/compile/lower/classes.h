// SPDX-License-Identifier: Apache-2.0
// Micro-batches of different shapes in one step: each has a shape class, whose stages have tasks of their own, and ports of its own. What
// is summed over the micro-batches has one type, whatever the class, so accumulators and all that follows on them are there once. Code
// ahead of the loop is there once, too: what a class computes there of the parameters is added to the others'. No tensor has the whole
// batch, so the number that losses are divided by is a port.
//
// A class may lack stages that another has, as an encoder of images has nothing to do where there are none. Its micro-batches have no tasks
// and no actions there, and no term in sums to which only such stages add. A row in fewer slices than another lacks stages, too, as a slice
// is a stage: each class is unrolled at its own bounds, and the table has the slices of the row that has most (batch/infinipipe.h).
//
// Along axes each member has classes of its own, which are joined like those of a step without axes. A class may also be for some members
// of the first axis (PlacedClass, batch/flexsp.h). The table of all other members lacks the class's micro-batches. The class's collectives
// are along a line of their own (MemberLine), and the results of its loop are terms on each member, for which its layouts are decided so
// that parameters are read whole (LayoutAxis::in_groups). Code behind the loop is that of a class for all members, which sums over all of
// them.
//
// Classes are kept from batch to batch, and each batch's program is joined of them (config/shape_programs.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lower/input.h"
#include "lower/task_pool.h"

namespace penstock {

// A class as lowering takes it: its step, of one micro-batch, as each member of the mesh's axes has it.
using ShapeClass = std::vector<LowerInput>;

// Returns the layouts in which the sums of this step's loop are cheapest along the mesh's axes. All classes of a run take one step's: their
// micro-batches add to the same sums, and which layouts are cheapest depends on the shape.
LoopSums loop_sums(const Graph& step, const Schedule& schedule, const CompileOptions& options);

// The class's step cut into the tasks of which the schedule has actions anywhere. It may be kept and joined again under every schedule that
// splits and recomputes the same stages. Without `sums` its loop's results lie as they come cheapest, or as terms, where it is for a group.
// Throws Error as compile() of classes does.
ShapeClass compile_class(const Graph& step, const Schedule& schedule, const CompileOptions& options, const LoopSums& sums = {});

// A class, and who works on its micro-batches: as many members beside each other as it is for, from the place `first` of the first axis on.
// It may be for fewer than the mesh has, which do these micro-batches by themselves while others do others (FlexSP's groups).
struct PlacedClass {
  const ShapeClass* inputs;
  std::int32_t first = 0;
};

// Options of a class for a group of so many members of the mesh's first axis, which do its micro-batches as all of them would. Each is as
// many members of the mesh as the other axes have, and these stand beside each other.
CompileOptions for_group(CompileOptions options, int degree);

// The inputs of lowering of the program of compile() for classes, one for each member. The first class is for all members of the mesh,
// whether or not micro-batches are of it: what is summed over them, and how, follows from it. Throws Error as compile() does, and where a
// member has no micro-batch.
std::vector<LowerInput> joined_inputs(std::span<const PlacedClass> classes, const std::vector<std::int32_t>& shape_class,
                                      const Schedule& schedule, const CompileOptions& options);
// Their program. `pool`: tasks that earlier programs have left; takes this one's.
Program compile_joined(std::span<const PlacedClass> classes, const std::vector<std::int32_t>& shape_class, const Schedule& schedule,
                       const CompileOptions& options, TaskPool& pool);

// A class as one member sees it.
struct MemberClass {
  const LowerInput* input;  // where it does not work on it, another member's that has the same parts of states
  bool works = true;
};

// One input of the passes from those of steps that differ in the shapes of their data only; each has a single micro-batch. `classes` is not
// empty; `shape_class`: of each micro-batch of the table, a position in it. A data port NAME that the loop cuts becomes NAME.0, NAME.1,
// ..., of its class's type: one for each micro-batch of the step, which are as many of one class for each of the table's as its devices
// share; all others stay. A class may lack stages of another, for which its micro-batches have no work and the table no actions
// (StageShape::idle); of classes on which the member does not work it has no actions either. Throws Error where the steps differ in more,
// or the step reads a port that the loop cuts outside of it.
LowerInput join_classes(std::span<const MemberClass> classes, const Schedule& schedule, std::vector<std::int32_t> shape_class);

}  // namespace penstock
