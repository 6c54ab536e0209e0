#include <algorithm>
#include <map>

#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"
#include "schedule/idle.h"
#include "schedule/kinds.h"
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

std::string title(const Schedule& schedule) {
  return schedule.name.empty() ? "schedule" : schedule.name;
}

const Action& at(const Schedule& schedule, Position p) {
  return schedule.actors[p.actor][p.index];
}

std::string text_at(const Schedule& schedule, Position p) {
  return text(at(schedule, p), schedule.slices, schedule.blocks);
}

std::string unit_text(const Schedule& schedule, std::int32_t stage, Kind kind, std::int32_t microbatch) {
  return text({stage, kind, microbatch}, schedule.slices, schedule.blocks);
}

std::string stage_of(const Schedule& schedule, const Action& action) {
  return stage_text(action.stage, schedule.slices, schedule.blocks);
}

std::string range_text(std::int64_t count) {
  return count == 1 ? "only 0" : concat("0 to ", count - 1);
}

template <class Visit>
void for_each_action(const Schedule& schedule, Visit&& visit) {
  for (std::size_t a = 0; a < schedule.actors.size(); ++a) {
    for (std::size_t i = 0; i < schedule.actors[a].size(); ++i) {
      visit(schedule.actors[a][i], Position{static_cast<std::int32_t>(a), static_cast<std::int32_t>(i)});
    }
  }
}

// Checks that each action names a stage and a micro-batch that exist.
void check_names(const Schedule& schedule, const StageShape& shape, std::int32_t microbatches) {
  const std::int64_t entries = std::ssize(shape.predecessors), stages = (entries - std::ssize(shape.blocks)) / schedule.slices;
  for_each_action(schedule, [&](const Action& action, Position here) {
    const auto where = [&] { return place(schedule, here) + ": " + text_at(schedule, here); };
    if (action.stage < 0 || action.stage >= entries) {
      throw Error(
          concat(where(), " names an unknown stage"),
          {concat("the model has ", counted(stages, "stage"), ", ", range_text(stages), "; the table names ", schedule.whole_stages())},
          "use a table made for this number of stages, or cut the model into as many");
    }
    if (is_transfer(action.kind))
      throw Error(concat(where(), " is a transfer"), {"transfers follow from the table and are not part of it"});
    if (is_sharding(action.kind) && (action.microbatch >= 0 || action.count != 1)) {
      throw Error(concat(where(), " names a micro-batch"), {"parameters, and the sum of gradients, belong to a stage"},
                  concat("write ", text({action.stage, action.kind}, schedule.slices, schedule.blocks)));
    }
    if (action.microbatch < 0 && !needs_microbatch(action.kind)) return;
    if (action.microbatch < 0 || action.count < 1 || action.microbatch >= microbatches || action.count > microbatches - action.microbatch) {
      throw Error(
          concat(where(), " names an unknown micro-batch"),
          {concat(schedule.steps > 1 ? concat(schedule.steps, " steps have ") : "a step has ", counted(microbatches, "micro-batch"), ", ",
                  range_text(microbatches))},
          schedule.steps > 1 ? "the last step has no next one whose work it could do" : "change the number of micro-batches, or the table");
    }
    const bool backward = action.kind != Kind::F && is_compute(action.kind);
    if ((backward || is_residual(action.kind)) && !shape.has_backward[action.stage]) {
      throw Error(concat(where(), backward ? " is a backward of a stage without" : " prepares a backward of a stage without"),
                  {concat("stage ", stage_of(schedule, action), " only runs forward")},
                  "leave it out, or use a table made with --forward-only");
    }
  });
}

// A generated table's stages with a forward alone are not trained.
void check_forward_stages(const Schedule& schedule, const StageShape& shape) {
  for (std::int32_t stage = 0; stage < std::ssize(schedule.forward_times); ++stage)
    if (shape.has_backward[number_of({stage}, schedule.slices, schedule.blocks)])
      throw Error(concat(title(schedule), ": stage ", stage, " is trained, and the table has its forward alone"), {},
                  "let pipeline.frozen have a time for each of the model's frozen stages, which are in front, and for no other");
}

bool are_in_order(const std::vector<std::vector<std::int32_t>>& predecessors, std::int32_t stages) {
  for (std::int32_t stage = 0; stage < std::ssize(predecessors); ++stage)
    for (const std::int32_t before : predecessors[static_cast<std::size_t>(stage)])
      if (before < 0 || before >= stage) return false;
  return std::ssize(predecessors) == stages;
}

