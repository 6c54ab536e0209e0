// SPDX-License-Identifier: Apache-2.0
#include "simulate/table_costs.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// Measured seconds of a stage by kind, F to R; not all need to be there.
struct Measurements {
  std::array<std::optional<double>, static_cast<std::size_t>(Kind::R) + 1> time{};
  std::optional<double> light{};  // of an F that leaves to R what only its own backward reads

  std::optional<double>& of(Kind kind) { return time[static_cast<std::size_t>(kind)]; }
  const std::optional<double>& of(Kind kind) const { return time[static_cast<std::size_t>(kind)]; }
  bool has_backward() const { return of(Kind::B) || of(Kind::I) || of(Kind::W); }
};

// The time of a stage's kind, which the file says, or which follows from it. `split`: somewhere I or W were measured, so that their absence
// here says that they are no tasks of their own.
std::optional<double> time_of(const Measurements& stage, Kind kind, bool split) {
  if (stage.of(kind)) return stage.of(kind);
  const std::optional<double>&whole = stage.of(Kind::B), &input = stage.of(Kind::I), &weight = stage.of(Kind::W);
  // A table's F has one time whether or not an R follows: the whole one's, where it was measured.
  if (kind == Kind::F) return stage.light;
  if (kind == Kind::R) return time_of(stage, Kind::F, split);
  if (kind == Kind::B) return input && weight ? std::optional<double>() : input ? input : weight;
  if (const std::optional<double>& other = kind == Kind::I ? weight : input) return std::max(whole.value_or(*other) - *other, 0.0);
  if (!whole || !split) return {};
  return kind == Kind::W ? *whole : 0;
}

std::vector<Measurements> measurements_of(const Costs& costs, const Schedule& schedule, const CostContext& context, bool& split) {
  const std::int32_t count = schedule.stages();
  std::vector<Measurements> stages(count);
  split = stages.size() == 1;
  for (const TaskCost& task : costs.tasks) {
    if (task.stages != count || task.stage < 0 || task.stage >= count || task.kind > Kind::R) continue;
    const Sample* sample = chosen_sample(task, context, schedule.actors.size());
    Measurements& stage = stages[task.stage];
    std::optional<double>& slot = task.light ? stage.light : stage.of(task.kind);
    if (sample && !slot) slot = sample->usual();
    split = split || task.kind == Kind::I || task.kind == Kind::W;
  }
  for (std::size_t s = 1; s < stages.size(); ++s) {
    const Measurements& before = stages[s - 1];
    if (!stages[s].of(Kind::F) && !stages[s].light) {
      stages[s].of(Kind::F) = before.of(Kind::F);
      stages[s].light = before.light;
    }
    if (!stages[s].of(Kind::R)) stages[s].of(Kind::R) = before.of(Kind::R);
    if (stages[s].has_backward()) continue;
    for (const Kind kind : {Kind::B, Kind::I, Kind::W}) stages[s].of(kind) = before.of(kind);
  }
  return stages;
}

[[noreturn]] void fail_missing(const Costs& costs, const Schedule& schedule, const CostContext& context,
                               const std::vector<std::string>& missing) {
  std::set<std::int32_t> cuts;
  for (const TaskCost& task : costs.tasks)
    if (task.stage >= 0) cuts.insert(task.stages);
  std::vector<std::string> numbers;
  for (const std::int32_t stages : cuts) numbers.push_back(concat(stages));
  const std::int32_t actors = static_cast<std::int32_t>(schedule.actors.size());
  const std::int32_t chunks = (schedule.whole_stages() + actors - 1) / std::max(actors, 1);
  const bool says_chunks = chunks > 1 && !schedule.name.ends_with(".csv");
  const std::string flags = concat("--schedule ", schedule.name, " --actors ", actors, says_chunks ? concat(" --chunks ", chunks) : "");
  throw Error(concat(context.file, " has no time for ", missing.size(), " of the tasks of ", schedule.name),
              {concat("missing, of a model cut into ", schedule.stages(), ": ", first_few(missing, 6)),
               concat("it was measured for ", costs.model, ", cut into ", numbers.empty() ? "no stages" : join(numbers, ", "))},
              measuring_command(context, schedule.actors.size(), flags));
}

}  // namespace

TableCosts table_costs_of(const Costs& costs, const Schedule& schedule, const CostContext& context) {
  const std::int32_t stages = schedule.stages();
  std::set<std::pair<std::int32_t, Kind>> wanted;
  for (const auto& row : schedule.actors)
    for (const Action& action : row)
      if (action.kind <= Kind::R) wanted.insert({action.stage, action.kind});
  TableCosts out;
  out.stages.resize(stages);
  for (StageCosts& stage : out.stages) stage.live = static_cast<double>(schedule.actors.size()) / stages;
  bool split = false;
  const std::vector<Measurements> measured = measurements_of(costs, schedule, context, split);
  std::vector<std::string> missing;
  for (const auto& [stage, kind] : wanted) {
    const std::optional<double> time = time_of(measured[stage], kind, split);
    if (!time) missing.push_back(concat(name(kind), " of stage ", stage_text(stage, schedule.slices, schedule.blocks)));
    out.stages[stage].of(kind) = time.value_or(0);
  }
  for (std::size_t s = 0; s < measured.size(); ++s) out.stages[s].of(Kind::R) = time_of(measured[s], Kind::R, split).value_or(0);
  if (!missing.empty()) fail_missing(costs, schedule, context, missing);
  return out;
}

}  // namespace penstock
