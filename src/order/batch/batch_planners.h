// SPDX-License-Identifier: Apache-2.0
// The planners of a run's batches (batch.planner): a list with a row for each. A configuration's check, the help, the driver and the table
// of docs/batches.md read it, and nothing asks for one of them by its name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "batch/flexsp.h"
#include "batch/modules.h"
#include "batch/searched_batch.h"

namespace penstock {

// The batches that a planner plans. alike: none, as all have one program.
enum class BatchesOf { alike, sequences, images };
enum class BatchRows { padded, ragged, either };   // either: batch.rows says it
enum class TextsIn { one_piece, slices, groups };  // groups of an actor's devices have a part each
// A planner has this computed again, as far as batch.recompute allows it. actions: whole stages, by R in its tables; modes: a part of what
// all backwards of a batch read (BatchShape::recompute); layers: of each stage some for each micro-batch or slice (BatchShape::again);
// either: layers, or whole stages by R.
enum class Recomputes { nothing, actions, modes, layers, either };

// A batch of sequences, and what some planners look at beside it.
struct BatchQuestion {
  SearchedBatchProblem batch;
  const Schedule& table;      // the configured one
  std::int64_t context = 0;   // no sample is longer
  int slices = 1;             // into which one may be cut, at most
  FlexspOptions groups = {};  // of a planner of groups
};

struct BatchPlannerInfo {
  std::string name;
  std::string summary;  // one line, with the source
  BatchesOf batches = BatchesOf::alike;
  BatchRows rows = BatchRows::padded;
  TextsIn texts = TextsIn::one_piece;  // in other pieces than one they are texts alone, not pairs
  Recomputes recomputes = Recomputes::nothing;
  bool given_table = false;  // each batch runs the configured table: of any number of stages, and within no limit of memory
  PlannedBatch (*plan)(const BatchQuestion& question) = nullptr;  // plans sequences
  // Plans texts with images; null: all images of a micro-batch are one part, in the configured table.
  ModuleResult (*plan_modules)(const ModuleProblem& problem, const ModuleSearchOptions& options) = nullptr;
};

const std::vector<BatchPlannerInfo>& batch_planners();  // the first is the default
// The one of that name. Throws Error for an unknown name (nearest named).
const BatchPlannerInfo& find_batch_planner(std::string_view name);

}  // namespace penstock
