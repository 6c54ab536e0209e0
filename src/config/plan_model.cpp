#include "config/plan_model.h"

#include <algorithm>

#include "base/text.h"
#include "cost/cost_model.h"
#include "cost/evaluate.h"
#include "lower/lower.h"
#include "penstock/error.h"
#include "transform/passes.h"

namespace penstock {
namespace {

Graph step_of(const Config& config, const ModelRegistry& models, std::int64_t size) {
  const Schedule any = make_schedule("sequential", {.actors = 1, .microbatches = 1});
  return eliminate_dead_code(training_graph(config, prepare(config, any, config.train.batch / size, models)));
}

}  // namespace

NodeGroups planning_nodes(const Config& config, const ModelRegistry& models, int most) {
  return group_nodes(step_of(config, models, config.train.batch / config.pipeline.microbatches), most);
}

std::vector<int> planning_sizes(const Config& config, int devices) {
  const auto batch = static_cast<int>(config.train.batch), own = batch / static_cast<int>(config.pipeline.microbatches);
  std::vector<int> sizes;
  for (const int size : {own / 2, own, 2 * own})
    if (size >= 1 && batch % size == 0 && (size == own || batch / size >= devices)) sizes.push_back(size);
  return sizes;
}

void check_sizes(const Config& config, const std::vector<int>& sizes) {
  for (const int size : sizes)
    if (size < 1 || config.train.batch % size != 0)
      throw Error(concat("micro-batches of ", size, " sequences do not divide train.batch = ", config.train.batch), {},
                  "give sizes that divide the batch");
}

Graph grouped_step(const Config& config, const ModelRegistry& models, const NodeGroups& groups, int size) {
  return mark_stages(step_of(config, models, size), groups);
}

PlanGraph model_graph(const Config& config, const ModelRegistry& models, const NodeGroups& groups, const std::vector<int>& sizes,
                      const DeviceModel& device) {
  PlanGraph graph;
  for (const int size : sizes) {
    PlanGraph one = plan_graph(step_of(config, models, size), groups, device);
    if (graph.nodes.empty())
      graph = std::move(one);
    else
      add_size(graph, one);
  }
  graph.name = config.model.name;
  graph.samples = static_cast<int>(config.train.batch);
  return graph;
}

void take_model_nodes(const Config& config, const ModelRegistry& models, const NodeGroups& groups, PlanFile& file) {
  const Graph step = step_of(config, models, file.samples / file.microbatches);
  std::map<std::string, std::vector<std::string>> nodes_of_group;
  for (const std::string& node : nodes_of(step)) nodes_of_group[groups.at(node)].push_back(node);
  NodeGroups stage_of;
  std::vector<std::string> names;
  for (PlanFile::Stage& stage : file.stages) {
    std::vector<std::string> nodes;
    for (const std::string& group : stage.nodes)
      nodes.insert(nodes.end(), nodes_of_group.at(group).begin(), nodes_of_group.at(group).end());
    stage.nodes = std::move(nodes);
    names.push_back(stage.name);
    for (const std::string& node : stage.nodes) stage_of[node] = stage.name;
  }
  const StagedStep staged = prepare_stages(mark_stages(step, stage_of));
  if (staged.stages == names) file.schedule = without_missing(std::move(file.schedule), cut(staged, std::vector<bool>(names.size())).shape);
}

PlanFile model_plan(const Config& config, const ModelRegistry& models, const NodeGroups& groups, const PlanProblem& problem, Plan& plan) {
  return plan_of_nodes(step_of(config, models, batch_of(problem, plan.stages[0])), groups, problem, plan);
}

}  // namespace penstock
