// SPDX-License-Identifier: Apache-2.0
// The figures of a schedule's table: makespan, bubble and the most activations that live at once on each actor.
#pragma once

#include <string_view>
#include <vector>

#include "penstock/schedule.h"
#include "penstock/table.h"

namespace penstock::test {

struct Times {
  double makespan, bubble;
  std::vector<double> peak;
};

inline Network every_link(double latency) {
  return {.link = {.latency = latency}};
}

// Simulates a schedule by name. F takes 1 and I=W=1 unless said otherwise, for an actor's whole share, so that a chunk costs 1/chunks; live
// activations are counted alike.
inline Times times(std::string_view name, const ScheduleOptions& options, const Network& network = {}, const UnitCosts& costs = {}) {
  const Schedule schedule = make_schedule(name, options);
  const TableTime time = time_table(schedule, shape_of(schedule),
                                    uniform_costs(schedule.stages(), costs, 1.0 / (options.chunks * options.slices)), {.network = network});
  return {time.makespan, time.bubble(), time.peak_live};
}

}  // namespace penstock::test
