// When each action of a table runs, given what each kind costs: no memory limits, no bandwidth, transfers take only latency.
#pragma once

#include <vector>

#include "penstock/schedule.h"

namespace penstock {

// Of one stage and one micro-batch, in any unit of time. Kinds that are not named cost nothing.
struct TableCosts {
  double forward = 1, backward = 2, input = 1, weight = 1;
  double latency = 0;  // between an action and one that needs it on another actor
};

struct TableTime {
  std::vector<std::vector<double>> start, end;  // of each action
  double makespan = 0;
  std::vector<double> busy;  // of each actor
  // Of each actor: most micro-batches of one stage that lived at once. One lives from the start of its F to the end of its B, or of
  // its W where they are split; of a stage without backward it does not live on.
  std::vector<std::int32_t> peak_live;

  // 1 - busy / (actors * makespan).
  double bubble() const;
};

double cost(const TableCosts& costs, const Action& action);

// Of a valid table. Linear, but for sorting each actor's lifetimes.
TableTime time_table(const Schedule& schedule, const StageShape& shape, const TableCosts& costs = {});

}  // namespace penstock
