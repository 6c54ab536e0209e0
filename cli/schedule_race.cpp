#include "cli/schedule_race.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/clusters.h"
#include "cli/kernels.h"
#include "data/dataset.h"
#include "driver/training.h"
#include "penstock/error.h"
#include "profile/profile.h"
#include "profile/race.h"
#include "report/table.h"

namespace penstock {
namespace {

void check_equal(const std::string& file, const char* key, std::int64_t there, const char* flag, std::int64_t here) {
  if (there == here) return;
  throw Error(concat(file, " has pipeline.", key, " = ", there, ", the search ", flag, " ", here), {}, concat(flag, " ", there));
}

Config config_of(const SearchArguments& arguments, const RaceArguments& race) {
  const std::string& costs = arguments.simulate.costs;
  if (costs.empty()) throw Error("--measure races the best tables for measured costs", {}, "--costs FILE, which penstock profile writes");
  const Config config = load_config(race.config, {}, *race.models);
  if (!config.pipeline.plan.empty())
    throw Error(concat(race.config, " has the stages of a plan, the search those of the model"), {}, "leave out pipeline.plan");
  check_equal(race.config, "actors", config.pipeline.actors, "--actors", arguments.shape().actors);
  check_equal(race.config, "microbatches", config.pipeline.microbatches, "--microbatches", arguments.shape().microbatches);
  const std::string model = describe_model(config), measured = parse_costs(read_file(costs), costs).model;
  if (model != measured)
    throw Error(concat(costs, " was measured for another model than that of ", race.config), {measured, model},
                concat("penstock profile ", race.config, " --out FILE"));
  return config;
}

std::vector<int> chunk_counts(const SearchArguments& arguments) {
  for (const CLI::Option* flag : arguments.simulate.table.flags)
    if (flag->get_name() == "--chunks" && flag->count() > 0) return {arguments.shape().chunks};
  return {1, 2};
}

struct Searched {
  SearchProblem problem;
  SearchResult result;
  std::vector<FoundTable> whole;  // tables found by the search with whole backwards alone, where there are other kinds
  std::vector<FoundTable> named;  // registered tables within the limit
};

std::vector<FoundTable> tables_of(const SearchResult& result) {
  std::vector<FoundTable> out = {{result.schedule, result.time.makespan, result.found_by}};
  out.insert(out.end(), result.runners_up.begin(), result.runners_up.end());
  return out;
}

// Searches with all kinds of backward, and with whole ones alone. I and W in place of B let an actor idle less and work more; how much more
// is the least certain part of a prediction.
Searched searched(const SearchArguments& arguments, int chunks, double seconds) {
  Searched out;
  out.problem = problem_of(arguments, arguments.shape().actors * chunks);
  SearchOptions options;
  options.seed = arguments.seed;
  options.seconds = seconds / 2;
  out.result = search_schedule(out.problem, options);
  out.named = tables_within(out.problem, options);
  if (!out.problem.split || !out.problem.whole) return out;
  SearchProblem whole = out.problem;
  whole.split = false;
  out.whole = tables_of(search_schedule(whole, options));
  return out;
}

std::vector<Searched> all_searched(const SearchArguments& arguments, std::vector<std::string>& unsearched) {
  std::vector<Searched> out;
  const std::vector<int> counts = chunk_counts(arguments);
  const double seconds = checked("--seconds", arguments.seconds) / static_cast<double>(counts.size());
  for (const int chunks : counts) {
    const std::string where = concat(chunks, chunks == 1 ? " stage" : " stages", " per actor");
    std::fprintf(stderr, "search: %s\n", where.c_str());
    try {
      out.push_back(searched(arguments, chunks, seconds));
    } catch (const Error& error) {
      if (out.empty() && chunks == counts.back()) throw;
      unsearched.push_back(concat(where, ": ", split(error.what(), '\n')[0]));
    }
  }
  return out;
}

// Whether two tables give the same program: a fused pair runs as its two actions.
bool is_same_program(Schedule a, Schedule b) {
  for (Schedule* schedule : {&a, &b})
    for (auto& row : schedule->actors)
      for (Action& action : row) action.fused_with_next = false;
  return a.actors == b.actors;
}

auto find_same(std::vector<Racer>& racers, const FoundTable& table) {
  return std::find_if(racers.begin(), racers.end(),
                      [&](const Racer& racer) { return is_same_program(racer.table.schedule, table.schedule); });
}

// Enters at most `count` tables: the first of each group, as predictions are surer within a group than between groups, then the best of all
// the others.
void enter(const std::vector<std::vector<FoundTable>>& groups, int count, bool named, std::vector<Racer>& racers) {
  std::vector<std::pair<bool, const FoundTable*>> order;  // whether it is not the first of its group; the table
  for (const std::vector<FoundTable>& group : groups)
    for (const FoundTable& table : group) order.emplace_back(&table != group.data(), &table);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first, a.second->makespan) < std::pair(b.first, b.second->makespan);
  });
  for (const auto& [ignored, table] : order) {
    if (count == 0) return;
    if (const auto known = find_same(racers, *table); known != racers.end()) {
      known->named = known->named || named;
      continue;
    }
    racers.push_back({*table, named});
    --count;
  }
}

