#include "rules/load_schedule.h"

#include <algorithm>
#include <map>

#include "base/text.h"
#include "penstock/error.h"
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
  return out;
}

// The work that checked rules describe, without its times.
EngineWork work_of(const Rules& rules, const ScheduleOptions& options) {
  check_options(rules, options);
  EngineWork out;
  out.microbatches = options.microbatches;
  out.split = rules.split;
  out.actor_count = options.actors;
  out.actors = {actors_of(rules, options)};
  out.shape = shape_of(rules, out.actors[0].size());
  if (options.forward_only) out.shape.has_backward.assign(out.actors[0].size(), false);
  if (rules.placement.bidirectional) add_opposite_way(out);
  return out;
}

// The rules with numbers in place of letters.
EngineRules engine_rules(const Rules& rules, const Variables& known) {
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
    const auto most = [limit, known](std::int32_t actor, std::int32_t stage) {
      Variables here = known;
      here.r = actor;
      here.s = stage;
      return limit.most.value(here);
    };
    out.limits.push_back({print(limit), limit.each, limit.until_input, most});
  }
  return out;
}

// `work`: of these checked rules and options.
Listed listed(const Rules& rules, const ScheduleOptions& options, EngineWork work, const TableCosts& costs) {
  work.costs = &costs;
  Variables known;
  known.p = options.actors;
  known.m = options.microbatches;
  known.v = own_chunks(rules.placement, options);
  return schedule_by(engine_rules(rules, known), work);
}

}  // namespace

Listed schedule_by(const Rules& given, const ScheduleOptions& options, const TableCosts& costs, const Network& network) {
  const Rules rules = checked(given);
  for (const auto& [flag, number] : {std::pair("--slices", options.slices), std::pair("--window", options.window)})
    if (number > 1) throw Error(concat(rules.name, ": rules that follow given costs take no ", flag), {}, concat("leave out ", flag));
  EngineWork work = work_of(rules, options);
  work.arrival = arrivals_over(network);
  return listed(rules, options, std::move(work), costs);
}

Schedule make_schedule(const Rules& given, const ScheduleOptions& options) {
  const Rules rules = checked(given);
  EngineWork work = work_of(rules, options);
  const std::int32_t stages = static_cast<std::int32_t>(work.actors[0].size());
  const auto& [f, b, i, w] = rules.times;
  const UnitCosts times{.forward = 1.0 * f, .backward = 1.0 * b, .input = 1.0 * i, .weight = 1.0 * w};
  const TableCosts costs = uniform_costs(stages, times, static_cast<double>(options.actors) / stages);
  Schedule schedule = listed(rules, options, std::move(work), costs).schedule;
  if (options.window > 1) schedule = repeated(std::move(schedule), options.window);
  return sliced(schedule, options.slices);
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