// Which stages are before which, by stage and then by the other one's number.
std::vector<std::vector<bool>> stages_before(const std::vector<std::vector<std::int32_t>>& predecessors) {
  std::vector<std::vector<bool>> out(predecessors.size());
  for (std::size_t stage = 0; stage < out.size(); ++stage) {
    out[stage].resize(out.size());
    for (const std::int32_t before : predecessors[stage]) {
      out[stage][before] = true;
      for (std::size_t s = 0; s < stage; ++s) out[stage][s] = out[stage][s] || out[before][s];
    }
  }
  return out;
}

// The model's stages feed each other in an order that a table keeps which says one. Takes the square of the stages.
void check_feeding(const Schedule& schedule, const StageShape& shape) {
  if (schedule.predecessors.empty()) return;
  if (!are_in_order(schedule.predecessors, schedule.whole_stages()))
    throw Error(
        concat(title(schedule), ": what it says of which stages feed which is not of its ", counted(schedule.whole_stages(), "stage")), {},
        "give each stage those that feed it, all of smaller number");
  const std::vector<std::vector<bool>> before = stages_before(schedule.predecessors);
  const auto stage_of = [&](std::int32_t number) { return part_of(number, schedule.slices, schedule.blocks).stage; };
  for (std::int32_t number = 0; number < std::ssize(shape.predecessors); ++number)
    for (const std::int32_t feeding : shape.predecessors[number])
      if (const std::int32_t from = stage_of(feeding), to = stage_of(number); from != to && !before[to][from])
        throw Error(concat(title(schedule), ": stage ", from, " feeds stage ", to, ", which the table has beside it, not behind it"), {},
                    "use a schedule for a chain of stages, or a model whose stages feed each other as the table's do: for bidirectional, "
                    "of two: --set model.name=latent_diffusion --set backbones=2");
}

void check_idle(const Schedule& schedule, const IdleStages& idle) {
  for_each_action(schedule, [&](const Action& action, Position here) {
    for (std::int32_t m = action.microbatch; m >= 0 && m < action.microbatch + action.count; ++m)
      if (is_idle(idle, action.stage, m))
        throw Error(concat(place(schedule, here), ": ", text_at(schedule, here), " is of a micro-batch for which stage ",
                           stage_of(schedule, action), " has nothing to do"),
                    {}, "leave it out");
  });
}

// The number of micro-batches, and the action that says so where the caller does not.
struct Microbatches {
  std::int32_t count = 0;
  Position named_by;
};

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
    throw Error(concat(place(schedule, largest), ": ", text_at(schedule, largest), " names micro-batch ", last, " of a table with ",
                       counted(forwards, "forward")),
                {"micro-batches are numbered from 0 without gaps"});
  }
  return {static_cast<std::int32_t>(last + 1), largest};
}

// The first forward that `stage` lacks, and where it belongs: before its backward, else near the stage's forward before it, else near
// the micro-batch's in another stage.
[[noreturn]] void fail_missing_forward(const Schedule& schedule, const IdleStages& idle, std::int32_t stage, std::int64_t forwards,
                                       const Microbatches& step) {
  std::vector<bool> present(step.count, false);
  if (!idle.empty()) present = idle[stage];
  for_each_action(schedule, [&](const Action& action, Position) {
    if (action.kind != Kind::F || action.stage != stage) return;
    for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m) present[m] = true;
  });
  const std::int32_t missing = static_cast<std::int32_t>(std::find(present.begin(), present.end(), false) - present.begin());
  Position backward, same_stage, same_microbatch, any;
  for_each_action(schedule, [&](const Action& action, Position here) {
    const bool covers = action.microbatch <= missing && missing < action.microbatch + action.count;
    if (action.stage == stage && covers && !backward) backward = here;
    if (action.kind == Kind::F && action.stage == stage && action.microbatch < missing) same_stage = here;
    if (action.kind == Kind::F && covers) same_microbatch = here;
    if (!any) any = here;
  });
  const std::string unit = unit_text(schedule, stage, Kind::F, missing);
  std::string what = concat(title(schedule), ": ", unit, " is missing");
  if (const Position by = backward ? backward : same_stage ? same_stage : same_microbatch ? same_microbatch : any) {
    what = concat(place(schedule, by), ": ", unit, " is missing ", backward ? "before " : "near ", text_at(schedule, by));
  }
  std::vector<std::string> details = {concat("stage ", stage_text(stage, schedule.slices, schedule.blocks),
                                             " must run forward once for each of ", counted(step.count, "micro-batch"), "; the table has ",
                                             counted(forwards, "such forward"))};
  if (step.named_by) {
    details.push_back(concat(place(schedule, step.named_by), ": ", text_at(schedule, step.named_by), " names the last micro-batch"));
  }
  throw Error(what, details, concat("add ", unit, ", or give the model as many stages and micro-batches as the table has"));
}