std::vector<Racer> racers_of(const std::vector<Searched>& searches, int count) {
  std::vector<std::vector<FoundTable>> found, named;
  for (const Searched& search : searches) {
    found.push_back(tables_of(search.result));
    found.push_back(search.whole);
    named.push_back(search.named);
  }
  std::vector<Racer> racers;
  enter(found, count, /*named=*/false, racers);
  enter(named, count, /*named=*/true, racers);
  return racers;
}

std::vector<int> groups_of(const Config& config) {
  return std::vector<int>(static_cast<std::size_t>(config.pipeline.actors), devices_of_actor(config));
}

// The programs of the racers that the configuration can run; the others keep their error.
std::vector<Program> programs_of(const Config& config, const ModelRegistry& models, std::vector<Racer>& racers) {
  std::vector<Program> programs;
  for (Racer& racer : racers) {
    try {
      Prepared prepared = prepare(config, racer.table.schedule, config.pipeline.microbatches, models);
      spread_actors(config, prepared);
      Program program = compile_training(config, prepared);
      choose_kernels(config, program);
      programs.push_back(std::move(program));
    } catch (const Error& error) {
      racer.refused = split(error.what(), '\n')[0];
    }
  }
  std::stable_partition(racers.begin(), racers.end(), [](const Racer& racer) { return racer.refused.empty(); });
  return programs;
}

// The same table measures a few per cent apart from race to race. Between tables that are closer than this the published one is taken: if a
// search were believed too easily, its table would end behind the one that it should beat.
constexpr double kClear = 1.02;

void prefer_named(std::vector<Racer>& racers) {
  const auto best = std::find_if(racers.begin(), racers.end(), [](const Racer& racer) { return racer.named && racer.refused.empty(); });
  if (best == racers.end() || best->measured.count < racers.front().measured.count) return;
  if (best->measured.median <= kClear * racers.front().measured.median) std::rotate(racers.begin(), best, best + 1);
}

void measure(const Config& config, const RaceArguments& arguments, const Dataset& data, Cluster& cluster, std::vector<Racer>& racers) {
  const std::vector<Program> programs = programs_of(config, *arguments.models, racers);
  if (programs.empty()) {
    std::vector<std::string> reasons;
    for (const Racer& racer : racers) reasons.push_back(concat(racer.table.found_by, ": ", racer.refused));
    throw Error(concat(arguments.config, " can run none of the tables found"), reasons);
  }
  RaceOptions options;
  options.rounds = arguments.rounds;
  options.steps = arguments.steps;
  options.input = [&](std::int64_t step) {
    return StepInput{step, config.train.seed, false, data.training_samples((step - 1) * config.train.batch)};
  };
  options.progress = [](const std::string& text) { std::fprintf(stderr, "race: %s\n", text.c_str()); };
  const StateSource state = fresh_start(config, prepare_sequential(config, *arguments.models)).state;
  const std::vector<Sample> samples = race(cluster, programs, state, options);
  for (std::size_t i = 0; i < samples.size(); ++i) racers[i].measured = samples[i];
  std::stable_sort(racers.begin(), racers.begin() + static_cast<std::ptrdiff_t>(samples.size()),
                   [](const Racer& a, const Racer& b) { return is_ahead(a.measured, b.measured); });
  prefer_named(racers);
}

