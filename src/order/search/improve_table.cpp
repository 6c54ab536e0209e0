// SPDX-License-Identifier: Apache-2.0
// Makes whole tables faster: their orders, and what they recompute and offload.
#include <algorithm>
#include <optional>

#include "base/numbers.h"
#include "schedule/table_live.h"
#include "search/anneal.h"
#include "search/judge.h"
#include "search/search_with_memory.h"

namespace penstock {
namespace {

using Row = std::vector<Action>;

class TableImprover {
 public:
  TableImprover(const SearchProblem& problem, std::mt19937_64& random) : problem_(problem), random_(random) {}

  Schedule improve(const Schedule& schedule, std::int64_t moves, const std::function<bool()>& is_late) {
    Schedule best = schedule, current = schedule, table;
    current.cells.clear();
    bool sharded = false;
    for (Row& row : current.actors) sharded |= std::erase_if(row, [](const Action& action) { return is_sharding(action.kind); }) > 0;
    double least = makespan(schedule);
    std::size_t changed = 0;  // the row that has changed
    Row before;
    const auto goes_on = [&](std::int64_t n) { return n % 16 != 0 || !is_late(); };
    const auto change_any = [&](double) -> std::optional<double> {
      changed = below(current.actors.size());
      Row& row = current.actors[changed];
      if (row.empty()) return {};
      before = row;
      if (!change(row)) return kInfinity;
      table = sharded ? with_gathers(current) : current;
      return makespan(table);
    };
    const auto settle = [&](double cost, bool stays) {
      if (!stays) current.actors[changed] = before;
      if (stays && cost < least * (1 - 1e-12)) least = cost, best = table;
    };
    anneal(moves, LateAcceptance(least), goes_on, change_any, settle);
    return best;
  }

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }

  // Infinity where it cannot run or holds too much.
  double makespan(const Schedule& schedule) const {
    const WorkIndex work = index_work(schedule, problem_.shape, problem_.microbatches);
    const std::vector<std::int32_t> ran = walk(work, [](Position) {});
    for (std::size_t a = 0; a < ran.size(); ++a)
      if (ran[a] < std::ssize(schedule.actors[a])) return kInfinity;
    const TableTime time = time_table(work, problem_.costs, {.network = problem_.network});
    return keeps_limit(problem_, time.peak()) ? time.makespan : kInfinity;
  }

  bool change(Row& row) {
    if (std::any_of(row.begin(), row.end(), [](const Action& action) { return action.fused_with_next; })) return false;
    const auto choice = random_() % 8;
    if (choice < 2 && (problem_.recompute || problem_.offload)) return toggle(row);
    return choice == 2 && problem_.whole && problem_.split ? split(row) : move(row);
  }

  // A random B becomes I and W, or the other way round.
  bool split(Row& row) {
    const std::size_t i = below(row.size());
    Action other = row[i];
    if (other.kind == Kind::B) {
      row[i].kind = Kind::I;
      other.kind = Kind::W;
      row.insert(row.begin() + static_cast<std::ptrdiff_t>(i) + 1, other);
      return true;
    }
    if (other.kind != Kind::I) return false;
    other.kind = Kind::W;
    const auto weight = std::find(row.begin(), row.end(), other);
    if (weight == row.end()) return false;  // there is none, or it is elsewhere
    row[i].kind = Kind::B;
    row.erase(weight);
    return true;
  }

  bool move(Row& row) {
    const std::size_t from = below(row.size()), distance = 1 + below(std::min<std::size_t>(row.size(), 12));
    const std::size_t to = random_() % 2 == 0 ? from - std::min(from, distance) : std::min(from + distance, row.size() - 1);
    if (from == to) return false;
    move_element(row, from, to);
    return true;
  }

  // A random forward's way, which is none, R or offloading, becomes another.
  bool toggle(Row& row) {
    const Action forward = row[below(row.size())];
    if (forward.kind != Kind::F || forward.count != 1 || !problem_.shape.has_backward[forward.stage]) return false;
    const auto is_of = [&](const Action& x) { return x.stage == forward.stage && x.microbatch == forward.microbatch; };
    const auto had = std::find_if(row.begin(), row.end(), [&](const Action& x) { return is_of(x) && is_residual(x.kind); });
    const Kind before = had == row.end() ? Kind::F : had->kind;
    std::erase_if(row, [&](const Action& x) { return is_of(x) && is_residual(x.kind); });
    std::vector<Kind> choices;  // F: neither
    for (const auto& [kind, allowed] : {std::pair{Kind::F, true}, {Kind::R, problem_.recompute}, {Kind::OFFLOAD, problem_.offload}})
      if (allowed && kind != before) choices.push_back(kind);
    const Kind choice = choices[below(choices.size())];
    if (choice == Kind::F) return true;
    const auto backward = std::find_if(row.begin(), row.end(), [&](const Action& x) {
      return x.stage == forward.stage && (x.kind == Kind::B || x.kind == Kind::I) && x.microbatch <= forward.microbatch &&
             forward.microbatch < x.microbatch + x.count;
    });
    if (backward == row.end()) return false;
    row.insert(backward, {forward.stage, choice == Kind::R ? Kind::R : Kind::RELOAD, forward.microbatch});
    if (choice == Kind::OFFLOAD)
      row.insert(std::find(row.begin(), row.end(), forward) + 1, {forward.stage, Kind::OFFLOAD, forward.microbatch});
    return true;
  }

  const SearchProblem& problem_;
  std::mt19937_64& random_;
};

}  // namespace

Schedule improve_table(const SearchProblem& problem, const Schedule& schedule, std::int64_t moves, std::mt19937_64& random,
                       const std::function<bool()>& is_late) {
  return TableImprover(problem, random).improve(schedule, moves, is_late);
}

}  // namespace penstock
