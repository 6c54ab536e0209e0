// SPDX-License-Identifier: Apache-2.0
#include "rules/load_schedule.h"

#include <algorithm>
#include <map>

#include "base/text.h"
#include "penstock/error.h"
#include "rules/residuals.h"
#include "schedule/by_rules.h"
#include "schedule/generators.h"
#include "schedule/kinds.h"
#include "schedule/options.h"

namespace penstock {
namespace {

// The most stages that an actor has.
int own_chunks(const RulesPlacement& placement, const ScheduleOptions& options) {
  if (placement.path == RulesPlacement::Path::chain) return 1;
  if (placement.path == RulesPlacement::Path::stages)
    return (static_cast<int>(placement.actors.size()) + options.actors - 1) / options.actors;
  return placement.chunks > 0 ? placement.chunks : options.chunks;
}

void check_options(const Rules& rules, const ScheduleOptions& options) {
  check_bounds(rules.name, options);
  // A number that follows from the model, of the vocabulary's parts, is one of stages that the rules' placement and edges have.
  for (const ScheduleOption& option : schedule_options())
    if (option.taken_by != ScheduleOption::TakenBy::all && option.configured != ScheduleOption::Configured::elsewhere &&
        option.is_given(options))
      throw Error(concat(rules.name, ": rules take no ", option.flag()), {}, "write it as a limit, an order or a preference");
  const int own = own_chunks(rules.placement, options);
  if (own != options.chunks && options.chunks > 1) {
    throw Error(concat(rules.name, ": stages per actor are ", own, " by the placement, ", options.chunks, " by --chunks"), {},
                "write `placement loop` or `placement wave` without a number");
  }
}

// The actor of each stage; for bidirectional rules, on the way of the even micro-batches.
std::vector<std::int32_t> actors_of(const Rules& rules, const ScheduleOptions& options) {
  const RulesPlacement& placement = rules.placement;
  const int chunks = own_chunks(placement, options);
  check_size(rules.name, options, chunks);
  if (placement.path == RulesPlacement::Path::stages) {
    const std::int32_t last = *std::max_element(placement.actors.begin(), placement.actors.end());
    if (last >= options.actors)
      throw Error(concat(rules.name, ": the placement names actor ", last, " of ", options.actors), {}, concat("--actors ", last + 1));
    return placement.actors;
  }
  std::vector<std::int32_t> out;
  for (int c = 0; c < chunks; ++c) {
    const bool back = placement.path == RulesPlacement::Path::wave && c % 2 == 1;
    for (int r = 0; r < options.actors; ++r) out.push_back(back ? options.actors - 1 - r : r);
  }
  return out;
}

StageShape shape_of(const Rules& rules, std::size_t stages) {
  StageShape shape = chain(static_cast<int>(stages));
  if (rules.edges.empty()) return shape;
  for (auto& before : shape.predecessors) before.clear();
  for (const auto& [from, to] : rules.edges) {
    if (static_cast<std::size_t>(to) >= stages)
      throw Error(concat(rules.name, ": edge ", from, ">", to, " names stage ", to, " of ", stages));
    auto& before = shape.predecessors[to];
    if (std::find(before.begin(), before.end(), from) == before.end()) before.push_back(from);
  }
  return shape;
}

// The rules as parsed from their own text, so that the parser makes all checks.
Rules checked(const Rules& rules) {
  Rules out = parse_rules(print(rules), rules.name.empty() ? "rules" : rules.name);
  // The places of expressions stay those that the caller read them at.
  for (std::size_t i = 0; i < out.orders.size(); ++i) out.orders[i].size.place = rules.orders[i].size.place;
  for (std::size_t i = 0; i < out.limits.size(); ++i) out.limits[i].most.place = rules.limits[i].most.place;
  if (out.recompute) out.recompute->beyond.place = rules.recompute->beyond.place;
  if (out.missing) out.missing->place = rules.missing->place;
  if (out.offload) out.offload->beyond.place = rules.offload->beyond.place;
  return out;
}

// Makes each slice of the work's stages a stage of its own.
void take_slices(EngineWork& work, int slices) {
  work.shape = sliced(work.shape, slices);
  std::vector<std::int32_t> actors;
  for (const std::int32_t actor : work.actors[0]) actors.insert(actors.end(), static_cast<std::size_t>(slices), actor);
  work.actors[0] = std::move(actors);
}

// The work that checked rules describe, without its times.
EngineWork work_of(const Rules& rules, const ScheduleOptions& options) {
  check_options(rules, options);
  EngineWork out;
  out.split = rules.split;
  out.actor_count = options.actors;
  out.actors = {actors_of(rules, options)};
  out.microbatches = options.microbatches * (rules.undrained ? options.window : 1);
  out.shape = shape_of(rules, out.actors[0].size());
  if (rules.slices && options.slices > 1) take_slices(out, options.slices);
  if (options.forward_only) out.shape.has_backward.assign(out.actors[0].size(), false);
  if (rules.placement.bidirectional) add_opposite_way(out);
  return out;
}

// The rules with numbers in place of letters.
EngineRules engine_rules(const Rules& rules, const Variables& known, std::int32_t slices) {
  EngineRules out;
  out.name = rules.name;
  const Preference otherwise = rules.split ? Preference{{Kind::I}, {Kind::F}, {Kind::W}} : Preference{{Kind::B}, {Kind::F}};
  const Preference& prefer = rules.prefer.empty() ? otherwise : rules.prefer;
  const Preference* phases[] = {&rules.warm_up, &rules.steady, &rules.drain};
  for (std::size_t i = 0; i < kSchedulePhases; ++i) out.phases[i] = phases[i]->empty() ? prefer : *phases[i];
  for (std::size_t i = 0; i < rules.orders.size(); ++i) {
    out.orders[i].way = rules.orders[i].way;
    Variables here = known;
    for (here.r = 0; here.r < known.p; ++here.r) {
      const std::int64_t size = rules.orders[i].size.value(here);
      if (size < 1) throw Error(concat(rules.name, ": groups of ", print(rules.orders[i].size), " are ", size, " on actor ", here.r));
      out.orders[i].size.push_back(size);
    }
  }
  for (const RulesLimit& limit : rules.limits) {
    const auto most = [limit, known, slices](std::int32_t actor, std::int32_t stage) {
      Variables here = known;
      here.r = actor;
      here.s = part_of(stage, slices).stage;
      return limit.most.value(here);
    };
    out.limits.push_back({print(limit), limit.each, limit.until_input, most});
  }
  return out;
}

// The values of the letters in the rules' expressions.
Variables variables_of(const Rules& rules, const ScheduleOptions& options) {
  return {.p = options.actors, .m = options.microbatches, .v = own_chunks(rules.placement, options), .n = options.slices};
}

// F, B, I and W of `work`, which is of these checked rules and options, with what is done about their residuals.
Listed listed(const Rules& rules, const ScheduleOptions& options, EngineWork work, const TableCosts& costs) {
  work.costs = &costs;
  Variables known = variables_of(rules, options);
  Listed out = schedule_by(engine_rules(rules, known, work.shape.slices), work);
  out.schedule.slices = work.shape.slices;
  for (std::vector<Action>& row : out.schedule.actors) {
    row = with_residuals(row, rules, known, work.shape.slices);
    ++known.r;
  }
  return out;
}

// The table of an undrained window.
Schedule updating(const Rules& rules, const ScheduleOptions& options, Schedule schedule) {
  schedule = with_step_updates(std::move(schedule), options.window);
  if (!rules.missing || options.forward_only) return schedule;
  const std::int64_t updates = rules.missing->value(variables_of(rules, options));
  if (updates < 0)
    throw Error(concat(rules.name, ": the forwards of a step miss ", print(*rules.missing), " updates, which are ", updates), {},
                "0 or more: of those of the steps before");
  return with_missing_updates(std::move(schedule), static_cast<int>(std::min<std::int64_t>(updates, options.window)));
}

// The table of all steps, with the actions that follow from the order of a step.
Schedule completed(const Rules& rules, const ScheduleOptions& options, Schedule schedule) {
  const bool gathers = rules.gather != Rules::Gather::none && !options.forward_only;
  if (gathers && (options.window > 1 || rules.undrained))
    throw Error(concat(rules.name, ": gathers are of a table of one step, and this one is a window's"), {},
                "leave out `gather`: with pipeline.zero = 2 or 3 each step of a window gathers");
  if (rules.undrained)
    schedule = updating(rules, options, std::move(schedule));
  else if (options.window > 1)
    schedule = repeated(std::move(schedule), options.window);
  else if (rules.update)
    schedule = with_updates(std::move(schedule));
  if (gathers) schedule = with_gathers(std::move(schedule), rules.gather == Rules::Gather::turns);
  return schedule.slices == options.slices ? std::move(schedule) : sliced(schedule, options.slices);
}

}  // namespace

Listed schedule_by(const Rules& given, const ScheduleOptions& options, const TableCosts& costs, const Network& network) {
  const Rules rules = checked(given);
  for (const auto& [flag, number] : {std::pair("--slices", options.slices), std::pair("--window", options.window)})
    if (number > 1) throw Error(concat(rules.name, ": rules that follow given costs take no ", flag), {}, concat("leave out ", flag));
  EngineWork work = work_of(rules, options);
  work.arrival = arrivals_over(network);
  const StageShape shape = work.shape;
  Listed out = listed(rules, options, std::move(work), costs);
  out.schedule = completed(rules, options, std::move(out.schedule));
  // The engine's clock does not know what has been added to its rows.
  const bool adds = rules.recompute || rules.offload || rules.gather != Rules::Gather::none || rules.update || rules.undrained;
  if (adds) out.makespan = time_table(out.schedule, shape, costs, {.network = network}).makespan;
  return out;
}

Schedule make_schedule(const Rules& given, const ScheduleOptions& options) {
  const Rules rules = checked(given);
  EngineWork work = work_of(rules, options);
  const std::int32_t stages = static_cast<std::int32_t>(work.shape.predecessors.size());
  const auto& [f, b, i, w] = rules.times;
  const UnitCosts times{.forward = 1.0 * f, .backward = 1.0 * b, .input = 1.0 * i, .weight = 1.0 * w};
  const TableCosts costs = uniform_costs(stages, times, static_cast<double>(options.actors) / stages);
  return completed(rules, options, listed(rules, options, std::move(work), costs).schedule);
}

bool names_rules(const std::string& what) {
  return what.ends_with(".rules");
}

bool names_table(const std::string& what) {
  return !names_rules(what) && (what.ends_with(".csv") || what.find('/') != std::string::npos);
}

Rules load_rules(const std::string& file) {
  return parse_rules(read_file(file), file);
}

Schedule load_schedule(const std::string& what, const ScheduleOptions& options) {
  if (names_rules(what)) return make_schedule(load_rules(what), options);
  return names_table(what) ? parse_schedule(read_file(what), what) : make_schedule(what, options);
}

}  // namespace penstock
