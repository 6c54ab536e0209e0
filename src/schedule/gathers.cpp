// Fully sharded parameters (ZeRO-3, Rajbhandari et al., 1910.02054), at the grain of a table's stages: as ZeroPP (2402.03791) compares
// schedules. A run is what an actor does of one stage in one direction without anything of another between (weight gradients do not
// count: they need the activations and what their input gradient left). Each run gathers its stage and drops it. Who has to pay for gathers
// turns round without one: then a run is of a stage in whatever directions.
#include <algorithm>
#include <set>

#include "base/text.h"
#include "schedule/kinds.h"
#include "schedule/slices.h"

namespace penstock {
namespace {

struct Run {
  std::int32_t stage;
  bool forward;
  std::size_t begin, end;  // the first and the last of its pieces: actions, or fused actions as one
};

// Gathers and reductions of one actor's row.
class Gatherer {
 public:
  // `run_of`: of each stage and micro-batch, the backward run that it belongs to; of all actors. `first_run`: how many others have.
  Gatherer(const std::vector<Action>& row, std::vector<std::int32_t>& run_of, std::size_t microbatches, std::int32_t first_run, bool turns)
      : row_(row), run_of_(run_of), microbatches_(microbatches), first_run_(first_run), turns_(turns) {
    std::size_t pieces = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      piece_of_.push_back(pieces);
      pieces += !row[i].fused_with_next || i + 1 == row.size();
    }
    before_.resize(pieces + 1);
    find_runs();
  }

  std::int32_t next_run() const { return first_run_ + static_cast<std::int32_t>(runs_.size()); }

  // `reduces`: which of its actions are the last to add to a backward run's gradients.
  std::vector<Action> row(const std::vector<bool>& reduces) {
    for (const Run& run : runs_) before_[run.end + 1].push_back({run.stage, Kind::RESHARD});
    for (std::size_t i = 0; i < runs_.size(); ++i) before_[place_of_gather(i)].push_back({runs_[i].stage, Kind::UNSHARD});
    for (std::size_t i = 0; i < row_.size(); ++i) {
      std::vector<Action>& behind = before_[piece_of_[i] + 1];
      const Action reduce{row_[i].stage, Kind::REDUCE_GRAD};
      // A fused pair may end two runs of a stage: one sum has both.
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
  void find_runs() {
    for (std::size_t i = 0; i < row_.size(); ++i) {
      const Action& action = row_[i];
      if (action.kind == Kind::W || (!is_compute(action.kind) && action.kind != Kind::R)) continue;
      take(action, piece_of_[i]);
      if (action.kind == Kind::F) continue;
      for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m)
        run_of_[static_cast<std::size_t>(action.stage) * microbatches_ + static_cast<std::size_t>(m)] = next_run() - 1;
    }
  }

  void take(const Action& action, std::size_t piece) {
    const bool forward = action.kind == Kind::F;
    for (auto run = runs_.rbegin(); run != runs_.rend() && run->end == piece; ++run) {
      if (run->stage != action.stage) continue;
      run->forward = forward;  // a fused pair of one stage gathers it once
      return;
    }
    if (!runs_.empty() && runs_.back().stage == action.stage && (turns_ || runs_.back().forward == forward))
      runs_.back().end = piece;
    else
      runs_.push_back({action.stage, forward, piece, piece});
  }

  // During the run before it, so that at most two stages are there at a time: as soon as the one before that is dropped. A stage that has
  // to be gathered again can only be when it has been dropped.
  std::size_t place_of_gather(std::size_t i) const {
    if (i == 0) return runs_[0].begin;
    std::size_t place = runs_[i - 1].begin;
    if (runs_[i].stage == runs_[i - 1].stage) place = runs_[i - 1].end + 1;
    if (i > 1) place = std::max(place, runs_[i - 2].end + 1);
    return std::min(place, runs_[i].begin);
  }

  const std::vector<Action>& row_;
  std::vector<std::int32_t>& run_of_;
  std::size_t microbatches_;
  std::int32_t first_run_;
  bool turns_;                         // a run may go on in the other direction
  std::vector<std::size_t> piece_of_;  // of each action
  std::vector<Run> runs_;
  std::vector<std::vector<Action>> before_;  // each piece, and behind the last
};

// By action of a row: whether it is the last there to add to the gradients of a backward run, its own or another actor's.
std::vector<bool> last_of_runs(const std::vector<Action>& row, const std::vector<std::int32_t>& run_of, std::size_t microbatches) {
  std::vector<bool> last(row.size(), false);
  std::set<std::pair<std::int32_t, std::int32_t>> seen;  // stage, run
  for (std::size_t i = row.size(); i-- > 0;) {
    const Action& action = row[i];
    if (action.kind != Kind::B && action.kind != Kind::W) continue;
    for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m) {
      const std::size_t unit = static_cast<std::size_t>(action.stage) * microbatches + static_cast<std::size_t>(m);
      if (seen.emplace(action.stage, run_of[unit]).second) last[i] = true;
    }
  }
  return last;
}

}  // namespace

Schedule with_gathers(Schedule schedule, bool turns) {
  if (schedule.slices > 1) fail_sharded_slices(concat(schedule.name.empty() ? "schedule" : schedule.name, ": UNSHARD"));
  schedule.cells.clear();
  const std::size_t stages = static_cast<std::size_t>(schedule.stages()), microbatches = static_cast<std::size_t>(schedule.microbatches());
  for (std::vector<Action>& row : schedule.actors) std::erase_if(row, [](const Action& action) { return is_sharding(action.kind); });
  std::vector<std::int32_t> run_of(stages * microbatches, -1);
  std::vector<Gatherer> gatherers;
  for (const std::vector<Action>& row : schedule.actors)
    gatherers.emplace_back(row, run_of, microbatches, gatherers.empty() ? 0 : gatherers.back().next_run(), turns);
  for (std::size_t a = 0; a < schedule.actors.size(); ++a) {
    std::vector<Action> row = gatherers[a].row(last_of_runs(schedule.actors[a], run_of, microbatches));
    schedule.actors[a] = std::move(row);
  }
  return schedule;
}

}  // namespace penstock
