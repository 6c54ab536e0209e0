#include "batch/micro_batch_times.h"

#include <algorithm>
#include <cmath>

#include "base/invariant.h"
#include "base/numbers.h"
#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// A run of the table, as far as it has come.
struct Progress {
  const Schedule& schedule;
  const MicroBatches& work;
  double latency = 0;
  std::vector<std::size_t> next;                   // by actor: the place in its row
  std::vector<double> free, lane;                  // by actor: when its last action ends, and its last transfer arrives
  std::vector<std::vector<double>> forward, back;  // by stage and micro-batch: when the result is where it is needed; -1: not yet

  explicit Progress(const Schedule& s, const MicroBatches& w, double l)
      : schedule(s),
        work(w),
        latency(l),
        next(s.actors.size()),
        free(s.actors.size()),
        lane(s.actors.size()),
        forward(s.actors.size(), std::vector<double>(w.count(), -1)),
        back(forward) {}

  double needed(const Action& action) const {
    const std::size_t stage = at(action.stage), m = at(action.microbatch);
    if (action.kind == Kind::F) return stage == 0 ? 0 : forward[stage - 1][m];
    return stage + 1 == forward.size() ? forward[stage][m] : back[stage + 1][m];
  }

  // Runs the actor as far as it comes; whether it came any further.
  bool advance(std::size_t actor) {
    const std::vector<Action>& row = schedule.actors[actor];
    const std::size_t before = next[actor];
    for (; next[actor] < row.size(); ++next[actor]) {
      const Action& action = row[next[actor]];
      const double ready = needed(action);
      if (ready < 0) break;
      const bool is_forward = action.kind == Kind::F;
      const std::size_t m = at(action.microbatch);
      const double end = std::max(free[actor], ready) + (is_forward ? work.forward : work.backward)[m];
      free[actor] = end;
      const bool sends = is_forward ? actor + 1 < next.size() : actor > 0;
      if (sends) lane[actor] = std::max(lane[actor], end) + latency;
      (is_forward ? forward : back)[actor][m] = sends ? lane[actor] : end;
    }
    return next[actor] > before;
  }
};

double peak_live_of(const std::vector<Action>& row, const std::vector<double>& size) {
  double live = 0, peak = 0;
  for (const Action& action : row) {
    live += (action.kind == Kind::F ? 1 : -1) * size[at(action.microbatch)];
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

MicroBatchTime time_micro_batches(const Schedule& schedule, const MicroBatches& work, double latency) {
  Progress progress(schedule, work, latency);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t actor = 0; actor < schedule.actors.size(); ++actor) moved |= progress.advance(actor);
  }
  MicroBatchTime out;
  for (std::size_t actor = 0; actor < schedule.actors.size(); ++actor) {
    invariant(progress.next[actor] == schedule.actors[actor].size(), "a valid table finishes");
    out.makespan = std::max(out.makespan, progress.free[actor]);
    out.peak_live.push_back(peak_live_of(schedule.actors[actor], work.size));
  }
  return out;
}

}  // namespace penstock
