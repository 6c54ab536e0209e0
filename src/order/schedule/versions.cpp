// SPDX-License-Identifier: Apache-2.0
#include "schedule/versions.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"
#include "schedule/kinds.h"
#include "schedule/slices.h"
#include "schedule/work.h"

namespace penstock {
namespace {

using ForwardVersions = std::map<std::pair<std::int32_t, std::int32_t>, ReadVersion>;  // by stage and micro-batch: what F read

// Half a backward may be on another actor than its F, and then reads what that read.
bool may_be_elsewhere(Kind kind) {
  return kind == Kind::I || kind == Kind::W;
}

// Facts of the whole table, which a row alone does not say.
struct OfTable {
  std::vector<bool> unversioned;       // unversioned_stages
  std::vector<bool> updated;           // by whole stage: has a U
  std::int32_t microbatches;           // of a step
  ForwardVersions elsewhere{};         // of F whose I or W are in other rows
  std::vector<std::int32_t> owners{};  // by stage, where there are any: the actor of its F
};

// Calls visit(action, index, updates, version) for each action of a row: how many updates of its stage stand before it, and the version
// that it reads.
template <class Visit>
void for_each_version(const Schedule& schedule, std::size_t actor, const OfTable& table, Visit&& visit) {
  std::map<std::int32_t, std::int32_t> updates;  // by whole stage
  ForwardVersions forwards;
  for (std::size_t i = 0; i < schedule.actors[actor].size(); ++i) {
    const Action& action = schedule.actors[actor][i];
    std::int32_t& made = updates[whole_stage(action, schedule)];
    ReadVersion read;
    if (reads_parameters(action.kind) && (action.version >= 0 || !table.unversioned[whole_stage(action, schedule)])) {
      const auto here = forwards.find({action.stage, action.microbatch});
      const auto there = table.elsewhere.find({action.stage, action.microbatch});
      read = action.version >= 0              ? ReadVersion{action.version, action.ahead}
             : here != forwards.end()         ? here->second
             : there != table.elsewhere.end() ? there->second
             // Others update what it reads, if anything does, and each step begins with what the one before has made.
             : !table.updated[whole_stage(action, schedule)] ? ReadVersion{action.microbatch / table.microbatches}
                                                             : ReadVersion{made};
      if (action.kind == Kind::F)
        for (std::int32_t m = 0; m < action.count; ++m) forwards[{action.stage, action.microbatch + m}] = read;
    }
    visit(action, i, made, read);
    if (action.kind == Kind::U) ++made;
  }
}

// `elsewhere` is empty where each I and W is on its F's actor, and in a table for one step, which has one version.
OfTable of_table(const Schedule& schedule) {
  OfTable out{unversioned_stages(schedule), std::vector<bool>(schedule.whole_stages(), schedule.steps == 1),
              std::max(1, schedule.step_microbatches())};
  if (schedule.steps == 1) return out;
  for_each_action(schedule, [&](const Action& action, Position) {
    if (action.kind == Kind::U) out.updated[whole_stage(action, schedule)] = true;
  });
  const std::vector<std::int32_t> owners = actor_of_stage(schedule);
  ForwardVersions elsewhere;
  for_each_action(schedule, [&](const Action& action, Position p) {
    if (!may_be_elsewhere(action.kind) || owners[action.stage] == p.actor) return;
    for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m) elsewhere[{action.stage, m}] = {};
  });
  if (elsewhere.empty()) return out;
  for (std::size_t actor = 0; actor < schedule.actors.size(); ++actor)
    for_each_version(schedule, actor, out, [&](const Action& action, std::size_t, std::int32_t, ReadVersion read) {
      for (std::int32_t m = action.microbatch; action.kind == Kind::F && m < action.microbatch + action.count; ++m)
        if (const auto found = elsewhere.find({action.stage, m}); found != elsewhere.end()) found->second = read;
    });
  out.elsewhere = std::move(elsewhere);
  out.owners = owners;
  return out;
}

Position place_in(std::size_t actor, std::size_t index) {
  return {static_cast<std::int32_t>(actor), static_cast<std::int32_t>(index)};
}

// Stages are numbered whole.
struct Window {
  const Schedule& schedule;
  std::int32_t microbatches;  // of a step
  OfTable table;
};

// Throws unless the action is the next U of its stage.
void check_update(const Window& window, Position p, std::int32_t updates) {
  const Action& action = window.schedule.actors[p.actor][p.index];
  const std::int32_t last = (updates + 1) * window.microbatches - 1, stage = whole_stage(action, window.schedule);
  if (action.microbatch == last) return;
  const std::string here = named(window.schedule, p);
  if (updates == window.schedule.steps)
    throw Error(concat(here, " is one U too many"),
                {concat(counted(updates, "update"), " of stage ", stage, " stand before it, one for each step of the window")},
                "leave it out");
  const std::string next = concat(stage, "U", last);
  if (action.microbatch < 0)
    throw Error(concat(here, " names no step"), {concat("the table is for ", counted(window.schedule.steps, "step"))},
                concat("name the last micro-batch of the step that it closes: ", next));
  throw Error(concat(here, " closes no step, or not the next"),
              {concat("a step has ", counted(window.microbatches, "micro-batch"), "; ", updates, " of stage ", stage,
                      "'s updates stand before it")},
              concat("the next is ", next));
}

// Throws for what is not of one step.
void check_step(const Window& window, Position p) {
  const Action& action = window.schedule.actors[p.actor][p.index];
  if (is_sharding(action.kind))
    throw Error(concat(named(window.schedule, p), " is of no step"),
                {concat("the table is for ", window.schedule.steps, " steps, each of which gathers and reduces as pipeline.zero says")},
                "leave it out, or make the table for one step");
  const std::int32_t last = action.microbatch + action.count - 1;
  if (action.microbatch / window.microbatches != last / window.microbatches)
    throw Error(concat(named(window.schedule, p), " is of two steps"), {concat("a step has ", counted(window.microbatches, "micro-batch"))},
                "write it once for each");
}

// Is it an I or W away from its F?
bool is_elsewhere(const Window& window, Position p) {
  const Action& action = window.schedule.actors[p.actor][p.index];
  return may_be_elsewhere(action.kind) && !window.table.elsewhere.empty() && window.table.owners[action.stage] != p.actor;
}

// Throws for an I or W away from its F that would read another version than that did. That its gradient comes in time follows from
// what the stage's U needs (work.h).
void check_elsewhere(const Window& window, Position p) {
  const Action& action = window.schedule.actors[p.actor][p.index];
  const ReadVersion forward = window.table.elsewhere.at({action.stage, action.microbatch});
  if (action.version < 0 || ReadVersion{action.version, action.ahead} == forward) return;
  const auto version = [](ReadVersion of) { return concat(of.version, of.ahead > 0 ? concat("+", of.ahead) : ""); };
  throw Error(concat(named(window.schedule, p), " reads version ", version({action.version, action.ahead}), " of stage ",
                     whole_stage(action, window.schedule), ", its forward version ", version(forward)),
              {"an I or W on another actor than its forward reads what that read"}, "leave out the version");
}

void check_action(const Window& window, Position p, std::int32_t updates, std::int32_t version) {
  const Schedule& schedule = window.schedule;
  const Action& action = schedule.actors[p.actor][p.index];
  const std::int32_t stage = whole_stage(action, schedule);
  if (action.kind == Kind::U) return check_update(window, p, updates);
  if (schedule.steps > 1) check_step(window, p);
  if (is_elsewhere(window, p)) return check_elsewhere(window, p);
  if (version > updates && window.table.updated[stage])
    throw Error(concat(named(schedule, p), " reads version ", version, " of stage ", stage, ", which is not made yet"),
                {concat(counted(updates, "update"), " of the stage stand before it in the row of actor ", p.actor)},
                concat("move it behind ", stage, "U", version * window.microbatches - 1, ", or let it read version ", updates));
  const bool sums = action.kind == Kind::B || action.kind == Kind::W;
  const std::int32_t step = action.microbatch / window.microbatches;
  if (sums && updates > step)
    throw Error(concat(named(schedule, p), ": its gradient is lost"),
                {concat("the update of its step, ", stage, "U", (step + 1) * window.microbatches - 1, ", stands before it")},
                "move it before that update");
}

// Throws where an actor without a forward of the stage has more of it than I and W.
void check_owners(const Schedule& schedule, const StageShape& shape) {
  std::set<std::pair<std::int32_t, std::int32_t>> forwards;  // by whole stage and actor
  for_each_action(schedule, [&](const Action& action, Position p) {
    if (action.kind == Kind::F) forwards.emplace(whole_stage(action, schedule), p.actor);
  });
  for_each_action(schedule, [&](const Action& action, Position p) {
    const std::int32_t stage = whole_stage(action, schedule);
    if (!shape.has_backward[action.stage] || !shape.has_parameters[action.stage] || may_be_elsewhere(action.kind) ||
        forwards.contains({stage, p.actor}))
      return;
    throw Error(
        concat(named(schedule, p), ": stage ", stage, " is also on actor ", actor_of_stage(schedule)[first_slice(action.stage, schedule)]),
        {"in a window of steps only I and W may be on an actor without a forward of the stage"},
        concat("put all of a stage but its I and W where its forwards are, or make the table for one step"));
  });
}

}  // namespace

