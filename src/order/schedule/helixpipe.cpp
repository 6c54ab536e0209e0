// SPDX-License-Identifier: Apache-2.0
// HelixPipe (2507.00394): attention has no parameters, so it may run on any actor, and that of p micro-batches on p actors at once. Of L
// layers stage 2l is P_l, what stands before the attention of layer l and behind that of layer l-1 (P_0 and P_L have half of it), and stage
// 2l+1 is A_l, the attention. P_l is on actor l mod p. A round has p micro-batches, or p bunches of --group (the paper's folds): A_l of the
// d-th of them is on actor (l+d+1) mod p, so the last one's is at home, and while P_l works on one after the other their attention is
// spread.
//
// Forward bubble (p-1)(P_l) with one micro-batch in a bunch, for attention of any length and any depth; the backward is the forward
// reversed, so both together have (p-1)P(1+B/F). Larger bunches take longer to fill and hide latency; peak mA on every actor; one copy of
// the parameters. Layers per actor are --chunks. Whether QKV weights travel to the attention is the model's to say (models/gpt.cpp), and no
// part of a table.
//
//   penstock schedule helixpipe --actors 2 --microbatches 2 --chunks 2 --show
//   actor 0 | 0F0 0F1 1F1 3F0 4F0 4F1 5F1 7F0 8F0 8F1 8B1---- 8B0---- 7B0---- 5B1---- 4B1---- 4B0---- 3B0---- 1B1---- 0B1---- 0B0----
//   actor 1 | .   1F0 2F0 2F1 3F1 5F0 6F0 6F1 7F1 .   .   .   7B1---- 6B1---- 6B0---- 5B0---- 3B1---- 2B1---- 2B0---- 1B0----
//   time 30, bubble 10.0 %, live 10 8
#include <algorithm>
#include <cstdint>

#include "base/text.h"
#include "penstock/error.h"
#include "schedule/generators.h"

namespace penstock {
namespace {

// The forwards of the actors. The layers of all rounds count on, so that the round's last stage stands where the next one's first does.
class Helix {
 public:
  explicit Helix(const ScheduleOptions& options)
      : actors_(options.actors),
        bunch_(std::max(options.group, 1)),
        layers_(options.actors * options.chunks),
        depth_(options.microbatches / (actors_ * bunch_) * layers_) {}

  std::vector<Action> row(int actor) const {
    std::vector<Action> row;
    for (int layer = actor; layer < depth_ + actors_; layer += actors_) {
      for (int offset = actors_ - 2; offset >= 0; --offset) push_attention(layer - offset - 1, offset, row);
      for (int offset = 0; offset < actors_; ++offset) push_between(layer, offset, row);
      push_attention(layer, actors_ - 1, row);
    }
    return row;
  }

 private:
  void push(int stage, int round, int offset, std::vector<Action>& row) const {
    for (int i = 0; i < bunch_; ++i) row.push_back({stage, Kind::F, (round * actors_ + offset) * bunch_ + i});
  }
  void push_attention(int layer, int offset, std::vector<Action>& row) const {
    if (layer >= 0 && layer < depth_) push(2 * (layer % layers_) + 1, layer / layers_, offset, row);
  }
  void push_between(int layer, int offset, std::vector<Action>& row) const {
    if (layer > 0 && layer % layers_ == 0) push(2 * layers_, layer / layers_ - 1, offset, row);
    if (layer < depth_) push(2 * (layer % layers_), layer / layers_, offset, row);
  }

  int actors_, bunch_;
  int layers_;  // of the model
  int depth_;   // layers of all rounds
};

}  // namespace

Schedule helixpipe(const ScheduleOptions& options) {
  const std::int64_t bunch = std::max(options.group, 1), round = options.actors * bunch;
  if (options.microbatches % round != 0) {
    throw Error(concat("helixpipe: ", options.microbatches, " micro-batches are not whole rounds of ", round),
                {concat("a round has ", bunch, " for each of ", options.actors, " actors")},
                concat("use --microbatches ", (options.microbatches + round - 1) / round * round));
  }
  const Helix helix(options);
  Schedule schedule;
  for (int r = 0; r < options.actors; ++r) {
    std::vector<Action>& row = schedule.actors.emplace_back(helix.row(r));
    for (std::size_t i = row.size(); i-- > 0;) row.push_back({row[i].stage, Kind::B, row[i].microbatch});
  }
  return schedule;
}

}  // namespace penstock
