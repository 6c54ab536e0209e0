#include "simulate/table_costs.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

std::string measuring_command(const Schedule& schedule, const CostContext& context) {
  const std::int32_t actors = static_cast<std::int32_t>(schedule.actors.size());
  const std::int32_t chunks = (schedule.stages() + actors - 1) / std::max(actors, 1);
  const bool gloo = context.backend == "gloo";
  return concat("penstock ", gloo ? concat("launch -n ", actors, " -- ") : "", "profile CONFIG.toml --schedule ", schedule.name,
                " --actors ", actors, chunks > 1 && !schedule.name.ends_with(".csv") ? concat(" --chunks ", chunks) : "",
                gloo ? " --backend gloo" : "", " --out ", context.file, " measures them");
}

// The task of that kind and stage, or of the last stage before it that has one.
const TaskCost* task_of(const Costs& costs, Kind kind, std::int32_t stage, std::int32_t stages) {
  const TaskCost* best = nullptr;
  for (const TaskCost& task : costs.tasks) {
    if (task.stages != stages || task.kind != kind || task.stage < 0 || task.stage > stage) continue;
    if (!best || task.stage > best->stage) best = &task;
  }
  return best;
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
  out.stages.resize(static_cast<std::size_t>(stages));
  for (StageCosts& stage : out.stages) stage.live = static_cast<double>(schedule.actors.size()) / stages;
  std::vector<std::string> missing;
  for (const auto& [stage, kind] : wanted) {
    const TaskCost* task = task_of(costs, kind, stage, stages);
    const Sample* sample = task ? chosen_sample(*task, context, schedule.actors.size()) : nullptr;
    if (sample)
      out.stages[static_cast<std::size_t>(stage)].time[static_cast<std::size_t>(kind)] = sample->median;
    else
      missing.push_back(concat(name(kind), " of stage ", stage));
  }
  if (!missing.empty()) fail_missing(costs, schedule, context, missing);
  return out;
}

}  // namespace penstock
