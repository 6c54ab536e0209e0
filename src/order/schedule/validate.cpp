// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"
#include "schedule/drained.h"
#include "schedule/kinds.h"
#include "schedule/slices.h"
#include "schedule/transfers.h"
#include "schedule/validate.h"
#include "schedule/versions.h"
#include "schedule/work.h"

namespace penstock {
namespace {

// The cell of an action, from 1; of a generated table the one it is printed in (a fused pair shares one).
std::int32_t column(const Schedule& schedule, Position p) {
  const std::size_t actor = static_cast<std::size_t>(p.actor), index = static_cast<std::size_t>(p.index);
  if (actor < schedule.cells.size()) return schedule.cells[actor][index];
  std::int32_t cell = 1;
  for (std::size_t i = 0; i < index; ++i) cell += !schedule.actors[actor][i].fused_with_next;
  return cell;
}

// The micro-batches that the table names. Throws where their largest number, which sizes everything after, is beyond what its forwards
// fill.
Microbatches named_microbatches(const Schedule& schedule) {
  std::int64_t forwards = 0, last = -1;
  Position largest;
  for_each_action(schedule, [&](const Action& action, Position here) {
    if (action.kind == Kind::F) forwards += action.count;
    const std::int64_t end = static_cast<std::int64_t>(action.microbatch) + action.count - 1;
    if (action.microbatch < 0 || end <= last) return;
    last = end;
    largest = here;
  });
  if (forwards == 0) throw Error(concat(title(schedule), ":1:1: the table has no forward"));
  if (last >= forwards) {
    throw Error(concat(named(schedule, largest), " names micro-batch ", last, " of a table with ", counted(forwards, "forward")),
                {"micro-batches are numbered from 0 without gaps"});
  }
  return {static_cast<std::int32_t>(last + 1), largest};
}

WorkIndex index_once(const Schedule& schedule, const StageShape& shape, std::int32_t microbatches) {
  return index_work(schedule, shape, microbatches, [&](Position earlier, Position later) {
    const std::string first = text_at(schedule, earlier);
    const std::string second = text_at(schedule, later);
    const auto is = [&](Position p, Kind kind) { return schedule.actors[p.actor][p.index].kind == kind; };
    const bool old_names = (is(earlier, Kind::B) && is(later, Kind::W)) || (is(earlier, Kind::W) && is(later, Kind::B));
    throw Error(concat(place(schedule, later), ": ", second, first == second ? " stands twice" : concat(" repeats work of ", first)),
                {concat(first, " stands at ", place(schedule, earlier)),
                 "each stage does F, and B or I and W, once per micro-batch, R or OFFLOAD and RELOAD at most once"},
                old_names ? "beside a W write I for the gradients of inputs, as PyTorch does now; older tables write B for it"
                          : "remove one of them");
  });
}

// Checks that actions which read a forward's residuals run on the actor that has them.
void check_places(const WorkIndex& work) {
  const Schedule& schedule = *work.schedule;
  for_each_action(schedule, [&](const Action& action, Position here) {
    if (action.kind != Kind::B && action.kind != Kind::I && !is_residual(action.kind)) return;
    const auto moves = [&](const std::vector<Position>& residuals, std::size_t unit) { return !residuals.empty() && residuals[unit]; };
    for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m) {
      const std::size_t unit = work.unit(action.stage, m);
      const Position forward = work.forward[unit];
      if (forward.actor == here.actor) continue;
      if (action.kind == Kind::I && !moves(work.recompute, unit) && !moves(work.offload, unit)) continue;
      throw Error(concat(named(schedule, here), " runs on actor ", here.actor, ", its forward on actor ", forward.actor),
                  {concat(text_at(schedule, forward), " stands at ", place(schedule, forward)),
                   is_host_copy(action.kind) ? "they move what the forward left, where it left it"
                                             : "B and R run where their forward left its residuals, and I with an R or OFFLOAD; W, and I "
                                               "without, may run elsewhere"},
                  concat("move ", text_at(schedule, here), " to row ", forward.actor + 1));
    }
  });
}

// A slice reads the keys and values of those before it where they are.
void check_slices(const WorkIndex& work) {
  const Schedule& schedule = *work.schedule;
  if (schedule.slices == 1) return;
  for_each_action(schedule, [&](const Action& action, Position here) {
    const StagePart part = part_of(action.stage, schedule.slices, schedule.blocks);
    if (action.kind != Kind::F || part.slice == 0 || part.block >= 0) return;
    const std::int32_t slice_before = number_of({part.stage, part.slice - 1}, schedule.slices, schedule.blocks);
    for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m) {
      const Position before = work.forward[work.unit(slice_before, m)];
      if (!before || before.actor == here.actor) continue;
      throw Error(concat(named(schedule, here), " runs on actor ", here.actor, ", the slice before it on actor ", before.actor),
                  {concat(text_at(schedule, before), " stands at ", place(schedule, before)),
                   "a slice reads the keys and values of the slices before it, where these left them"},
                  concat("move ", text_at(schedule, here), " to row ", before.actor + 1));
    }
  });
}

