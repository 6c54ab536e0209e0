// SPDX-License-Identifier: Apache-2.0
#include "support/random_schedule.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "penstock/error.h"
#include "schedule/transfers.h"
#include "schedule/work.h"

namespace penstock::test {
namespace {

// Makes a table from pieces of work. A piece becomes ready when all that it needs is done; the needs are those that make a table valid.
class ListScheduler {
 public:
  ListScheduler(Random& random, const StageShape& shape, int actors, int microbatches, const RandomScheduleOptions& options)
      : random_(random), shape_(shape), options_(options) {
    schedule_.actors.resize(static_cast<std::size_t>(actors));
    for (std::size_t s = 0; s < shape.predecessors.size(); ++s) {
      const int home = draw(random, 0, actors - 1);
      const bool split_stage = coin(random, options.split);
      for (int m = 0; m < microbatches; ++m) {
        const int actor = coin(random, options.replica) ? draw(random, 0, actors - 1) : home;
        const int stage = static_cast<int>(s);
        pending_.push_back({{stage, Kind::F, m}, actor});
        if (!shape.has_backward[s]) continue;
        if (options.mixed_split ? coin(random, options.split) : split_stage) {
          const bool is_apart = options.foreign_input > 0 && coin(random, options.foreign_input);
          pending_.push_back({{stage, Kind::I, m}, is_apart ? draw(random, 0, actors - 1) : actor});
          const int weight = coin(random, options.foreign_weight) ? draw(random, 0, actors - 1) : actor;
          if (shape.has_parameters[s] || coin(random, 0.5)) pending_.push_back({{stage, Kind::W, m}, weight});
        } else {
          pending_.push_back({{stage, Kind::B, m}, actor});
        }
      }
    }
  }

  Schedule run() {
    while (!pending_.empty()) {
      std::vector<std::size_t> ready;
      for (std::size_t i = 0; i < pending_.size(); ++i) {
        if (is_ready(pending_[i].first)) ready.push_back(i);
      }
      const std::size_t chosen = ready[static_cast<std::size_t>(draw(random_, 0, static_cast<int>(ready.size()) - 1))];
      const auto [action, actor] = pending_[chosen];
      schedule_.actors[static_cast<std::size_t>(actor)].push_back(action);
      done_.insert({action.stage, action.kind, action.microbatch});
      pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(chosen));
    }
    schedule_.name = "random";
    return schedule_;
  }

 private:
  bool did(int stage, Kind kind, int m) const { return done_.contains({stage, kind, m}); }
  bool did_backward(int stage, int m) const { return did(stage, Kind::B, m) || did(stage, Kind::I, m); }

  bool is_ready(const Action& action) const {
    const int s = action.stage, m = action.microbatch;
    if (action.kind == Kind::W) return did(s, Kind::I, m);
    if (action.kind == Kind::F) {
      const auto& before = shape_.predecessors[static_cast<std::size_t>(s)];
      return std::all_of(before.begin(), before.end(), [&](int p) { return did(p, Kind::F, m); });
    }
    if (!did(s, Kind::F, m)) return false;
    for (std::size_t after = 0; after < shape_.predecessors.size(); ++after) {
      const auto& before = shape_.predecessors[after];
      const bool feeds = std::find(before.begin(), before.end(), s) != before.end();
      if (feeds && shape_.has_backward[after] && !did_backward(static_cast<int>(after), m)) return false;
    }
    return true;
  }