// Every stage has every forward. Needs no memory beyond one stage's micro-batches, so that a table that names few of many is
// rejected before the index is made.
void check_forwards(const Schedule& schedule, const StageShape& shape, const Microbatches& step, const IdleStages& idle) {
  std::vector<std::int64_t> forwards(shape.predecessors.size(), 0);
  for_each_action(schedule, [&](const Action& action, Position) {
    if (action.kind == Kind::F) forwards[action.stage] += action.count;
  });
  for (std::int32_t s = 0; s < std::ssize(forwards); ++s) {
    const std::int64_t without = idle.empty() ? 0 : std::ranges::count(idle[s], true);
    if (forwards[s] < step.count - without) fail_missing_forward(schedule, idle, s, forwards[s], step);
  }
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

// Each forward has its backward, whole or in two.
void check_backwards(const WorkIndex& work, const IdleStages& idle) {
  const Schedule& schedule = *work.schedule;
  for (std::int32_t s = 0; s < std::ssize(work.shape->predecessors); ++s) {
    if (!work.shape->has_backward[s]) continue;
    for (std::int32_t m = 0; m < work.microbatches; ++m) {
      if (is_idle(idle, s, m)) continue;
      const Position forward = work.forward[work.unit(s, m)], backward = work.backward[work.unit(s, m)],
                     weight = work.weight[work.unit(s, m)];
      const auto named = [&](Position p) { return concat(place(schedule, p), ": ", text_at(schedule, p)); };
      if (!backward) {
        const Position by = weight ? weight : forward;
        throw Error(concat(named(by), weight ? " has no input gradient before it" : " has no backward"),
                    {concat(weight ? "" : unit_text(schedule, s, Kind::B, m) + " or ", unit_text(schedule, s, Kind::I, m), " is missing")},
                    concat("add it to row ", forward.actor + 1, ", where ", text_at(schedule, forward), " stands"));
      }
      if (!weight && work.shape->has_parameters[s]) {
        throw Error(
            concat(named(backward), " has no weight gradient after it"), {concat(unit_text(schedule, s, Kind::W, m), " is missing")},
            concat("add ", unit_text(schedule, s, Kind::W, m), " to any row, or write ", unit_text(schedule, s, Kind::B, m), " for both"));
      }
    }
  }
}

// Checks that actions which read a forward's residuals run on the actor that has them.
void check_places(const WorkIndex& work) {
  const Schedule& schedule = *work.schedule;
  for_each_action(schedule, [&](const Action& action, Position here) {
    if (action.kind != Kind::B && action.kind != Kind::I && !is_residual(action.kind)) return;
    for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m) {
      const Position forward = work.forward[work.unit(action.stage, m)];
      if (forward.actor == here.actor) continue;
      throw Error(concat(place(schedule, here), ": ", text_at(schedule, here), " runs on actor ", here.actor, ", its forward on actor ",
                         forward.actor),
                  {concat(text_at(schedule, forward), " stands at ", place(schedule, forward)),
                   is_host_copy(action.kind) ? "they move what the forward left, where it left it"
                                             : "B, I and R run where their forward left its residuals; only W may run elsewhere"},
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
      throw Error(concat(place(schedule, here), ": ", text_at(schedule, here), " runs on actor ", here.actor,
                         ", the slice before it on actor ", before.actor),
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
    const auto named = [&](Position p) { return concat(place(schedule, p), ": ", text_at(schedule, p)); };
    if (static_cast<bool>(offload) != static_cast<bool>(reload)) {
      const Position there = offload ? offload : reload;
      const Kind missing = offload ? Kind::RELOAD : Kind::OFFLOAD;
      const std::size_t microbatches = work.microbatches;
      const std::string unit_name =
          unit_text(schedule, static_cast<std::int32_t>(unit / microbatches), missing, static_cast<std::int32_t>(unit % microbatches));
      throw Error(concat(named(there), offload ? " is never reloaded" : " was never offloaded"), {concat(unit_name, " is missing")},
                  concat("add it ", offload ? "before the backward" : "after the forward", ", or leave out ", text_at(schedule, there)));
    }
    if (offload && again) {
      throw Error(concat(named(again), " computes again what ", text_at(schedule, reload), " brings back"),
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
  Stage& of(const Action& action) { return stages_[number_of(action)]; }
  std::int32_t number_of(const Action& action) const { return part_of(action.stage, schedule_.slices, schedule_.blocks).stage; }
  std::string named(Position p) const { return concat(place(schedule_, p), ": ", text_at(schedule_, p)); }

  void check(const Action& action, Position here) {
    Stage& stage = of(action);
    const std::string gather = concat(number_of(action), name(Kind::UNSHARD));
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
                      {concat("neither B nor W of stage ", number_of(action), " stands before it on actor ", actor_,
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
                  {concat("actor ", actor_, " gathers those of stage ", number_of(action), ", but they are not there")},
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
      const std::int32_t number = part_of(row[i].stage, schedule.slices, schedule.blocks).stage;
      Seen& stage = stages[number];
      const Position here{static_cast<std::int32_t>(a), static_cast<std::int32_t>(i)};
      if (row[i].kind == Kind::U && (stage.used || stage.update))
        throw Error(concat(place(schedule, here), ": ", text_at(schedule, here), " is too early: actor ", a, " goes on with stage ", number,
                           " after it"),
                    {"a stage is updated once in a step, when its gradients are complete"},
                    concat("move it behind the stage's last action, or leave it out: what has no U is updated at the end"));
      if (row[i].kind == Kind::U)
        stage.update = here;
      else if (is_compute(row[i].kind) || row[i].kind == Kind::REDUCE_GRAD)
        stage.used = true;
    }
    for (const auto& [number, stage] : stages)
      if (stage.update && !stage.used)
        throw Error(concat(place(schedule, stage.update), ": ", text_at(schedule, stage.update), ": actor ", a, " has nothing of stage ",
                           number, " to update"));
  }
}

}  // namespace

std::string place(const Schedule& schedule, Position p) {
  const int in_front = schedule.cells.empty() ? 0 : !schedule.predecessors.empty() + !schedule.forward_times.empty();
  return concat(title(schedule), ":", in_front + p.actor + 1, ":", column(schedule, p));
}

void validate(const Schedule& schedule, const StageShape& shape, int microbatches) {
  validate(schedule, shape, microbatches, {});
}

void validate(const Schedule& schedule, const StageShape& shape, int microbatches, const IdleStages& idle) {
  const Microbatches step = microbatches >= 0 ? Microbatches{microbatches, {}} : named_microbatches(schedule);
  const std::int32_t count = step.count;
  if (static_cast<double>(count) * static_cast<double>(shape.predecessors.size()) > kMostForwards) {
    throw Error(concat(title(schedule), ": ", counted(static_cast<std::int64_t>(shape.predecessors.size()), "stage"), " x ",
                       counted(count, "micro-batch"), " are too many"),
                {concat("the product may be up to ", kMostForwards)});
  }
  if (schedule.slices != shape.slices) {
    throw Error(concat(title(schedule), ": the table has ", counted(schedule.slices, "slice"), " of each stage, the model ", shape.slices),
                {}, "use a table of as many slices, or cut the model's sequences into as many");
  }
  if (schedule.blocks != shape.blocks) {
    throw Error(concat(title(schedule), ": the table has ", counted(std::ssize(schedule.blocks), "block"),
                       " of attention apart, the model others, ", shape.blocks.size()),
                {}, "cut the model by the blocks of this table");
  }
  check_names(schedule, shape, count);
  check_forward_stages(schedule, shape);
  check_idle(schedule, idle);
  check_forwards(schedule, shape, step, idle);
  check_feeding(schedule, shape);
  const WorkIndex work = index_once(schedule, shape, count);
  check_backwards(work, idle);
  check_places(work);
  check_slices(work);
  check_residuals(work);
  if (schedule.steps == 1) check_updates(schedule);
  check_versions(schedule, shape, count);
  for (std::size_t a = 0; work.has_sharding && a < schedule.actors.size(); ++a) Shards(schedule, a).check();
  const std::vector<std::int32_t> done = walk(work, [](Position) {});
  for (std::size_t a = 0; a < done.size(); ++a) {
    if (done[a] < std::ssize(schedule.actors[a])) fail_circular(work, done);
  }
}

}  // namespace penstock