std::vector<bool> spread_stages(const Schedule& schedule) {
  std::vector<bool> out(schedule.whole_stages(), false);
  const std::vector<std::int32_t> owners = actor_of_stage(schedule);
  for_each_action(schedule, [&](const Action& action, Position p) {
    if (is_compute(action.kind) && !may_be_elsewhere(action.kind) && owners[first_slice(action.stage, schedule)] != p.actor)
      out[whole_stage(action, schedule)] = true;
  });
  return out;
}

std::vector<bool> unversioned_stages(const Schedule& schedule) {
  if (schedule.steps == 1) return std::vector<bool>(schedule.whole_stages(), false);
  std::vector<bool> out = spread_stages(schedule);
  for_each_action(schedule, [&](const Action& action, Position) {
    if (action.kind == Kind::U) out[whole_stage(action, schedule)] = false;
  });
  return out;
}

std::vector<std::vector<ReadVersion>> read_versions(const Schedule& schedule) {
  std::vector<std::vector<ReadVersion>> out(schedule.actors.size());
  const OfTable table = of_table(schedule);
  for (std::size_t actor = 0; actor < out.size(); ++actor)
    for_each_version(schedule, actor, table,
                     [&](const Action&, std::size_t, std::int32_t, ReadVersion read) { out[actor].push_back(read); });
  return out;
}

