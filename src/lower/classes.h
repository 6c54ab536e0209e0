// Micro-batches of different shapes in one step: each has a shape class, whose stages have tasks of their own, and ports of its own. What
// is summed over the micro-batches has one type, whatever the class, so accumulators and all that follows on them are there once.
#pragma once

#include <cstdint>
#include <vector>

#include "lower/input.h"

namespace penstock {

// One input of the passes from those of steps that differ in the shapes of their data only; each has a single micro-batch. `classes` is not
// empty; `shape_class`: of each micro-batch of the table, a position in it. A data port NAME that the loop cuts becomes NAME.0, NAME.1,
// ..., one for each micro-batch, of its class's type; all others stay. Throws Error where the steps differ in more, or the step reads a
// port that the loop cuts outside of it.
LowerInput join_classes(const std::vector<LowerInput>& classes, const Schedule& schedule, std::vector<std::int32_t> shape_class);

// What join_classes takes of a class: its step, of one micro-batch, cut into the tasks of which the schedule has actions anywhere. It may
// be kept and joined again under every schedule that splits and recomputes the same stages. Throws Error as compile() of classes does.
LowerInput compile_class(const Graph& step, const Schedule& schedule, const CompileOptions& options);

}  // namespace penstock
