// SPDX-License-Identifier: Apache-2.0
// CrossPipe's greedy order for pipelines with slow links between data centres (2507.00217): every actor runs at each moment what can run
// and has not waited for a slow link. Forwards fill the pipeline; then forwards and input gradients alternate; weight gradients
// run when neither can or memory is full; in the drain input gradients come first.
//
// Bubble (p-1)(F+I-W) without latency, as ZB-H1; peak at most --in-flight micro-batches (p unless said), held until W; one copy of the
// parameters. --transfers gives the time of a transfer over F on every link, or on each. With p = 4, m = 8 and 0, 1, 2 on the last link
// it takes 27, 31 and 36 at a peak of p, and 27, 28 and 29 at a peak of 2p. No table on a chain takes less than 27, 31 and 35, or 27, 28
// and 29: penstock schedule search --memory-limit proves it. So the 32 reported of a simple greedy for 31 is one more than needed, as is
// this one's 36.
//
//   penstock schedule crosspipe --actors 4 --microbatches 8 --show
//   actor 0 | F0 F1 F2 F3 .  .  .  I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7
//   actor 1 | .  F0 F1 F2 F3 .  I0 W0 I1 W1 F4 I2 W2 F5 I3 W3 F6 I4 W4 F7 I5 W5 I6 W6 I7 W7
//   actor 2 | .  .  F0 F1 F2 I0 F3 I1 W0 I2 W1 F4 I3 W2 F5 I4 W3 F6 I5 W4 F7 I6 W5 I7 W6 W7
//   actor 3 | .  .  .  F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7
//   time 27, bubble 11.1 %, live 4 4 4 4
#include "base/numbers.h"
#include "schedule/by_rules.h"
#include "schedule/generators.h"

namespace penstock {

std::vector<double> link_transfers(const ScheduleOptions& options) {
  const std::size_t links = options.actors - 1;
  if (options.transfers.size() == links) return options.transfers;
  return std::vector<double>(links, options.transfers.empty() ? 0 : options.transfers.front());
}

EngineWork chunked_work(const ScheduleOptions& options) {
  const int stages = options.actors * options.chunks;
  EngineWork work{.shape = chain(stages), .actors = {{}}, .actor_count = options.actors, .microbatches = options.microbatches};
  for (int stage = 0; stage < stages; ++stage) work.actors[0].push_back(stage % options.actors);
  return work;
}

Schedule crosspipe(const ScheduleOptions& options) {
  EngineWork work = chunked_work(options);
  work.split = true;
  work.arrival = [transfers = link_transfers(options)](std::int32_t from, std::int32_t to, double ready, double) {
    return ready + transfers[std::min(from, to)];
  };
  EngineRules rules;
  rules.phases.fill(Preference{{Kind::I, Kind::F}, {Kind::W}});
  rules.limits.push_back({.most = [&](std::int32_t, std::int32_t) { return options.in_flight > 0 ? options.in_flight : options.actors; }});
  return schedule_by(rules, work).schedule;
}

}  // namespace penstock
