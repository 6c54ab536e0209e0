#include "simulate/table_costs.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/text.h"
#include "penstock/error.h"
#include "program/backends.h"

namespace penstock {
namespace {

std::string measuring_command(const Schedule& schedule, const CostContext& context) {
  const std::int32_t actors = static_cast<std::int32_t>(schedule.actors.size());
  const std::int32_t chunks = (schedule.whole_stages() + actors - 1) / std::max(actors, 1);
  const bool processes = find_backend(context.backend).processes;
  return concat("penstock ", processes ? concat("launch -n ", actors, " -- ") : "", "profile CONFIG.toml --schedule ", schedule.name,
                " --actors ", actors, chunks > 1 && !schedule.name.ends_with(".csv") ? concat(" --chunks ", chunks) : "",
                processes ? concat(" --backend ", context.backend) : "", " --out ", context.file, " measures them");
}

// Measured seconds of a stage by kind; not all kinds need to be there.
struct Measurements {
  std::optional<double> forward, light, whole, input, weight, recompute;

  bool has_backward() const { return whole || input || weight; }
  std::optional<double>& of(Kind kind) {
    switch (kind) {
      case Kind::B:
        return whole;
      case Kind::I:
        return input;
      case Kind::W:
        return weight;
      case Kind::R:
        return recompute;
      default:
        return forward;
    }
  }
};

// The time of a stage's kind, which the file says, or which follows from it. `split`: somewhere I or W were measured, so that their absence
// here says that they are no tasks of their own.
std::optional<double> time_of(Measurements stage, Kind kind, bool split) {
  if (const std::optional<double> measured = stage.of(kind)) return measured;
  // A table's F has one time whether or not an R follows: the whole one's, where it was measured.
  if (kind == Kind::F) return stage.light;
  if (kind == Kind::R) return time_of(stage, Kind::F, split);
  if (kind == Kind::B && stage.input.has_value() != stage.weight.has_value()) return stage.input ? stage.input : stage.weight;
  if (kind != Kind::I && kind != Kind::W) return {};
  const std::optional<double> other = kind == Kind::I ? stage.weight : stage.input;
  if (other) return std::max(stage.whole.value_or(*other) - *other, 0.0);
  if (!stage.whole || !split) return {};
  return kind == Kind::W ? *stage.whole : 0;
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
    if (!stages[s].forward && !stages[s].light) {
      stages[s].forward = before.forward;
      stages[s].light = before.light;
    }
    if (!stages[s].recompute) stages[s].recompute = before.recompute;
    if (stages[s].has_backward()) continue;
    stages[s].whole = before.whole;
    stages[s].input = before.input;
    stages[s].weight = before.weight;
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
  constexpr std::size_t kShown = 6;
  std::vector<std::string> shown(missing.begin(), missing.begin() + static_cast<std::ptrdiff_t>(std::min(missing.size(), kShown)));
  if (missing.size() > kShown) shown.push_back(concat("and ", missing.size() - kShown, " more"));
  throw Error(concat(context.file, " has no time for ", missing.size(), " of the tasks of ", schedule.name),
              {concat("missing, of a model cut into ", schedule.stages(), ": ", join(shown, ", ")),
               concat("it was measured for ", costs.model, ", cut into ", numbers.empty() ? "no stages" : join(numbers, ", "))},
              measuring_command(schedule, context));
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
    out.stages[stage].time[static_cast<std::size_t>(kind)] = time.value_or(0);
  }
  for (std::size_t s = 0; s < measured.size(); ++s)
    out.stages[s].time[static_cast<std::size_t>(Kind::R)] = time_of(measured[s], Kind::R, split).value_or(0);
  if (!missing.empty()) fail_missing(costs, schedule, context, missing);
  return out;
}

}  // namespace penstock
