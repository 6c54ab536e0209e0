// SPDX-License-Identifier: Apache-2.0
#include "search/improve.h"

#include <algorithm>
#include <optional>

#include "search/anneal.h"

namespace penstock {
namespace {

struct Place {
  std::size_t actor, index;
};

// Moves one step of a row and keeps the row possible by itself.
class RowMover {
 public:
  explicit RowMover(const Legs& legs) : legs_(legs), counts_(legs.legs.size()) {}

  // False where the row cannot be in the new order. May bring W forward.
  bool move(std::vector<Step>& row, std::size_t from, std::size_t to) {
    move_element(row, from, to);
    std::fill(counts_.begin(), counts_.end(), Counts{});
    std::int64_t live = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (row[i].kind == Kind::F && live + legs_[row[i].leg].live > legs_.limit && !bring_weight(row, i)) return false;
      if (!run(row[i], live)) return false;
    }
    return keeps_steps(legs_, row);
  }

 private:
  struct Counts {
    std::int32_t open = 0, pending = 0;  // forwards without backward, I without W
  };

  bool run(const Step& step, std::int64_t& live) {
    Counts& counts = counts_[at(step.leg)];
    if (step.kind == Kind::F) {
      ++counts.open;
      live += legs_[step.leg].live;
      return live <= legs_.limit;
    }
    if (step.kind == Kind::W ? counts.pending-- == 0 : counts.open-- == 0) return false;
    counts.pending += step.kind == Kind::I && legs_[step.leg].has_weight;
    if (legs_.frees(step)) live -= legs_[step.leg].live;
    return true;
  }

  // The next W whose I has run comes to i.
  bool bring_weight(std::vector<Step>& row, std::size_t i) const {
    const auto here = row.begin() + static_cast<std::ptrdiff_t>(i);
    const auto found =
        std::find_if(here, row.end(), [&](const Step& step) { return step.kind == Kind::W && counts_[at(step.leg)].pending > 0; });
    if (found == row.end()) return false;
    std::rotate(here, found, found + 1);
    return true;
  }

  const Legs& legs_;
  std::vector<Counts> counts_;
};

// Where each leg's k-th F and backward stand.
class Places {
 public:
  Places(const Legs& legs, const Rows& rows) : legs_(legs), index_(at(2 * legs.size() * legs.microbatches)) {
    std::vector<std::int32_t> counts(at(2 * legs.size()), 0);
    for (const auto& row : rows) {
      number_.emplace_back();
      for (std::size_t i = 0; i < row.size(); ++i) {
        const bool forward = row[i].kind == Kind::F;
        number_.back().push_back(row[i].kind == Kind::W ? -1 : counts[2 * row[i].leg + !forward]++);
        if (row[i].kind != Kind::W) index_[slot(row[i].leg, forward, number_.back().back())] = i;
      }
    }
  }

  Place of(std::int32_t leg, bool forward, std::int32_t k) const { return {at(legs_[leg].actor), index_[slot(leg, forward, k)]}; }
  std::int32_t number(Place place) const { return number_[place.actor][place.index]; }  // -1 of W

 private:
  std::size_t slot(std::int32_t leg, bool forward, std::int32_t k) const { return at((2 * leg + !forward) * legs_.microbatches + k); }

  const Legs& legs_;
  std::vector<std::size_t> index_;
  std::vector<std::vector<std::int32_t>> number_;
};

// From the end back to the start: the step before in the row where a step begins as that ends, else what it needs that ended last.
std::vector<Place> longest_path(const Legs& legs, const Rows& rows, const RowTimes& times) {
  const Places places(legs, rows);
  Place here{0, 0};
  for (std::size_t a = 0; a < rows.size(); ++a)
    if (!rows[a].empty() && times.end[a].back() == times.makespan) here = {a, rows[a].size() - 1};
  std::vector<Place> path;
  for (;;) {
    path.push_back(here);
    const Step step = rows[here.actor][here.index];
    const bool forward = step.kind == Kind::F, follows = here.index > 0;
    if (follows && (step.kind == Kind::W || times.end[here.actor][here.index - 1] == times.start[here.actor][here.index])) {
      --here.index;
      continue;
    }
    double latest = -1;
    Place from{};
    for (const LegNeed& need : forward ? legs[step.leg].forward_needs : legs[step.leg].backward_needs) {
      if (need.slot < 0) continue;
      const Place place = places.of(need.leg, forward, places.number(here));
      if (times.end[place.actor][place.index] > latest) latest = times.end[place.actor][place.index], from = place;
    }
    if (latest < 0) return path;
    here = from;
  }
}

struct Move {
  std::size_t actor, from, to;
};
// A change to a step of the path, or now and then to any; nothing where that would change nothing.
std::optional<Move> random_move(const Rows& rows, const std::vector<Place>& path, std::mt19937_64& random) {
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  Place place = path[below(path.size())];
  if (random() % 4 == 0) place.actor = below(rows.size()), place.index = 0;
  const std::vector<Step>& row = rows[place.actor];
  if (row.size() < 2) return {};
  if (place.index == 0) place.index = below(row.size());
  const std::size_t most = std::min<std::size_t>(row.size() - 1, 1 + below(12)), distance = 1 + below(most);
  const bool earlier = random() % 2 == 0;
  const std::size_t to = earlier ? place.index - std::min(place.index, distance) : std::min(place.index + distance, row.size() - 1);
  if (to == place.index || row[to] == row[place.index]) return {};
  return Move{place.actor, place.index, to};
}

}  // namespace

Improved improve(const Legs& legs, const Rows& rows, std::int64_t moves, double bound, std::mt19937_64& random,
                 const std::function<bool()>& is_late) {
  PartialRun run(legs);
  RowMover mover(legs);
  RowTimes times = time_rows(legs, rows, run), moved;
  Rows current = rows;
  Improved best{rows, times.makespan};
  std::vector<Place> path = longest_path(legs, current, times);
  std::size_t actor = 0;  // whose row has changed
  std::vector<Step> before;
  const auto goes_on = [&](std::int64_t n) { return best.makespan > bound * (1 + 1e-9) && (n % 64 != 0 || !is_late()); };
  const auto change = [&](double) -> std::optional<double> {
    const std::optional<Move> move = random_move(current, path, random);
    if (!move) return {};
    actor = move->actor;
    before = current[actor];
    if (!mover.move(current[actor], move->from, move->to)) return kInfinity;
    moved = time_rows(legs, current, run);
    return moved.makespan;
  };
  const auto settle = [&](double cost, bool stays) {
    if (!stays) {
      current[actor] = before;
      return;
    }
    times = std::move(moved);
    path = longest_path(legs, current, times);
    if (cost < best.makespan) best = {current, cost};
  };
  anneal(moves, LateAcceptance(times.makespan), goes_on, change, settle);
  return best;
}

}  // namespace penstock
