// Interleaved 1F1B (Narayanan et al., 2104.04473): chunk c of actor r is stage c*p+r. Micro-batches go in groups of p through
// chunk 0, then 1, ...; an actor runs 2(p-1-r)+(v-1)p chunk-forwards, then a forward and a backward in turn.
//
// Bubble (p-1)(F+B)/v; peak p(1+(p-1)/(pv))A on actor 0. Twice the transfers for v = 2.
//
// Where p does not divide m the table is that of the next multiple without the micro-batches that do not exist: nothing passes
// between micro-batches, so leaving out whole ones keeps a table valid.
//
//   penstock schedule interleaved-1f1b --actors 2 --microbatches 4 --chunks 2 --show
//   actor 0 | 0F0 0F1 2F0 2F1 0F2 .   2B0---- 0F3 2B1---- 2F2 0B0---- 2F3 0B1---- .   2B2---- .   2B3---- 0B2---- 0B3----
//   actor 1 | .   1F0 1F1 3F0 3B0---- 3F1 3B1---- 1F2 1B0---- 1F3 1B1---- 3F2 3B2---- 3F3 3B3---- 1B2---- 1B3----
//   time 27, bubble 11.1 %, live 5 3
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
