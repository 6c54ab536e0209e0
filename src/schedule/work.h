// Where each piece of work of a table stands, what it needs, and the one walk over a table in an order in which it can run:
// validity, times and drawings are read off it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "penstock/schedule.h"

namespace penstock {

struct Position {
  std::int32_t actor = -1;  // -1: nowhere
  std::int32_t index = -1;  // in the actor's row

  explicit operator bool() const { return actor >= 0; }
  bool operator==(const Position&) const = default;
};

// Of a table whose stages are in `shape` and whose micro-batches are below `microbatches`. Refers to both; they must outlive it.
struct WorkIndex {
  const Schedule* schedule = nullptr;
  const StageShape* shape = nullptr;
  std::int32_t microbatches = 0;
  // Of each stage: the stages it feeds that have a backward.
  std::vector<std::vector<std::int32_t>> backward_successors;
  // At stage * microbatches + micro-batch. backward: of B or I. weight: of W, or of B, which includes it.
  std::vector<Position> forward, backward, weight;

  std::size_t unit(std::int32_t stage, std::int32_t microbatch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(microbatches) + static_cast<std::size_t>(microbatch);
  }
  const Action& at(Position p) const { return schedule->actors[static_cast<std::size_t>(p.actor)][static_cast<std::size_t>(p.index)]; }
};

// `on_double(earlier, later)` is called where two actions do the same work; the earlier one stays in the index.
WorkIndex index_work(const Schedule& schedule, const StageShape& shape, std::int32_t microbatches,
                     const std::function<void(Position, Position)>& on_double);
// Of a valid table.
WorkIndex index_work(const Schedule& schedule, const StageShape& shape, std::int32_t microbatches);

// Calls visit(Position) for all that the action needs: F its predecessors' F; B and I the own F and the backward of the
// stages it feeds; W its I; R its F. Nowhere positions are left out.
template <class Visit>
void for_each_need(const WorkIndex& work, const Action& action, Visit&& visit) {
  const auto need = [&](const std::vector<Position>& where, std::int32_t stage, std::int32_t m) {
    if (const Position p = where[work.unit(stage, m)]) visit(p);
  };
  for (std::int32_t m = action.microbatch; m >= 0 && m < action.microbatch + action.count; ++m) {
    switch (action.kind) {
      case Kind::F:
        for (std::int32_t s : work.shape->predecessors[static_cast<std::size_t>(action.stage)]) need(work.forward, s, m);
        break;
      case Kind::B:
      case Kind::I:
        need(work.forward, action.stage, m);
        for (std::int32_t s : work.backward_successors[static_cast<std::size_t>(action.stage)]) need(work.backward, s, m);
        break;
      case Kind::W:
        need(work.backward, action.stage, m);
        break;
      case Kind::R:
        need(work.forward, action.stage, m);
        break;
      default:
        break;
    }
  }
}

// Visits every action that can run, each after the one before it in its row and after all that it needs. Returns how many of
// each row ran: all of them unless there is a cycle. Linear in actions and needs.
std::vector<std::int32_t> walk(const WorkIndex& work, const std::function<void(Position)>& visit);

// The first need of `action` that has not run when `done[actor]` actions of each row have; nowhere if all have.
Position unmet_need(const WorkIndex& work, const Action& action, const std::vector<std::int32_t>& done);

}  // namespace penstock