  Random& random_;
  const StageShape& shape_;
  const RandomScheduleOptions& options_;
  Schedule schedule_;
  std::vector<std::pair<Action, int>> pending_;
  std::set<std::tuple<int, Kind, int>> done_;
};

// The row and index of a random action of the table that `wanted` accepts; row -1 where there is none.
template <class Wanted>
std::pair<int, int> pick(Random& random, const Schedule& schedule, Wanted&& wanted) {
  std::vector<std::pair<int, int>> found;
  for (std::size_t a = 0; a < schedule.actors.size(); ++a) {
    for (std::size_t i = 0; i < schedule.actors[a].size(); ++i) {
      if (wanted(schedule.actors[a][i])) found.emplace_back(static_cast<int>(a), static_cast<int>(i));
    }
  }
  if (found.empty()) return {-1, -1};
  return found[static_cast<std::size_t>(draw(random, 0, static_cast<int>(found.size()) - 1))];
}

std::pair<int, int> pick(Random& random, const Schedule& schedule) {
  return pick(random, schedule, [](const Action&) { return true; });
}

using Row = std::vector<Action>;

// Inserts the action at a random place from `low` to `high`; returns the place.
std::size_t insert(Random& random, Row& row, std::size_t low, std::size_t high, const Action& action) {
  const std::size_t place = static_cast<std::size_t>(draw(random, static_cast<int>(low), static_cast<int>(high)));
  row.insert(row.begin() + static_cast<std::ptrdiff_t>(place), action);
  return place;
}

void add_residuals(Random& random, Row& row, const Action& forward) {
  const int choice = draw(random, 0, 2);
  const std::int32_t s = forward.stage, m = forward.microbatch;
  const auto where = [&](auto&& is) {
    return static_cast<std::size_t>(
        std::find_if(row.begin(), row.end(), [&](const Action& x) { return x.stage == s && x.microbatch == m && is(x.kind); }) -
        row.begin());
  };
  const std::size_t after = where([](Kind kind) { return kind == Kind::F; }) + 1;
  const std::size_t before = where([](Kind kind) { return kind == Kind::B || kind == Kind::I; });
  if (before == row.size()) return;  // on another actor
  if (choice == 0) insert(random, row, after, before, {s, Kind::R, m});
  if (choice != 1) return;
  const std::size_t offload = insert(random, row, after, before, {s, Kind::OFFLOAD, m});
  insert(random, row, offload + 1, before + 1, {s, Kind::RELOAD, m});
}

void add_sharding(Random& random, Row& row, std::int32_t s) {
  std::vector<std::size_t> uses, gradients;  // where the stage's parameters are read; where its gradients are made
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (row[i].stage != s || row[i].kind > Kind::R) continue;
    if (row[i].kind != Kind::W) uses.push_back(i);
    if (row[i].kind == Kind::B || row[i].kind == Kind::W) gradients.push_back(i);
  }
  const bool shards = coin(random, 0.5);
  if (!gradients.empty() && coin(random, 0.5)) row.push_back({s, Kind::U});  // after everything else
  // From the back, so that earlier places do not move.
  for (std::size_t i = gradients.size(); shards && i-- > 0;) {
    const bool last = i + 1 == gradients.size();
    if (last || coin(random, 0.3))
      insert(random, row, gradients[i] + 1, last ? gradients[i] + 1 : gradients[i + 1], {s, Kind::REDUCE_GRAD});
  }
  if (!shards || uses.empty()) return;
  uses.clear();
  for (std::size_t i = 0; i < row.size(); ++i)
    if (row[i].stage == s && row[i].kind <= Kind::R && row[i].kind != Kind::W) uses.push_back(i);
  if (coin(random, 0.5)) insert(random, row, uses.back() + 1, row.size() - (row.back() == Action{s, Kind::U}), {s, Kind::RESHARD});
  for (std::size_t i = uses.size(); --i > 0;) {
    if (coin(random, 0.7)) continue;
    const std::size_t dropped = insert(random, row, uses[i - 1] + 1, uses[i], {s, Kind::RESHARD});
    insert(random, row, dropped + 1, uses[i] + 1, {s, Kind::UNSHARD});
  }
  insert(random, row, 0, uses[0], {s, Kind::UNSHARD});
}

