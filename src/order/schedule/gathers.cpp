// Fully sharded parameters (ZeRO-3, Rajbhandari et al., 1910.02054), at the grain of a table's stages: as ZeroPP (2402.03791) compares
// schedules. A run is what an actor does of one stage in one direction without anything of another between (weight gradients do not
// count: they need the activations and what their input gradient left). Each run gathers its stage and drops it. Who has to pay for gathers
// turns round without one: then a run is of a stage in whatever directions. All slices of a stage have its parameters, and so are of one
// run.
#include <algorithm>
#include <set>

#include "schedule/kinds.h"
#include "schedule/slices.h"

namespace penstock {
namespace {

struct Run {
  std::int32_t stage;  // its first slice
  bool forward;
  std::size_t begin, end;  // the first and the last of its pieces: actions, or fused actions as one
};

// The backward run that each slice of a stage belongs to in each micro-batch; of all actors.
struct BackwardRuns {
  const Schedule& schedule;
  std::size_t microbatches;
  std::vector<std::int32_t> run;

  explicit BackwardRuns(const Schedule& of_table)
      : schedule(of_table),
        microbatches(static_cast<std::size_t>(of_table.microbatches())),
        run(static_cast<std::size_t>(of_table.stages()) * microbatches, -1) {}
  std::int32_t& of(std::int32_t stage, std::int32_t microbatch) {
    return run[static_cast<std::size_t>(stage) * microbatches + static_cast<std::size_t>(microbatch)];
  }
};

// Gathers and reductions of one actor's row.
class Gatherer {
 public:
  // `first_run`: how many runs other actors have.
  Gatherer(const std::vector<Action>& row, BackwardRuns& backward, std::int32_t first_run, bool turns)
      : row_(row), backward_(backward), first_run_(first_run), turns_(turns) {
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
      const Action reduce{first_slice(row_[i].stage, backward_.schedule), Kind::REDUCE_GRAD};
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
      take(first_slice(action.stage, backward_.schedule), action.kind == Kind::F, piece_of_[i]);
      if (action.kind == Kind::F) continue;
      for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m) backward_.of(action.stage, m) = next_run() - 1;
    }
  }

  void take(std::int32_t stage, bool forward, std::size_t piece) {
    for (auto run = runs_.rbegin(); run != runs_.rend() && run->end == piece; ++run) {
      if (run->stage != stage) continue;
      run->forward = forward;  // a fused pair of one stage gathers it once
      return;
    }
    if (!runs_.empty() && runs_.back().stage == stage && (turns_ || runs_.back().forward == forward))
      runs_.back().end = piece;
    else
      runs_.push_back({stage, forward, piece, piece});
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
  BackwardRuns& backward_;
  std::int32_t first_run_;
  bool turns_;                         // a run may go on in the other direction
  std::vector<std::size_t> piece_of_;  // of each action
  std::vector<Run> runs_;
  std::vector<std::vector<Action>> before_;  // each piece, and behind the last
};

// By action of a row: whether it is the last there to add to the gradients of a backward run, its own or another actor's.
std::vector<bool> last_of_runs(const std::vector<Action>& row, BackwardRuns& backward) {
  std::vector<bool> last(row.size(), false);
  std::set<std::pair<std::int32_t, std::int32_t>> seen;  // stage, run
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
  BackwardRuns backward(schedule);
  std::vector<Gatherer> gatherers;
  for (const std::vector<Action>& row : schedule.actors)
    gatherers.emplace_back(row, backward, gatherers.empty() ? 0 : gatherers.back().next_run(), turns);
  for (std::size_t a = 0; a < schedule.actors.size(); ++a) {
    std::vector<Action> row = gatherers[a].row(last_of_runs(schedule.actors[a], backward));
    schedule.actors[a] = std::move(row);
  }
  return schedule;
}

}  // namespace penstock
