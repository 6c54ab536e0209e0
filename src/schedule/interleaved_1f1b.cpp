// Interleaved 1F1B (Narayanan et al., 2104.04473): chunk c of actor r is stage c*p+r. Micro-batches go in groups of p through
// chunk 0, then 1, ...; an actor runs 2(p-1-r)+(v-1)p chunk-forwards, then a forward and a backward in turn.
//
// Bubble (p-1)(F+B)/v; peak p(1+(p-1)/(pv))A on actor 0. Twice the transfers for v = 2.
//
// Where p does not divide m the table is that of the next multiple without the micro-batches that do not exist: nothing passes
// between micro-batches, so leaving out whole ones keeps a table valid.
//
#include <algorithm>

#include "schedule/generators.h"

namespace penstock {
namespace {

// The k-th piece of an actor's forward order: chunk and micro-batch.
struct Piece {
  int chunk, microbatch;
};

Piece piece(int k, int actors, int chunks) {
  const int group = k / (actors * chunks), within = k % (actors * chunks);
  return {within / actors, group * actors + within % actors};
}

}  // namespace

Schedule interleaved_one_forward_one_backward(const ScheduleOptions& options) {
  const int p = options.actors, v = options.chunks;
  const int pieces = (options.microbatches + p - 1) / p * p * v;
  Schedule schedule;
  for (int r = 0; r < p; ++r) {
    auto& row = schedule.actors.emplace_back();
    const auto push = [&](Kind kind, int k) {
      const auto [chunk, m] = piece(k, p, v);
      const int c = kind == Kind::F ? chunk : v - 1 - chunk;  // backward goes through the chunks in reverse
      if (m < options.microbatches) row.push_back({c * p + r, kind, m});
    };
    const int warm_up = std::min(2 * (p - 1 - r) + (v - 1) * p, pieces);
    for (int k = 0; k < warm_up; ++k) push(Kind::F, k);
    for (int k = 0; k < pieces; ++k) {
      if (k + warm_up < pieces) push(Kind::F, k + warm_up);
      push(Kind::B, k);
    }
  }
  return schedule;
}

}  // namespace penstock