// Checks that residuals which are offloaded come back, and are not computed again.
void check_residuals(const WorkIndex& work) {
  if (work.offload.empty() && work.reload.empty()) return;
  const Schedule& schedule = *work.schedule;
  const auto of = [](const std::vector<Position>& where, std::size_t unit) { return where.empty() ? Position{} : where[unit]; };
  for (std::size_t unit = 0; unit < work.forward.size(); ++unit) {
    const Position offload = of(work.offload, unit), reload = of(work.reload, unit), again = of(work.recompute, unit);
    if (static_cast<bool>(offload) != static_cast<bool>(reload)) {
      const Position there = offload ? offload : reload;
      const Kind missing = offload ? Kind::RELOAD : Kind::OFFLOAD;
      const std::size_t microbatches = work.microbatches;
      const std::string unit_name =
          unit_text(schedule, static_cast<std::int32_t>(unit / microbatches), missing, static_cast<std::int32_t>(unit % microbatches));
      throw Error(concat(named(schedule, there), offload ? " is never reloaded" : " was never offloaded"),
                  {concat(unit_name, " is missing")},
                  concat("add it ", offload ? "before the backward" : "after the forward", ", or leave out ", text_at(schedule, there)));
    }
    if (offload && again) {
      throw Error(concat(named(schedule, again), " computes again what ", text_at(schedule, reload), " brings back"),
                  {concat(text_at(schedule, offload), " stands at ", place(schedule, offload))}, "leave out one or the other");
    }
  }
}

// For one actor's row: what its UNSHARD, RESHARD and REDUCE_GRAD do to each stage, all its slices together.
class Shards {
 public:
  Shards(const Schedule& schedule, std::size_t actor) : schedule_(schedule), actor_(actor) {
    for (const Action& action : schedule.actors[actor]) of(action).sharded |= action.kind == Kind::UNSHARD;
  }

  void check() {
    const std::vector<Action>& row = schedule_.actors[actor_];
    for (std::size_t i = 0; i < row.size(); ++i) check(row[i], Position{static_cast<std::int32_t>(actor_), static_cast<std::int32_t>(i)});
    for (const auto& [number, stage] : stages_) {
      if (!stage.last_reduced || !stage.unreduced) continue;
      throw Error(concat(named(stage.unreduced), ": its gradient is never reduced"),
                  {concat("the last ", text_at(schedule_, stage.last_reduced), " of actor ", actor_, " stands at ",
                          place(schedule_, stage.last_reduced))},
                  concat("move it behind ", text_at(schedule_, stage.unreduced), ", or add one there"));
    }
  }

 private:
  struct Stage {
    bool sharded = false;                // while not gathered: somewhere in the row it is
    bool gathered = false;               // now
    Position unreduced{}, last_reduced;  // the last action whose gradient no REDUCE_GRAD follows yet; the last of those
  };
  Stage& of(const Action& action) { return stages_[whole_stage(action, schedule_)]; }
  std::string named(Position p) const { return penstock::named(schedule_, p); }

