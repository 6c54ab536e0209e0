// SPDX-License-Identifier: Apache-2.0
// Where each piece of work of a table stands, what it needs, and the one walk over a table in an order in which it can run:
// validity, times and drawings are read off it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "penstock/table.h"
#include "schedule/kinds.h"

namespace penstock {

// "plan.csv:3:7", row and cell from 1; of a generated table the cell in which it is printed.
std::string place(const Schedule& schedule, Position p);
// "plan.csv:3:7: 2B1", as errors begin.
std::string named(const Schedule& schedule, Position p);

// Calls visit(Action, Position) for every action, row by row.
template <class Visit>
void for_each_action(const Schedule& schedule, Visit&& visit) {
  for (std::size_t a = 0; a < schedule.actors.size(); ++a)
    for (std::size_t i = 0; i < schedule.actors[a].size(); ++i)
      visit(schedule.actors[a][i], Position{static_cast<std::int32_t>(a), static_cast<std::int32_t>(i)});
}

// An index of the actions of a table whose stages are in `shape` and whose micro-batches are below `microbatches`. Refers to both; they
// must outlive it.
struct WorkIndex {
  const Schedule* schedule = nullptr;
  const StageShape* shape = nullptr;
  std::int32_t microbatches = 0;
  // By stage: the stages it feeds, and those of them that have a backward.
  std::vector<std::vector<std::int32_t>> successors, backward_successors;
  // At stage * microbatches + micro-batch. backward: of B or I. weight: of W, or of B, which includes it.
  std::vector<Position> forward, backward, weight;
  // At the same place; empty where the table has none at all.
  std::vector<Position> recompute, offload, reload;
  // Likewise, in a table of several steps: where the W is the last of its step and stage on another actor than the F's, the stage's U of
  // that step, which waits for it.
  std::vector<Position> update;
  // At the same place, by transfer_place(): sends of what an action makes, receives of what one needs. Empty: the table has none at all.
  std::array<std::vector<Position>, 4> transfers;
  bool has_sharding = false;  // UNSHARD, RESHARD or REDUCE_GRAD

