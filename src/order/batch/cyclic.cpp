// SPDX-License-Identifier: Apache-2.0
#include "batch/cyclic.h"

#include <deque>

#include "base/invariant.h"
#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

void check_cap(const std::vector<double>& sizes, double cap) {
  for (std::size_t m = 0; m < sizes.size(); ++m)
    if (sizes[m] > cap)
      throw Error(concat("the cyclic order stalls: micro-batch ", m, " of size ", number(sizes[m]), " is above the cap of ", number(cap)),
                  {}, "raise the cap, or cut the batch into smaller micro-batches");
}

struct CyclicActor {
  std::deque<std::int32_t> forward, back;  // micro-batches that wait, longest first
  std::int32_t live = 0;
  double size = 0;  // of those that live
};

struct CyclicRun {
  const std::vector<double>& sizes;
  double cap = kInfinity;
  std::vector<CyclicActor> actors;
  Schedule schedule;

  std::int32_t start(std::size_t actor, Kind kind) {
    CyclicActor& here = actors[actor];
    std::deque<std::int32_t>& queue = kind == Kind::F ? here.forward : here.back;
    const std::int32_t m = queue.front();
    queue.pop_front();
    schedule.actors[actor].push_back({static_cast<std::int32_t>(actor), kind, m});
    here.live += kind == Kind::F ? 1 : -1;
    here.size = here.live == 0 ? 0 : here.size + (kind == Kind::F ? sizes[at(m)] : -sizes[at(m)]);
    return m;
  }

  // Whether anything ran. An actor gets at most one F and one B from the others in a cycle.
  bool cycle() {
    constexpr std::int32_t kNone = -1;
    bool ran = false;
    std::vector<std::int32_t> forward(actors.size(), kNone), back(actors.size(), kNone);  // what will wait next, by actor
    for (std::size_t actor = 0; actor < actors.size(); ++actor) {
      const CyclicActor& here = actors[actor];
      if (!here.back.empty()) {
        const std::int32_t m = start(actor, Kind::B);
        if (actor > 0) back[actor - 1] = m;
        ran = true;
      }
      if (!here.forward.empty() && here.size + sizes[at(here.forward.front())] <= cap) {
        const std::int32_t m = start(actor, Kind::F);
        (actor + 1 < actors.size() ? forward[actor + 1] : back[actor]) = m;
        ran = true;
      }
    }
    for (std::size_t actor = 0; actor < actors.size(); ++actor) {
      if (forward[actor] != kNone) actors[actor].forward.push_back(forward[actor]);
      if (back[actor] != kNone) actors[actor].back.push_back(back[actor]);
    }
    return ran;
  }
};

}  // namespace

Schedule cyclic_schedule(int actors, const std::vector<double>& sizes, double cap) {
  check_cap(sizes, cap);
  CyclicRun run{sizes, cap, std::vector<CyclicActor>(at(actors)), {.name = "cyclic", .actors = {}, .cells = {}}};
  run.schedule.actors.resize(at(actors));
  for (std::size_t m = 0; m < sizes.size(); ++m) run.actors[0].forward.push_back(static_cast<std::int32_t>(m));
  while (run.cycle()) {
  }
  // The oldest live micro-batch lives alone on the actor where it waits for its F, so the cap never holds up all.
  for (const std::vector<Action>& row : run.schedule.actors) invariant(row.size() == 2 * sizes.size(), "the cyclic order finishes");
  return std::move(run.schedule);
}

}  // namespace penstock
