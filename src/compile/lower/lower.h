// SPDX-License-Identifier: Apache-2.0
// Stage DAG + schedule -> program.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/compile.h"
#include "penstock/layout.h"
#include "penstock/program.h"
#include "penstock/schedule.h"
#include "stage/stages.h"

namespace penstock {

// The layouts of the loop's results along each axis, by the member of the axes that are worked on before it. What micro-batches add up lies
// alike in all of them, whatever would come cheapest for the shape of one.
using LoopSums = std::map<std::string, std::vector<std::vector<Layout>>>;

// Into how many shares a micro-batch must be cut for each of the groups to share it: the least common multiple.
int shares_of(const std::vector<int>& devices);

// The passes before the cut: the step as lower() cuts it. Not `hoist`: what is computed of the parameters alone stays in the loop, as it
// does where no device holds them whole (level 3 of CompileOptions::zero). Constraints stay for the axes over which layouts split tensors.
// Throws Error where it is no sound graph, a stage cannot be inferred or its own collectives are not for these axes.
StagedStep prepare_stages(const Graph& traced, bool hoist = true, std::span<const LayoutAxis> axes = {});

// The same of a step of which slices of sequences are cut next (unroll_slices in transform/slices.h). `window`: for several steps. The
// model's constraints stay, as they say which dims are the sequence. What is made of parameters alone stays in the loop where the members
// of an axis may need messages for it; but in a window slices may read unlike versions of a parameter, and what they share of it, as a
// cast, is refused only ahead of the loop.
StagedStep prepare_for_slices(const Graph& traced, std::int64_t slices, const CompileOptions& options, bool window);

// Lets backwards compute again what is marked (kRecompute), or all. Returns whether there is anything. What members made together for the
// backward alone is dead then.
bool recompute_loop(StagedStep& staged, bool all);

// Stages whose backward the table splits anywhere.
std::vector<bool> split_stages(const Schedule& schedule, std::size_t stages);

// Stages that the table recomputes (R) anywhere.
std::vector<bool> recomputed_stages(const Schedule& schedule, std::size_t stages);

// The parameters that the devices of an actor hold in shares, by the blocks that are gathered as one: every program of a run has the same.
// Members of the mesh's axes may have other blocks than the first, of pieces by their names (program/piece.h).
std::vector<std::vector<std::string>> parameter_blocks(const Graph& training_step, const Schedule& schedule, const CompileOptions& options);

// The stages of a prepared step, as lower() cuts them for the schedule.
StageDag cut_for(const StagedStep& step, const Schedule& schedule, const CompileOptions& options);

// Step graph (marks or none) + schedule -> a planned, verified program. Throws Error where stages, schedule and model do not fit.
Program lower(const Graph& step, const Schedule& schedule, const CompileOptions& options = {});

}  // namespace penstock