  void check(const Action& action, Position here) {
    Stage& stage = of(action);
    const std::string gather = concat(whole_stage(action, schedule_), name(Kind::UNSHARD));
    switch (action.kind) {
      case Kind::UNSHARD:
        if (stage.gathered) throw Error(concat(named(here), " gathers what actor ", actor_, " still has"), {}, "leave it out");
        stage.gathered = true;
        return;
      case Kind::RESHARD:
        if (!stage.gathered)
          throw Error(concat(named(here), " drops what actor ", actor_, " has not gathered"), {concat("no ", gather, " stands before it")});
        stage.gathered = false;
        return;
      case Kind::REDUCE_GRAD:
        if (!stage.unreduced)
          throw Error(concat(named(here), " has nothing to reduce"),
                      {concat("neither B nor W of stage ", whole_stage(action, schedule_), " stands before it on actor ", actor_,
                              stage.last_reduced ? ", behind the last one" : "")});
        stage.last_reduced = here;
        stage.unreduced = {};
        return;
      default:
        break;
    }
    // A weight gradient reads activations and what its input gradient left.
    if (stage.sharded && !stage.gathered && action.kind != Kind::W && (is_compute(action.kind) || action.kind == Kind::R))
      throw Error(concat(named(here), " finds its parameters sharded"),
                  {concat("actor ", actor_, " gathers those of stage ", whole_stage(action, schedule_), ", but they are not there")},
                  concat("add ", gather, " before it"));
    if (action.kind == Kind::B || action.kind == Kind::W) stage.unreduced = here;
  }

  const Schedule& schedule_;
  std::size_t actor_;
  std::map<std::int32_t, Stage> stages_;  // those of the row
};

// One "A needs B" of a circle, and where A and B stand; B's actor is stuck at `head`.
struct Link {
  Position waits, needs, head;
};

std::vector<Link> circle(const WorkIndex& work, const std::vector<std::int32_t>& done) {
  const auto stuck = [&](std::int32_t actor) { return Position{actor, done[actor]}; };
  const auto next = [&](Position head) { return unmet_need(work, work.at(head), done); };
  std::int32_t actor = 0;
  while (done[actor] == std::ssize(work.schedule->actors[actor])) ++actor;
  // After as many steps as there are actors the path is in the circle.
  for (std::size_t i = 0; i < done.size(); ++i) actor = next(stuck(actor)).actor;
  std::vector<Link> links;
  std::int32_t at = actor;
  do {
    const Position need = next(stuck(at));
    links.push_back({stuck(at), need, stuck(need.actor)});
    at = need.actor;
  } while (at != actor);
  // Begin with the lowest actor.
  std::rotate(links.begin(),
              std::min_element(links.begin(), links.end(), [](const Link& a, const Link& b) { return a.waits.actor < b.waits.actor; }),
              links.end());
  return links;
}

// The rest of a long circle tells no more.
void shorten(std::vector<std::string>& parts) {
  constexpr std::size_t kShown = 12;
  if (parts.size() <= kShown) return;
  const std::string rest = concat("... ", parts.size() - kShown, " more ...");
  parts.erase(parts.begin() + kShown / 2, parts.end() - kShown / 2);
  parts.insert(parts.begin() + kShown / 2, rest);
}

[[noreturn]] void fail_circular(const WorkIndex& work, const std::vector<std::int32_t>& done) {
  const Schedule& schedule = *work.schedule;
  const std::vector<Link> links = circle(work, done);
  const auto named = [&](Position p) { return text_at(schedule, p); };
  std::vector<std::string> parts, moves;
  for (const Link& link : links) {
    parts.push_back(concat(named(link.waits), " needs ", named(link.needs)));
    if (link.needs == link.head) continue;
    parts.push_back(concat("actor ", link.needs.actor, " runs ", named(link.needs), " after ", named(link.head)));
    const bool first = link.needs.actor == links.front().waits.actor;
    const std::int32_t from = column(schedule, link.needs), to = column(schedule, link.head);
    const std::string move = from == to
                                 ? concat("write ", named(link.needs), " before ", named(link.head), " in the fused pair of column ", to)
                             : first ? concat("move ", named(link.needs), " (column ", from, ") before column ", to)
                                     : concat(named(link.head), " after ", named(link.needs));
    first ? void(moves.insert(moves.begin(), move)) : moves.push_back(move);
  }
  shorten(parts);
  if (moves.size() > 2) moves.resize(2);
  std::string hint = join(moves, ", or ");
  if (!hint.starts_with("move") && !hint.starts_with("write")) hint = "move " + hint;
  const Position here = links.front().waits;
  throw Error(concat(place(schedule, here), ": ", named(here), " can never run (actor ", here.actor, ")"), {"cycle: " + join(parts, "; ")},
              hint);
}