std::int32_t staleness(const Schedule& schedule, std::int32_t actor) {
  const std::int32_t microbatches = std::max(1, schedule.step_microbatches());
  std::int32_t most = 0;
  for_each_version(schedule, static_cast<std::size_t>(actor), of_table(schedule),
                   [&](const Action& action, std::size_t, std::int32_t, ReadVersion read) {
                     if (read.version >= 0) most = std::max(most, action.microbatch / microbatches - read.version);
                   });
  return most;
}

std::int32_t steps_of_wave(const Schedule& schedule) {
  std::int32_t late = 0;
  for (std::int32_t actor = 0; actor < std::ssize(schedule.actors); ++actor) late = std::max(late, staleness(schedule, actor));
  return late + 1;
}

std::int32_t missing_of_others(const Schedule& schedule, std::int32_t distance) {
  const std::int32_t wave = steps_of_wave(schedule), microbatches = std::max(1, schedule.step_microbatches());
  const OfTable table = of_table(schedule);
  std::int32_t most = 0;
  for (std::size_t actor = 0; actor < schedule.actors.size(); ++actor)
    for_each_version(schedule, actor, table, [&](const Action& action, std::size_t, std::int32_t, ReadVersion read) {
      const std::int32_t pulled = std::max(0, read.version / wave - distance);  // waves
      if (read.version >= 0) most = std::max(most, action.microbatch / microbatches - pulled * wave);
    });
  return most;
}

