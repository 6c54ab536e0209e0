// SPDX-License-Identifier: Apache-2.0
// ZeroPP (2402.03791): a pipeline across nodes whose actors hold sharded parameters. Micro-batches go in units of U (--unit, m unless
// said): an actor runs chunk 0 forward for all of the unit, then chunk 1, ...; then back through the chunks in reverse, input gradients
// first, as the others wait for them. Weight gradients fill what idle time there is, also between the next unit's forwards, which memory of
// U micro-batches holds back. Each unit gathers a chunk's parameters once per direction, while the chunk before it is at work, and reduces
// its gradients once (gathers.cpp).
//
// Bubble ceil(m/U) (p-1)(F+I)/v less what the units hide of each other, for U = m exactly (p-1)(F+I)/v: time 30 for p = 4, m = 8 and v = 1,
// 27 for v = 2, ZB-H1's. Gathers of a chunk 2m/U per step; peak UA, held until W; sharded parameters, and those of two chunks.
// U >= 2p-1 does not suffice for the least bubble in this layout, whose units each fill and drain: it is least for U = m. With U < p
// a chunk takes a unit as long as the way through all actors, p forwards instead of U: the price of so little memory.
//
// A chunk is given back after its last input gradient: a weight gradient needs the activations and what its input gradient left.
//
//   penstock schedule zeropp --actors 2 --microbatches 4 --chunks 2 --unit 2 --show
//   actor 0 | 0F0 0F1 2F0 2F1 .   .   2I0 2I1 0I0 0I1 2W0 0F2 2W1 0F3 0W0 2F2 0W1 2F3 .   .   2I2 2I3 0I2 0I3 2W2 2W3 0W2 0W3
//   actor 1 | .   1F0 1F1 3F0 3F1 3I0 3I1 1I0 1I1 3W0 3W1 1W0 1F2 1W1 1F3 .   3F2 .   3F3 3I2 3I3 1I2 1I3 3W2 3W3 1W2 1W3
//   time 28, bubble 14.3 %, live 4 4
#include "base/text.h"
#include "penstock/error.h"
#include "schedule/generators.h"
#include "schedule/in_order.h"

namespace penstock {
namespace {

InOrder layout(const ScheduleOptions& options, int unit) {
  const int p = options.actors, v = options.chunks, m = options.microbatches;
  InOrder order{.live = unit * v};
  for (int r = 0; r < p; ++r) {
    std::vector<Action> row;
    for (int first = 0; first < m; first += unit)
      for (const Kind kind : {Kind::F, Kind::I})
        for (int c = 0; c < v; ++c)
          for (int j = first; j < std::min(first + unit, m); ++j) row.push_back({(kind == Kind::F ? c : v - 1 - c) * p + r, kind, j});
    order.lists.push_back({std::move(row)});
  }
  return order;
}

}  // namespace

Schedule zeropp(const ScheduleOptions& options) {
  const int m = options.microbatches, unit = options.unit > 0 ? options.unit : m;
  if (unit > m) throw Error(concat("zeropp: a unit of ", unit, " micro-batches of ", m), {}, concat("use --unit from 1 to ", m));
  EngineWork work = chunked_work(options);
  work.split = true;
  return with_gathers(in_order(layout(options, unit), work));
}

}  // namespace penstock