BrokenTable repeat(Random& random, Schedule table) {
  const auto [a, i] = pick(random, table);
  const Action action = table.actors[static_cast<std::size_t>(a)][static_cast<std::size_t>(i)];
  Row& row = table.actors[static_cast<std::size_t>(draw(random, 0, static_cast<int>(table.actors.size()) - 1))];
  row.insert(row.begin() + draw(random, 0, static_cast<int>(row.size())), action);
  return {"doubled", print(table), text(action) + " stands twice"};
}

// Drops an action, but no W of a stage without parameters, which may be absent.
BrokenTable drop(Random& random, Schedule table, const StageShape& shape) {
  const auto [a, i] =
      pick(random, table, [&](const Action& x) { return x.kind != Kind::W || shape.has_parameters[static_cast<std::size_t>(x.stage)]; });
  Row& row = table.actors[static_cast<std::size_t>(a)];
  const Action dropped = row[static_cast<std::size_t>(i)];
  row.erase(row.begin() + i);
  if (table.stages() == 0) return repeat(random, {.name = table.name, .actors = {{dropped}}, .cells = {}});
  return {"missing", print(table), text(dropped) + (dropped.kind == Kind::B ? " or" : " is missing")};
}

// Puts a backward before its own forward, which makes the shortest circle.
BrokenTable reverse(Random& random, Schedule table) {
  const auto [a, i] = pick(random, table, [](const Action& x) { return x.kind == Kind::B || x.kind == Kind::I; });
  if (a < 0) return repeat(random, std::move(table));
  Row& row = table.actors[static_cast<std::size_t>(a)];
  const Action backward = row[static_cast<std::size_t>(i)];
  const auto forward = std::find(row.begin(), row.end(), Action{backward.stage, Kind::F, backward.microbatch});
  if (forward == row.end()) return repeat(random, std::move(table));  // on another actor
  std::rotate(forward, row.begin() + i, row.begin() + i + 1);
  return {"circular", print(table), "can never run"};
}

BrokenTable rename(Random& random, Schedule table, const StageShape& shape) {
  const auto [a, i] = pick(random, table);
  Action& action = table.actors[static_cast<std::size_t>(a)][static_cast<std::size_t>(i)];
  action.stage = static_cast<int>(shape.predecessors.size()) + draw(random, 0, 3);
  return {"unknown stage", print(table), text(action) + " names "};
}

BrokenTable move_backward(Random& random, Schedule table) {
  const auto [a, i] = pick(random, table, [](const Action& x) { return x.kind == Kind::B; });
  if (a < 0 || table.actors.size() < 2) return repeat(random, std::move(table));
  Row& row = table.actors[static_cast<std::size_t>(a)];
  const Action action = row[static_cast<std::size_t>(i)];
  row.erase(row.begin() + i);
  const int other = (a + draw(random, 1, static_cast<int>(table.actors.size()) - 1)) % static_cast<int>(table.actors.size());
  table.actors[static_cast<std::size_t>(other)].push_back(action);
  return {"backward away from its forward", print(table), concat(text(action), " runs on actor ", other)};
}

BrokenTable tear(Random& random, const Schedule& table) {
  std::string csv = print(table);
  std::vector<std::size_t> letters;
  for (std::size_t at = 0; at < csv.size(); ++at) {
    if (csv[at] >= 'A' && csv[at] <= 'Z') letters.push_back(at);
  }
  const std::size_t at = letters[static_cast<std::size_t>(draw(random, 0, static_cast<int>(letters.size()) - 1))];
  csv[at] = "?Q#\x01 -\"f"[draw(random, 0, 7)];
  return {"unreadable cell", csv, "cannot read", true};
}

}  // namespace

int draw(Random& random, int low, int high) {
  if (low > high) throw std::logic_error("no number lies in [" + std::to_string(low) + ", " + std::to_string(high) + "]");
  return std::uniform_int_distribution<int>(low, high)(random);
}

bool coin(Random& random, double probability) {
  return std::bernoulli_distribution(probability)(random);
}

