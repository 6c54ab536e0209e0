// SPDX-License-Identifier: Apache-2.0
// Fully sharded parameters (ZeRO-3, Rajbhandari et al., 1910.02054), at the grain of a table's stages: as ZeroPP (2402.03791) compares
// schedules. A stretch is what an actor does of one stage in one direction without anything of another between (weight gradients do not
// count: they need the activations and what their input gradient left). Each stretch gathers its stage and drops it. Who has to pay for
// gathers turns round without one: then a stretch is of a stage in whatever directions. All slices of a stage have its parameters, and so
// are of one stretch.
#include <algorithm>
#include <set>

#include "schedule/kinds.h"
#include "schedule/slices.h"

namespace penstock {
namespace {

struct Stretch {
  std::int32_t stage;  // its first slice
  bool forward;
  std::size_t begin, end;  // the first and the last of its pieces: actions, or fused actions as one
};

// The backward stretch that each slice of a stage belongs to in each micro-batch; of all actors.
struct BackwardStretches {
  const Schedule& schedule;
  std::size_t microbatches;
  std::vector<std::int32_t> stretch;

  explicit BackwardStretches(const Schedule& of_table)
      : schedule(of_table),
        microbatches(static_cast<std::size_t>(of_table.microbatches())),
        stretch(static_cast<std::size_t>(of_table.stages()) * microbatches, -1) {}
  std::int32_t& of(std::int32_t stage, std::int32_t microbatch) {
    return stretch[static_cast<std::size_t>(stage) * microbatches + static_cast<std::size_t>(microbatch)];
  }
};

// Gathers and reductions of one actor's row.
class Gatherer {
 public:
  // `first_stretch`: how many stretches other actors have.
  Gatherer(const std::vector<Action>& row, BackwardStretches& backward, std::int32_t first_stretch, bool turns)
      : row_(row), backward_(backward), first_stretch_(first_stretch), turns_(turns) {
    std::size_t pieces = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      piece_of_.push_back(pieces);
      pieces += !row[i].fused_with_next || i + 1 == row.size();
    }
    before_.resize(pieces + 1);
    find_stretches();
  }

  std::int32_t next_stretch() const { return first_stretch_ + static_cast<std::int32_t>(stretches_.size()); }

  // `reduces`: which of its actions are the last to add to a backward stretch's gradients.
  std::vector<Action> row(const std::vector<bool>& reduces) {
    for (const Stretch& stretch : stretches_) before_[stretch.end + 1].push_back({stretch.stage, Kind::RESHARD});
    for (std::size_t i = 0; i < stretches_.size(); ++i) before_[place_of_gather(i)].push_back({stretches_[i].stage, Kind::UNSHARD});
    for (std::size_t i = 0; i < row_.size(); ++i) {
      std::vector<Action>& behind = before_[piece_of_[i] + 1];
      const Action reduce{first_slice(row_[i].stage, backward_.schedule), Kind::REDUCE_GRAD};
      // A fused pair may end two stretches of a stage: one sum has both.
      if (reduces[i] && std::find(behind.begin(), behind.end(), reduce) == behind.end()) behind.push_back(reduce);
    }
    std::vector<Action> out;
    for (std::size_t i = 0; i < row_.size(); ++i) {
      if (i == 0 || piece_of_[i] != piece_of_[i - 1]) out.insert(out.end(), before_[piece_of_[i]].begin(), before_[piece_of_[i]].end());
      out.push_back(row_[i]);
    }
    out.insert(out.end(), before_.back().begin(), before_.back().end());
    return out;
  }

 private:
  void find_stretches() {
    for (std::size_t i = 0; i < row_.size(); ++i) {
      const Action& action = row_[i];
      if (action.kind == Kind::W || (!is_compute(action.kind) && action.kind != Kind::R)) continue;
      take(first_slice(action.stage, backward_.schedule), action.kind == Kind::F, piece_of_[i]);
      if (action.kind == Kind::F) continue;
      for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m)
        backward_.of(action.stage, m) = next_stretch() - 1;
    }
  }

  void take(std::int32_t stage, bool forward, std::size_t piece) {
    for (auto stretch = stretches_.rbegin(); stretch != stretches_.rend() && stretch->end == piece; ++stretch) {
      if (stretch->stage != stage) continue;
      stretch->forward = forward;  // a fused pair of one stage gathers it once
      return;
    }
    if (!stretches_.empty() && stretches_.back().stage == stage && (turns_ || stretches_.back().forward == forward))
      stretches_.back().end = piece;
    else
      stretches_.push_back({stage, forward, piece, piece});
  }

  // During the stretch before it, so that at most two stages are there at a time: as soon as the one before that is dropped. A stage that
  // has to be gathered again can only be when it has been dropped.
  std::size_t place_of_gather(std::size_t i) const {
    if (i == 0) return stretches_[0].begin;
    std::size_t place = stretches_[i - 1].begin;
    if (stretches_[i].stage == stretches_[i - 1].stage) place = stretches_[i - 1].end + 1;
    if (i > 1) place = std::max(place, stretches_[i - 2].end + 1);
    return std::min(place, stretches_[i].begin);
  }

  const std::vector<Action>& row_;
  BackwardStretches& backward_;
  std::int32_t first_stretch_;
  bool turns_;                         // a stretch may go on in the other direction
  std::vector<std::size_t> piece_of_;  // of each action
  std::vector<Stretch> stretches_;
  std::vector<std::vector<Action>> before_;  // each piece, and behind the last
};

// By action of a row: whether it is the last there to add to the gradients of a backward stretch, its own or another actor's.
std::vector<bool> last_of_stretches(const std::vector<Action>& row, BackwardStretches& backward) {
  std::vector<bool> last(row.size(), false);
  std::set<std::pair<std::int32_t, std::int32_t>> seen;  // stage, stretch
  for (std::size_t i = row.size(); i-- > 0;) {
    const Action& action = row[i];
    if (action.kind != Kind::B && action.kind != Kind::W) continue;
    for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m)
      if (seen.emplace(first_slice(action.stage, backward.schedule), backward.of(action.stage, m)).second) last[i] = true;
  }
  return last;
}

}  // namespace

Schedule with_gathers(Schedule schedule, bool turns) {
  schedule.cells.clear();
  for (std::vector<Action>& row : schedule.actors) std::erase_if(row, [](const Action& action) { return is_sharding(action.kind); });
  BackwardStretches backward(schedule);
  std::vector<Gatherer> gatherers;
  for (const std::vector<Action>& row : schedule.actors)
    gatherers.emplace_back(row, backward, gatherers.empty() ? 0 : gatherers.back().next_stretch(), turns);
  for (std::size_t a = 0; a < schedule.actors.size(); ++a) {
    std::vector<Action> row = gatherers[a].row(last_of_stretches(schedule.actors[a], backward));
    schedule.actors[a] = std::move(row);
  }
  return schedule;
}

}  // namespace penstock
