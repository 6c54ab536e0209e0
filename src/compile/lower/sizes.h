// SPDX-License-Identifier: Apache-2.0
// Stages that take micro-batches in sizes of their own (GraphPipe, 2406.17145). The step's micro-batches are the largest that every stage's
// size divides, so a stage of a smaller size has a part of each: its tasks are those of one member of an axis along which the samples are
// split (transform/layouts.h), and whatever mixes samples shows there as a collective. What one stage makes and another of an unlike size
// reads is cut, or put together, by a run of the actor that reads it (actions.cpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lower/draft.h"
#include "lower/input.h"

namespace penstock {

// Where the step has fewer micro-batches than the table, as many of the table's in each as micro_batches_together() says, gives each stage
// its size and the tasks for it. Otherwise changes nothing: actions of several micro-batches run them one after the other then. Throws
// Error naming stage and op where what a stage makes of a part of a micro-batch is no part of what it makes of all of it.
void take_sizes(LowerInput& input);
// The same, of a step that a table's micro_batches_together() was traced for, before anything is made of it: the reason why its stages
// cannot take as many together, as an Error says it; empty: they can. The step is to be traced in the table's own micro-batches then, which
// such stages run one after the other.
std::string why_one_by_one(const Graph& step, const Schedule& schedule, const CompileOptions& options);

// The types of a bundle's values of so many of the table's micro-batches.
std::vector<TensorType> types_of(const LowerInput& input, BundleId bundle, std::int32_t count);

// A task that makes the bundle's values of `unit` from those of units of `made` micro-batches each, of all that it overlaps, in order.
Graph resizing(const LowerInput& input, BundleId bundle, std::int32_t made, Unit unit);

}  // namespace penstock