StageShape random_shape(Random& random, const RandomShapeOptions& options) {
  const std::size_t stages = static_cast<std::size_t>(draw(random, 1, options.most_stages));
  StageShape shape;
  shape.predecessors.resize(stages);
  for (std::size_t s = 0; s < stages; ++s) {
    std::vector<std::int32_t>& before = shape.predecessors[s];
    for (std::size_t p = 0; p < s; ++p) {
      if (coin(random, options.edge)) before.push_back(static_cast<std::int32_t>(p));
    }
    if (before.empty() && s > 0) before.push_back(draw(random, 0, static_cast<int>(s) - 1));
    // A stage has a backward if its own or earlier parameters need gradients.
    const bool fed = std::any_of(before.begin(), before.end(), [&](int p) { return shape.has_backward[static_cast<std::size_t>(p)]; });
    shape.has_backward.push_back(fed || !coin(random, options.no_backward));
    shape.has_parameters.push_back(!coin(random, options.no_parameters));
  }
  return shape;
}

Schedule random_schedule(Random& random, const StageShape& shape, int actors, int microbatches, const RandomScheduleOptions& options) {
  return ListScheduler(random, shape, actors, microbatches, options).run();
}

Schedule with_recomputation(Random& random, Schedule schedule, double share, bool late) {
  schedule.cells.clear();
  for (auto& row : schedule.actors) {
    for (Action& action : row) action.fused_with_next = false;
    for (std::size_t b = 0; b < row.size(); ++b) {
      Action again = row[b];
      if ((again.kind != Kind::B && again.kind != Kind::I) || !coin(random, share)) continue;
      const auto forward = std::find(row.begin(), row.end(), Action{again.stage, Kind::F, again.microbatch}) - row.begin();
      if (forward == std::ssize(row)) continue;  // on another actor
      again.kind = Kind::R;
      row.insert(row.begin() + (late ? static_cast<int>(b) : draw(random, static_cast<int>(forward) + 1, static_cast<int>(b))), again);
      ++b;
    }
  }
  return schedule;
}

Schedule with_host_copies(Random& random, Schedule schedule, double probability) {
  schedule.cells.clear();
  for (std::vector<Action>& row : schedule.actors) {
    const std::vector<Action> before = row;
    for (const Action& forward : before) {
      if (forward.kind != Kind::F || !coin(random, probability)) continue;
      const auto at = [&](auto test) { return static_cast<int>(std::find_if(row.begin(), row.end(), test) - row.begin()); };
      const auto same = [&](const Action& a) { return a.stage == forward.stage && a.microbatch == forward.microbatch; };
      const int f = at([&](const Action& a) { return same(a) && a.kind == Kind::F; });
      const int b = at([&](const Action& a) { return same(a) && (a.kind == Kind::B || a.kind == Kind::I); });
      const int r = at([&](const Action& a) { return same(a) && a.kind == Kind::R; });
      if (b == static_cast<int>(row.size()) || r < static_cast<int>(row.size())) continue;
      const int reload = draw(random, f + 1, b), offload = draw(random, f + 1, reload);
      Action copy = forward;
      copy.kind = Kind::RELOAD;
      row.insert(row.begin() + reload, copy);
      copy.kind = Kind::OFFLOAD;
      row.insert(row.begin() + offload, copy);
    }
  }
  return schedule;
}

Schedule with_extras(Random& random, Schedule schedule, const StageShape& shape) {
  for (Row& row : schedule.actors) {
    const Row plain = row;
    for (const Action& action : plain) {
      if (action.kind == Kind::F && shape.has_backward[static_cast<std::size_t>(action.stage)]) add_residuals(random, row, action);
    }
    for (std::int32_t s = 0; s < static_cast<std::int32_t>(shape.predecessors.size()); ++s) add_sharding(random, row, s);
  }
  schedule.cells.clear();
  return schedule;
}

