// SPDX-License-Identifier: Apache-2.0
#include "batch/micro_batch_times.h"

#include <algorithm>
#include <cmath>

#include "base/numbers.h"
#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// In whole sizes, which add up without rounding: the simulator counts in parts of the largest.
double peak_live_of(const std::vector<Action>& row, const std::vector<double>& size) {
  double live = 0, peak = 0;
  for (const Action& action : row) {
    if (action.kind == Kind::F) live += size[at(action.microbatch)];
    if (action.kind == Kind::B || action.kind == Kind::W) live -= size[at(action.microbatch)];
    peak = std::max(peak, live);
  }
  return peak;
}

}  // namespace

void check_micro_batches(const MicroBatches& work) {
  if (work.count() == 0) throw Error("there are no micro-batches");
  const auto check = [&](const std::vector<double>& values, const char* what) {
    if (values.size() != work.count())
      throw Error(concat("there are ", work.count(), " forward times and ", values.size(), " ", what), {},
                  "give one of each for every micro-batch");
    for (std::size_t m = 0; m < values.size(); ++m)
      if (!(values[m] >= 0) || std::isinf(values[m]))
        throw Error(concat("micro-batch ", m, ": the ", what, " have ", number(values[m]), ", which must be a number and not negative"));
  };
  check(work.forward, "forward times");
  check(work.backward, "backward times");
  check(work.size, "sizes");
}

TableCosts table_costs(int stages, const MicroBatches& work, double latency) {
  TableCosts out;
  for (std::size_t m = 0; m < work.count(); ++m) {
    StageCosts of;
    of.of(Kind::F) = of.of(Kind::R) = work.forward[m];
    of.of(Kind::B) = work.backward[m];
    of.of(Kind::I) = of.of(Kind::W) = work.backward[m] / 2;
    of.forward_bytes = of.backward_bytes = latency;
    of.live = work.size[m];
    out.first.push_back(static_cast<std::int32_t>(out.stages.size()));
    out.stages.insert(out.stages.end(), at(stages), of);
  }
  return out;
}

Network one_lane_each(int actors) {
  Network network;
  for (std::int32_t from = 0; from < actors; ++from)
    for (const std::int32_t to : {from - 1, from + 1})
      if (to >= 0 && to < actors) network.between[{from, to}] = {.bandwidth = 1, .medium = from};
  return network;
}

TableTime time_micro_batches(const Schedule& schedule, const MicroBatches& work, double latency) {
  const int actors = static_cast<int>(schedule.actors.size());
  TableOptions options;
  if (latency > 0) options.network = one_lane_each(actors);
  TableTime out = time_table(schedule, chain(actors), table_costs(actors, work, latency), options);
  for (int actor = 0; actor < actors; ++actor) out.peak_live[actor] = peak_live_of(schedule.actors[actor], work.size);
  return out;
}

}  // namespace penstock