// An update stands after all that its actor does for the stage, once.
void check_updates(const Schedule& schedule) {
  struct Seen {
    Position update;    // where the stage's U stands, looking back
    bool used = false;  // before it
  };
  for (std::size_t a = 0; a < schedule.actors.size(); ++a) {
    const std::vector<Action>& row = schedule.actors[a];
    std::map<std::int32_t, Seen> stages;  // those of the row
    for (std::size_t i = row.size(); i-- > 0;) {
      const std::int32_t number = whole_stage(row[i], schedule);
      Seen& stage = stages[number];
      const Position here{static_cast<std::int32_t>(a), static_cast<std::int32_t>(i)};
      if (row[i].kind == Kind::U && (stage.used || stage.update))
        throw Error(concat(named(schedule, here), " is too early: actor ", a, " goes on with stage ", number, " after it"),
                    {"a stage is updated once in a step, when its gradients are complete"},
                    concat("move it behind the stage's last action, or leave it out: what has no U is updated at the end"));
      if (row[i].kind == Kind::U)
        stage.update = here;
      else if (is_compute(row[i].kind) || row[i].kind == Kind::REDUCE_GRAD)
        stage.used = true;
    }
    for (const auto& [number, stage] : stages)
      if (stage.update && !stage.used)
        throw Error(concat(named(schedule, stage.update), ": actor ", a, " has nothing of stage ", number, " to update"));
  }
}

// Throws where a window's step begins on replicas of a stage before all of them have ended the step before.
void check_replicas(const Schedule& schedule, const StageShape& shape) {
  if (schedule.steps == 1) return;
  const std::vector<bool> spread = spread_stages(schedule);
  for (std::int32_t stage = 0; stage < std::ssize(spread); ++stage) {
    const std::int32_t first = number_of({stage}, schedule.slices, schedule.blocks);
    if (spread[stage] && shape.has_parameters[first] && shape.has_backward[first])
      return check_drained(schedule, shape,
                           concat("stage ", stage, " is on several actors, whose updates are of the gradients of all of them"));
  }
}

}  // namespace

std::string title(const Schedule& schedule) {
  return schedule.name.empty() ? "schedule" : schedule.name;
}

std::string text_at(const Schedule& schedule, Position p) {
  return text(schedule.actors[p.actor][p.index], schedule.slices, schedule.blocks);
}

std::string unit_text(const Schedule& schedule, std::int32_t stage, Kind kind, std::int32_t microbatch) {
  return text({stage, kind, microbatch}, schedule.slices, schedule.blocks);
}

std::string named(const Schedule& schedule, Position p) {
  return concat(place(schedule, p), ": ", text_at(schedule, p));
}

std::string place(const Schedule& schedule, Position p) {
  const int in_front = schedule.cells.empty() ? 0 : !schedule.predecessors.empty() + !schedule.forward_times.empty();
  return concat(title(schedule), ":", in_front + p.actor + 1, ":", column(schedule, p));
}

void validate(const Schedule& schedule, const StageShape& shape, int microbatches) {
  const Microbatches step = microbatches >= 0 ? Microbatches{microbatches, {}} : named_microbatches(schedule);
  const std::int32_t count = step.count;
  if (static_cast<double>(count) * static_cast<double>(shape.predecessors.size()) > kMostForwards) {
    throw Error(concat(title(schedule), ": ", counted(static_cast<std::int64_t>(shape.predecessors.size()), "stage"), " x ",
                       counted(count, "micro-batch"), " are too many"),
                {concat("the product may be up to ", kMostForwards)});
  }
  check_model(schedule, shape, step);
  const WorkIndex work = index_once(schedule, shape, count);
  check_backwards(work);
  check_places(work);
  check_slices(work);
  check_residuals(work);
  check_transfers(work);
  if (schedule.steps == 1) check_updates(schedule);
  check_versions(schedule, shape, count);
  for (std::size_t a = 0; work.has_sharding && a < schedule.actors.size(); ++a) Shards(schedule, a).check();
  const std::vector<std::int32_t> done = walk(work, [](Position) {});
  for (std::size_t a = 0; a < done.size(); ++a) {
    if (done[a] < std::ssize(schedule.actors[a])) fail_circular(work, done);
  }
  check_replicas(schedule, shape);
}

}  // namespace penstock