Schedule with_pairs(Random& random, Schedule schedule, double probability) {
  schedule.cells.clear();
  for (Row& row : schedule.actors)
    for (std::size_t i = 0; i + 1 < row.size(); ++i) {
      if (row[i].kind > Kind::W || row[i + 1].kind > Kind::W || !coin(random, probability)) continue;
      row[i++].fused_with_next = true;
    }
  return schedule;
}

Schedule with_counts(Random& random, Schedule schedule, const StageShape& shape, double probability) {
  schedule.cells.clear();
  for (std::size_t actor = 0; actor < schedule.actors.size(); ++actor)
    for (std::size_t i = 0; i + 1 < schedule.actors[actor].size();) {
      const Row before = schedule.actors[actor];
      const Action first = before[i], second = before[i + 1];
      const bool follows = first.kind == second.kind && first.stage == second.stage && second.microbatch == first.microbatch + first.count;
      bool joined = follows && coin(random, probability);
      if (joined) {
        Row& row = schedule.actors[actor];
        row[i].count += second.count;
        row.erase(row.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        try {
          validate(schedule, shape);
        } catch (const Error&) {  // the first action's result now comes too late for another
          row = before;
          joined = false;
        }
      }
      i += !joined;
    }
  return schedule;
}

BrokenTable break_table(Random& random, const Schedule& schedule, const StageShape& shape) {
  switch (draw(random, 0, 5)) {
    case 0:
      return drop(random, schedule, shape);
    case 1:
      return repeat(random, schedule);
    case 2:
      return reverse(random, schedule);
    case 3:
      return rename(random, schedule, shape);
    case 4:
      return move_backward(random, schedule);
    default:
      return tear(random, schedule);
  }
}

namespace {

bool makes_gradient(const Action& action) {
  return action.kind == Kind::B || action.kind == Kind::W;
}

// Where a row has such an action, one of them; -1: none.
template <class Wanted>
std::ptrdiff_t pick(Random& random, const std::vector<Action>& row, const Wanted& wanted) {
  std::vector<std::ptrdiff_t> found;
  for (std::size_t i = 0; i < row.size(); ++i)
    if (wanted(row[i])) found.push_back(static_cast<std::ptrdiff_t>(i));
  return found.empty() ? -1 : found[draw(random, 0, static_cast<int>(found.size()) - 1)];
}

}  // namespace

Schedule random_window(Random& random, const StageShape& shape, int actors, int microbatches, int steps, double foreign) {
  const Schedule once = random_schedule(random, shape, actors, microbatches * steps, {.foreign_weight = foreign, .foreign_input = foreign});
  const std::vector<std::int32_t> owner = actor_of_stage(once);
  const auto row_of = [](Schedule& schedule, int actor) -> Row& { return schedule.actors[static_cast<std::size_t>(actor)]; };
  Schedule table{.name = once.name, .actors = std::vector<Row>(once.actors.size()), .cells = {}, .steps = steps};
  std::map<std::pair<int, int>, int> left;  // gradients to come, by stage and step
  for (const Row& row : once.actors)
    for (const Action& action : row) left[{action.stage, action.microbatch / microbatches}] += makes_gradient(action);
  std::map<int, int> made;  // updates, by stage
  const auto update = [&](int stage, bool always) {
    while (made[stage] < steps && left[{stage, made[stage]}] == 0 && (always || coin(random, 0.6)))
      row_of(table, owner[static_cast<std::size_t>(stage)]).push_back({stage, Kind::U, ++made[stage] * microbatches - 1});
  };
  // In an order in which all can run, so that what a U waits for elsewhere never waits for what stands behind the U.
  const WorkIndex work = index_work(once, shape, microbatches * steps);
  walk(work, [&](Position here) {
    Action action = work.at(here);
    const int now = made[action.stage];
    if (action.kind == Kind::F && coin(random, 0.7)) action.version = draw(random, std::max(0, now - 3), now);
    const bool is_home = here.actor == owner[static_cast<std::size_t>(action.stage)];
    if ((action.kind == Kind::B || action.kind == Kind::I) && is_home && coin(random, 0.2)) action.version = draw(random, 0, now);
    row_of(table, here.actor).push_back(action);
    left[{action.stage, action.microbatch / microbatches}] -= makes_gradient(action);
    update(action.stage, false);
  });
  for (const auto& [stage, count] : std::map<int, int>(made)) update(stage, true);
  return table;
}

BrokenTable break_window(Random& random, const Schedule& table) {
  for (;;) {
    Schedule broken = table;
    std::vector<Action>& row = broken.actors[draw(random, 0, static_cast<int>(broken.actors.size()) - 1)];
    const auto is_update = [](const Action& action) { return action.kind == Kind::U; };
    const auto update = pick(random, row, is_update);
    if (update < 0) continue;
    const Action of = row[update];
    const auto finish = [&](const std::string& kind, const std::string& expected) { return BrokenTable{kind, print(broken), expected}; };
    switch (draw(random, 0, 4)) {
      case 0: {
        const auto reader = pick(random, row, [&](const Action& action) { return action.kind == Kind::F && action.stage == of.stage; });
        row[reader].version = static_cast<std::int32_t>(
            std::count_if(row.begin(), row.begin() + reader, [&](const Action& a) { return is_update(a) && a.stage == of.stage; }) + 1);
        return finish("version",
                      concat(text(row[reader]), " reads version ", row[reader].version, " of stage ", of.stage, ", which is not made yet"));
      }
      case 1: {
        // Other rows still say how many steps there are, or the last of this row does.
        if (table.actors.size() < 2 ||
            std::ranges::none_of(broken.actors, [&](const auto& other) { return &other != &row && std::ranges::any_of(other, is_update); }))
          continue;
        row.erase(row.begin() + update);
        return finish("missing", "");
      }
      case 2:
        row.insert(row.begin() + update, of);
        return finish("doubled", "");
      case 3: {
        const auto gradient = pick(random, row, [&](const Action& action) {
          return makes_gradient(action) && action.stage == of.stage &&
                 action.microbatch / table.step_microbatches() == of.microbatch / table.step_microbatches();
        });
        if (gradient > update) continue;
        row.erase(row.begin() + update);
        row.insert(row.begin() + gradient, of);
        return finish("lost", "");
      }
      default:
        if (table.step_microbatches() == 1) continue;
        row[update].microbatch -= 1;
        return finish("number", "");
    }
  }
}

Schedule with_moved_sends(Random& random, Schedule schedule, const StageShape& shape) {
  for (int move = 0; move < 20; ++move) {
    Schedule moved = schedule;
    std::vector<Action>& row = moved.actors[static_cast<std::size_t>(draw(random, 0, static_cast<int>(moved.actors.size()) - 1))];
    if (row.size() < 2) continue;
    const auto from = draw(random, 0, static_cast<int>(row.size()) - 1), to = draw(random, 0, static_cast<int>(row.size()) - 1);
    const Action send = row[static_cast<std::size_t>(from)];
    if (!is_send(send.kind)) continue;
    row.erase(row.begin() + from);
    row.insert(row.begin() + to, send);
    const WorkIndex work = index_work(moved, shape, moved.microbatches());
    const std::vector<std::int32_t> ran = walk(work, [](Position) {});
    bool runs = true;
    for (std::size_t a = 0; a < ran.size(); ++a) runs = runs && ran[a] == std::ssize(moved.actors[a]);
    if (runs) schedule = std::move(moved);
  }
  return schedule;
}

Schedule with_transfers(Random& random, const Schedule& schedule, const StageShape& shape) {
  const Schedule moved = with_moved_sends(random, with_sends(schedule, shape), shape);
  return with_receives(moved, shape, time_table(moved, shape, uniform_costs(moved), {.record = true}));
}

}  // namespace penstock::test
