// SPDX-License-Identifier: Apache-2.0
// The parts of validate(): validate.cpp checks a table by itself, and validate_model.cpp that it does what a model asks of it.
#pragma once

#include <cstdint>
#include <string>

#include "schedule/work.h"

namespace penstock {

// The words that errors of both have for a table, one of its actions, and one that it may lack.
std::string title(const Schedule& schedule);
std::string text_at(const Schedule& schedule, Position p);
std::string unit_text(const Schedule& schedule, std::int32_t stage, Kind kind, std::int32_t microbatch);

// The number of micro-batches, and the action that says so where the caller does not.
struct Microbatches {
  std::int32_t count = 0;
  Position named_by;
};

// Throws Error unless the table's actions are of stages and micro-batches that the model has, in its order of stages, with every forward.
// It needs no index, whose size follows from their numbers.
void check_model(const Schedule& schedule, const StageShape& shape, const Microbatches& step);
// Throws Error unless each forward has its backward, whole or in two.
void check_backwards(const WorkIndex& work);

}  // namespace penstock
