// SPDX-License-Identifier: Apache-2.0
// GraphPipe (2406.17145): pipelines of stages that branch and join. A stage starts as many samples ahead as the longest path from it to the
// end needs, so that parallel branches fill at once: i_x = max over the stages y that x feeds of i_y + max(b_x, b_y), b_x at the end,
// with b_x samples in a micro-batch of stage x, in whole micro-batches. Each stage then runs a backward and a forward in turn.
//
// Bubble (d-1)(F+B) where d stages lie on the longest path; peak i_x. Of a chain it is 1f1b, which is what the name alone gives. Two
// branches of two stages each into a head, m = 8: time 30, live 3 2 3 2 1; as a chain of five 36, live 5 4 3 2 1.
//
//   penstock schedule graphpipe --actors 4 --microbatches 8 --show
//   actor 0 | F0 F1 F2 F3 .  .  .  .  .  .  B0--- F4 B1--- F5 B2--- F6 B3--- F7 B4--- .  B5--- .  B6--- .  B7---
//   actor 1 | .  F0 F1 F2 .  .  .  .  B0--- F3 B1--- F4 B2--- F5 B3--- F6 B4--- F7 B5--- .  B6--- .  B7---
//   actor 2 | .  .  F0 F1 .  .  B0--- F2 B1--- F3 B2--- F4 B3--- F5 B4--- F6 B5--- F7 B6--- .  B7---
//   actor 3 | .  .  .  F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4--- F5 B5--- F6 B6--- F7 B7---
//   time 33, bubble 27.3 %, live 4 3 2 1
#include <algorithm>

#include "base/text.h"
#include "penstock/error.h"
#include "schedule/generators.h"

namespace penstock {
namespace {

std::vector<int> checked_sizes(const StageShape& shape, int microbatches, const std::vector<int>& sizes) {
  const std::size_t stages = shape.predecessors.size();
  if (sizes.empty()) return std::vector<int>(stages, 1);
  if (sizes.size() != stages) throw Error(concat("graphpipe: ", sizes.size(), " micro-batch sizes for ", stages, " stages"));
  for (std::size_t s = 0; s < stages; ++s) {
    if (sizes[s] >= 1 && microbatches % sizes[s] == 0) continue;
    throw Error(concat("graphpipe: stage ", s, " cannot take ", sizes[s], " of ", microbatches, " micro-batches together"), {},
                "use a divisor of the number of micro-batches");
  }
  return sizes;
}

}  // namespace

std::vector<int> graphpipe_in_flight(const StageShape& shape, const std::vector<int>& sizes) {
  std::vector<int> in_flight = sizes;
  for (std::size_t y = shape.predecessors.size(); y-- > 0;) {  // what y feeds comes after it and is done
    in_flight[y] = (in_flight[y] + sizes[y] - 1) / sizes[y] * sizes[y];
    for (const std::int32_t before : shape.predecessors[y]) {
      const std::size_t x = before;
      in_flight[x] = std::max(in_flight[x], in_flight[y] + std::max(sizes[x], sizes[y]));
    }
  }
  return in_flight;
}

Schedule graphpipe(const StageShape& shape, int microbatches, const std::vector<int>& sizes, std::vector<int> in_flight) {
  const std::vector<int> size = checked_sizes(shape, microbatches, sizes);
  if (in_flight.empty()) in_flight = graphpipe_in_flight(shape, size);
  Schedule schedule;
  schedule.name = "graphpipe";
  schedule.predecessors = told_predecessors(shape);
  for (std::size_t s = 0; s < size.size(); ++s) {
    auto& row = schedule.actors.emplace_back();
    const bool has_backward = shape.has_backward[s];
    const int groups = microbatches / size[s];
    take_turns(groups, has_backward ? (in_flight[s] + size[s] - 1) / size[s] : groups, [&](Kind kind, int n) {
      if (kind == Kind::F || has_backward) row.push_back({static_cast<std::int32_t>(s), kind, n * size[s], size[s]});
    });
  }
  return schedule;
}

Schedule graphpipe_chain(const ScheduleOptions& options) {
  return graphpipe(chain(options.actors), options.microbatches);
}

}  // namespace penstock