// Makes the fastest table the search's result: what the search proved of its problem is compared with this table.
void take_fastest(const std::vector<Searched>& searches, RacedSearch& raced) {
  const FoundTable& fastest = raced.racers.front().table;
  const auto search = std::find_if(searches.begin(), searches.end(),
                                   [&](const Searched& one) { return one.result.schedule.stages() == fastest.schedule.stages(); });
  raced.problem = search->problem;
  raced.result = search->result;
  SearchResult& result = raced.result;
  result.schedule = fastest.schedule;
  result.schedule.name = "searched";
  result.found_by = fastest.found_by;
  result.time = time_table(result.schedule, raced.problem.shape, raced.problem.costs, {.network = raced.problem.network});
  result.optimal = search->result.optimal && result.time.makespan <= search->result.time.makespan;
}

int chunks_of(const Racer& racer) {
  return racer.table.schedule.stages() / static_cast<int>(racer.table.schedule.actors.size());
}

}  // namespace

void add_race_options(CLI::App& command, RaceArguments& race) {
  CLI::Option* measure =
      command.add_option("--measure", race.config, "with --costs: run the best tables in steps of this training, and take the fastest")
          ->type_name("CONFIG.toml");
  command.add_option("--candidates", race.candidates, "tables to run, of those found and of the named schedules each [6]")
      ->check(CLI::Range(1, 1000))
      ->needs(measure);
  command.add_option("--rounds", race.rounds, "in which each table runs once, in turn [3]")->check(CLI::Range(1, 100000))->needs(measure);
  command.add_option("--steps", race.steps, "measured steps of a table in a round [8]")->check(CLI::Range(1, 100000))->needs(measure);
}

std::optional<RacedSearch> raced_search(const SearchArguments& arguments, const RaceArguments& race) {
  const Config config = config_of(arguments, race);
  const std::shared_ptr<const Dataset> data = make_dataset(config, *prepare_sequential(config, *race.models).model);
  const std::unique_ptr<Cluster> cluster = configured_cluster("schedule search", config, groups_of(config), data);
  if (cluster == nullptr) return std::nullopt;
  RacedSearch raced;
  const std::vector<Searched> searches = all_searched(arguments, raced.unsearched);
  raced.racers = racers_of(searches, race.candidates);
  measure(config, race, *data, *cluster, raced.racers);
  take_fastest(searches, raced);
  return raced;
}

nlohmann::json race_json(const RacedSearch& raced) {
  nlohmann::json out = nlohmann::json::array();
  for (const Racer& racer : raced.racers) {
    nlohmann::json& row = out.emplace_back();
    row = {{"name", racer.table.found_by}, {"chunks", chunks_of(racer)}, {"predicted", racer.table.makespan}};
    if (racer.refused.empty()) {
      row["measured"] = racer.measured.median;
      row["spread"] = racer.measured.spread;
      row["rounds"] = racer.measured.count;
    } else {
      row["refused"] = racer.refused;
    }
  }
  return out;
}

std::string race_text(const RacedSearch& raced) {
  std::vector<std::vector<std::string>> rows;
  std::string left_out;
  for (const Racer& racer : raced.racers) {
    if (!racer.refused.empty()) {
      left_out += concat("left out: ", racer.table.found_by, ": ", racer.refused, "\n");
      continue;
    }
    const Sample& sample = racer.measured;
    rows.push_back({racer.table.found_by, concat(chunks_of(racer)), time_text(racer.table.makespan, true), time_text(sample.median, true),
                    concat("+- ", fixed(100 * sample.spread / sample.median, 1), " %"), concat(sample.count)});
  }
  for (const std::string& what : raced.unsearched) left_out += concat("left out: ", what, "\n");
  return table({"", "chunks", "predicted", "measured", "", "rounds"}, rows) + left_out;
}

}  // namespace penstock