std::vector<HeldVersion> versions_beside(const Schedule& schedule, std::int32_t actor) {
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, HeldVersion> reads;  // by stage, version and ahead: the first and the last
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> overwritten;           // by stage and version: by the U at this place
  for_each_version(schedule, static_cast<std::size_t>(actor), of_table(schedule),
                   [&](const Action& action, std::size_t i, std::int32_t updates, ReadVersion read) {
                     const std::int32_t stage = whole_stage(action, schedule);
                     if (action.kind == Kind::U) overwritten[{stage, updates}] = i;
                     if (read.version < 0) return;
                     reads.try_emplace({stage, read.version, read.ahead}, HeldVersion{stage, i, i}).first->second.last = i;
                   });
  std::vector<HeldVersion> out;
  for (const auto& [key, read] : reads) {
    const auto [stage, version, ahead] = key;
    const auto update = overwritten.find({stage, version});
    if (ahead > 0)
      out.push_back(read);
    else if (update != overwritten.end() && update->second < read.last)
      out.push_back({stage, update->second, read.last});
  }
  return out;
}

std::int32_t versions_held(const Schedule& schedule, std::int32_t actor) {
  std::map<std::int32_t, std::map<std::size_t, std::int32_t>> changes;  // by stage: of the number of copies, at these places
  for (const HeldVersion& held : versions_beside(schedule, actor)) {
    ++changes[held.stage][held.first];
    --changes[held.stage][held.last + 1];
  }
  std::int32_t most = 1;
  for (const auto& [stage, of_stage] : changes)
    for (std::int32_t held = 1; const auto& [place, change] : of_stage) most = std::max(most, held += change);
  return most;
}

void check_staleness(const Schedule& schedule, std::int32_t most) {
  const std::int32_t microbatches = std::max(1, schedule.step_microbatches());
  const OfTable table = of_table(schedule);
  for (std::size_t actor = 0; actor < schedule.actors.size(); ++actor)
    for_each_version(schedule, actor, table, [&](const Action& action, std::size_t i, std::int32_t, ReadVersion read) {
      const std::int32_t version = read.version;
      const std::int32_t step = action.microbatch / microbatches;
      if (version < 0 || step - version <= most) return;
      throw Error(
          concat(named(schedule, place_in(actor, i)), " reads version ", version, " in step ", step, ": ", step - version, " updates late"),
          {concat("at most ", most, " are allowed")}, "update earlier, or begin its step later");
    });
}

Schedule one_step(const Schedule& schedule, std::int32_t step) {
  if (schedule.steps == 1) return schedule;
  Schedule out = schedule;
  out.steps = 1;
  out.cells.clear();
  const std::int32_t microbatches = schedule.step_microbatches(), first = step * microbatches;
  for (std::vector<Action>& row : out.actors) {
    std::erase_if(row, [&](const Action& action) { return action.microbatch / microbatches != step; });
    for (Action& action : row) {
      action.microbatch = action.kind == Kind::U ? -1 : action.microbatch - first;
      action.fused_with_next = false;
      action.version = -1;
      action.ahead = 0;
    }
  }
  return out;
}

void check_versions(const Schedule& schedule, const StageShape& shape, std::int32_t microbatches) {
  if (microbatches % schedule.steps != 0)
    throw Error(concat(schedule.name, ": ", counted(microbatches, "micro-batch"), " are no multiple of the ", schedule.steps,
                       " steps of the table"),
                {"its U name so many last micro-batches of steps"}, "let each step have as many");
  const Window window{schedule, microbatches / schedule.steps, of_table(schedule)};
  if (schedule.steps > 1) check_owners(schedule, shape);
  for (std::size_t actor = 0; actor < schedule.actors.size(); ++actor) {
    std::map<std::int32_t, std::pair<std::size_t, std::int32_t>> last;  // by stage with a backward: its last action, and its updates
    for_each_version(schedule, actor, window.table, [&](const Action& action, std::size_t i, std::int32_t updates, ReadVersion read) {
      if (schedule.steps > 1 || action.kind != Kind::U) check_action(window, place_in(actor, i), updates, read.version);
      if (shape.has_backward[action.stage] && shape.has_parameters[action.stage] && !is_elsewhere(window, place_in(actor, i)))
        last[whole_stage(action, schedule)] = {i, updates + (action.kind == Kind::U)};
    });
    for (const auto& [stage, seen] : last)
      if (schedule.steps > 1 && seen.second < schedule.steps)
        throw Error(
            concat(named(schedule, place_in(actor, seen.first)), ": behind it step ", seen.second, " has no update of stage ", stage),
            {concat("the table is for ", schedule.steps, " steps")},
            concat("add ", stage, "U", (seen.second + 1) * window.microbatches - 1));
  }
}

}  // namespace penstock