  std::size_t unit(std::int32_t stage, std::int32_t microbatch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(microbatches) + static_cast<std::size_t>(microbatch);
  }
  const Action& at(Position p) const { return schedule->actors[p.actor][p.index]; }
  bool has_transfers() const { return !transfers[0].empty(); }
  // The action whose output a send sends, or which needs what a receive receives.
  Position user_of(const Action& transfer) const {
    const bool is_forward = transfer.kind == Kind::SEND_F || transfer.kind == Kind::RECV_F;
    return (is_forward ? forward : backward)[unit(transfer.stage, transfer.microbatch)];
  }
};

// `on_double(earlier, later)` is called where two actions do the same work; the earlier one stays in the index.
WorkIndex index_work(const Schedule& schedule, const StageShape& shape, std::int32_t microbatches,
                     const std::function<void(Position, Position)>& on_double);
// Takes a valid table.
WorkIndex index_work(const Schedule& schedule, const StageShape& shape, std::int32_t microbatches);

// For a U of a table in which U wait for other actors: the units of all slices of its stage and all micro-batches of its step; else none.
std::vector<std::size_t> units_updated(const WorkIndex& work, const Action& update);

// Calls visit(Position) for all that the action needs of others by name: F its predecessors' F; B and I the own F, its R or RELOAD, and
// the backward of the stages it feeds; W its I; R and OFFLOAD their F; RELOAD its OFFLOAD; U, in a table of several steps, the last W of
// its step on each other actor. Of what another actor makes it needs the send, where the table has sends, and a send needs what it sends.
// Nowhere positions are left out. What waits for UNSHARD and REDUCE_GRAD stands behind them in their row.
template <class Visit>
void for_each_need(const WorkIndex& work, const Action& action, Visit&& visit) {
  const auto need = [&](const std::vector<Position>& where, std::int32_t stage, std::int32_t m) {
    if (const Position p = where[work.unit(stage, m)]) visit(p);
  };
  const auto need_output = [&](const std::vector<Position>& made, Kind send, std::int32_t stage, std::int32_t m) {
    const bool is_sent = work.has_transfers() && made[work.unit(stage, m)].actor != made[work.unit(action.stage, m)].actor;
    need(is_sent ? work.transfers[transfer_place(send)] : made, stage, m);
  };
  const auto need_if_any = [&](const std::vector<Position>& where, std::int32_t m) {
    if (!where.empty()) need(where, action.stage, m);
  };
  for (std::int32_t m = action.microbatch; m >= 0 && m < action.microbatch + action.count; ++m) {
    switch (action.kind) {
      case Kind::F:
        for (std::int32_t s : work.shape->predecessors[action.stage]) need_output(work.forward, Kind::SEND_F, s, m);
        break;
      case Kind::B:
      case Kind::I:
        need(work.forward, action.stage, m);
        need_if_any(work.recompute, m);
        need_if_any(work.reload, m);
        for (std::int32_t s : work.backward_successors[action.stage]) need_output(work.backward, Kind::SEND_B, s, m);
        break;
      case Kind::W:
        need(work.backward, action.stage, m);
        break;
      case Kind::R:
      case Kind::OFFLOAD:
        need(work.forward, action.stage, m);
        break;
      case Kind::RELOAD:
        need_if_any(work.offload, m);
        break;
      case Kind::U:
        for (std::size_t unit : units_updated(work, action))
          if (work.update[unit]) visit(work.weight[unit]);
        break;
      case Kind::SEND_F:
      case Kind::SEND_B:
        visit(work.user_of(action));
        break;
      default:
        break;
    }
  }
}

// The other way round: calls visit(Position, stage, micro-batch) for all that needs something of the action but stands in its own row
// by rule (B, R, OFFLOAD and RELOAD stay with their F). `stage`: whose F, backward or W made what is needed or, of a backward, whom it
// is for.
template <class Visit>
void for_each_use(const WorkIndex& work, const Action& action, Visit&& visit) {
  const auto use = [&](const std::vector<Position>& where, std::int32_t at, std::int32_t stage, std::int32_t m) {
    if (const Position p = where[work.unit(at, m)]) visit(p, stage, m);
  };
  const std::size_t stage = action.stage;
  for (std::int32_t m = action.microbatch; m >= 0 && m < action.microbatch + action.count; ++m) {
    switch (action.kind) {
      case Kind::F:
        for (std::int32_t s : work.successors[stage]) use(work.forward, s, action.stage, m);
        if (work.shape->has_backward[stage]) use(work.backward, action.stage, action.stage, m);
        break;
      case Kind::I:
        use(work.weight, action.stage, action.stage, m);
        [[fallthrough]];
      case Kind::B:
        for (std::int32_t s : work.shape->predecessors[stage]) use(work.backward, s, s, m);
        break;
      case Kind::W:
        if (!work.update.empty()) use(work.update, action.stage, action.stage, m);
        break;
      default:
        break;
    }
  }
}

// The first need of `action` that has not run when `done[actor]` actions of each row have; nowhere if all have.
inline Position unmet_need(const WorkIndex& work, const Action& action, const std::vector<std::int32_t>& done) {
  Position unmet;
  for_each_need(work, action, [&](Position need) {
    if (!unmet && done[need.actor] <= need.index) unmet = need;
  });
  return unmet;
}

// Calls visit(Position) for every action that can run, each after the one before it in its row and after all that it needs. Returns how
// many of each row ran: all of them unless there is a cycle. Linear in actions and needs.
template <class Visit>
std::vector<std::int32_t> walk(const WorkIndex& work, Visit&& visit) {
  const auto& rows = work.schedule->actors;
  std::vector<std::size_t> offset(rows.size() + 1, 0);  // of each row in first_waiter
  for (std::size_t a = 0; a < rows.size(); ++a) offset[a + 1] = offset[a] + rows[a].size();
  // The actors that wait for an action, as a list: a blocked actor waits for exactly one.
  std::vector<std::int32_t> first_waiter(offset.back(), -1), next_waiter(rows.size(), -1);
  std::vector<std::int32_t> done(rows.size(), 0), awake;
  for (std::size_t a = rows.size(); a-- > 0;) awake.push_back(static_cast<std::int32_t>(a));

  while (!awake.empty()) {
    const std::int32_t actor = awake.back();
    awake.pop_back();
    const std::size_t a = actor;
    for (std::int32_t& i = done[a]; i < std::ssize(rows[a]);) {
      if (const Position need = unmet_need(work, rows[a][i], done)) {
        std::int32_t& first = first_waiter[offset[need.actor] + static_cast<std::size_t>(need.index)];
        next_waiter[a] = first;
        first = actor;
        break;
      }
      visit(Position{actor, i});
      std::int32_t waiter = first_waiter[offset[a] + static_cast<std::size_t>(i++)];
      for (; waiter >= 0; waiter = next_waiter[waiter]) awake.push_back(waiter);
    }
  }
  return done;
}

}  // namespace penstock
