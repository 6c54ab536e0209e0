// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "cost/cost_model.h"
#include "cost/evaluate.h"
#include "penstock/error.h"
#include "planners/planner_list.h"

namespace penstock {
namespace {

void check_edges(const PlanGraph& graph) {
  const int nodes = static_cast<int>(graph.nodes.size());
  for (const PlanEdge& edge : graph.edges) {
    if (edge.from >= 0 && edge.from < edge.to && edge.to < nodes) continue;
    throw Error(concat("an edge of ", graph.name, " goes from node ", edge.from, " to ", edge.to),
                {concat("nodes are 0 to ", nodes - 1, " in topological order")},
                "number the nodes so that every edge goes to a larger one");
  }
}

void check_cluster(const ClusterSpec& cluster) {
  if (cluster.devices.empty()) throw Error(concat("cluster ", quote(cluster.name), " has no devices"), {}, "give one at least");
  for (std::size_t d = 0; d < cluster.devices.size(); ++d) {
    const ClusterDevice& device = cluster.devices[d];
    if (device.speed > 0 && std::isfinite(device.speed) && device.memory > 0) continue;
    throw Error(concat("device ", d, " of cluster ", quote(cluster.name), " has speed ", number(device.speed), " and ",
                       number(device.memory), " bytes of memory"),
                {}, "both must be positive");
  }
}

class Checks {
 public:
  Checks(const PlanProblem& problem, const Plan& plan) : problem_(problem), plan_(plan), stage_of_(problem.graph.nodes.size(), -1) {}

  void run() {
    std::vector<int> holder(problem_.cluster.devices.size(), -1);
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      check_nodes(s);
      check_devices(s, holder);
      check_swaps(s);
      check_samples(s);
    }
    for (std::size_t n = 0; n < stage_of_.size(); ++n)
      if (stage_of_[n] < 0) fail(concat("no stage has node ", node_text(static_cast<int>(n))));
    for (const PlanEdge& edge : problem_.graph.edges) {
      const int from = stage_of(edge.from), to = stage_of(edge.to);
      if (from > to)
        fail(concat("stage ", from, " feeds stage ", to, ", which stands before it"),
             {concat(node_text(edge.from), " -> ", node_text(edge.to))});
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::vector<std::string>& details = {}) const {
    throw Error(concat("plan of ", problem_.graph.name, ": ", what), details);
  }
  int& stage_of(int node) { return stage_of_[node]; }
  std::string node_text(int node) const { return concat(node, " ", quote(problem_.graph.nodes[node].name)); }

  void check_nodes(std::size_t s) {
    const PlanStage& stage = plan_.stages[s];
    if (stage.nodes.empty()) fail(concat("stage ", s, " has no nodes"));
    if (!stage.choices.empty() && stage.choices.size() != stage.nodes.size())
      fail(concat("stage ", s, " has ", stage.choices.size(), " choices for ", stage.nodes.size(), " nodes"));
    for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
      const int node = stage.nodes[i];
      if (node < 0 || node >= std::ssize(stage_of_)) fail(concat("stage ", s, " has node ", node, ", which the graph has not"));
      if (i > 0 && node <= stage.nodes[i - 1]) fail(concat("the nodes of stage ", s, " are not ascending"));
      if (stage_of(node) >= 0) fail(concat("stages ", stage_of(node), " and ", s, " both have node ", node_text(node)));
      stage_of(node) = static_cast<int>(s);
      check_choice(s, i);
    }
  }

  // A node's choice must be the first of its costs of that (name, degree), and of the stage's degree.
  void check_choice(std::size_t s, std::size_t i) const {
    const PlanStage& stage = plan_.stages[s];
    const auto& costs = problem_.graph.nodes[stage.nodes[i]].costs;
    const int choice = stage.choices.empty() ? 0 : stage.choices[i];
    if (choice < 0 || choice >= std::ssize(costs))
      fail(concat("stage ", s, " runs node ", node_text(stage.nodes[i]), " by cost ", choice, " of ", costs.size()));
    const NodeCost& cost = costs[choice];
    if (cost.degree != stage.degree)
      fail(concat("stage ", s, " runs node ", node_text(stage.nodes[i]), " on ", cost.degree, " devices, the others on ", stage.degree));
    if (choice_of(problem_.graph.nodes[stage.nodes[i]], cost.degree, cost.name) != choice)
      fail(concat("stage ", s, " does not name the first cost of node ", node_text(stage.nodes[i]), " of its way and degree"));
  }

  void check_devices(std::size_t s, std::vector<int>& holder) const {
    const PlanStage& stage = plan_.stages[s];
    if (stage.devices.empty()) fail(concat("stage ", s, " has no device"));
    if (stage.degree < 1 || stage.devices.size() % static_cast<std::size_t>(stage.degree) != 0)
      fail(concat("stage ", s, " has ", stage.devices.size(), " devices for replicas of ", stage.degree));
    if (!problem_.replicas && stage.replicas() > 1)
      fail(concat("stage ", s, " has ", stage.replicas(), " replicas, which are not allowed"));
    for (const int device : stage.devices) {
      if (device < 0 || device >= std::ssize(holder))
        fail(concat("stage ", s, " is on device ", device, " of a cluster of ", holder.size()));
      int& held = holder[device];
      if (held >= 0) fail(concat("stages ", held, " and ", s, " are both on device ", device));
      held = static_cast<int>(s);
    }
  }

  void check_swaps(std::size_t s) const {
    const PlanStage& stage = plan_.stages[s];
    if (weakest(problem_.cluster, stage.devices).host) return;
    for (std::size_t i = 0; i < stage.nodes.size(); ++i)
      if (problem_.graph.nodes[stage.nodes[i]].costs[stage.choices.empty() ? 0 : stage.choices[i]].swap_bytes > 0)
        fail(concat("stage ", s, " swaps what node ", node_text(stage.nodes[i]), " reads"),
             {"nothing says which link its devices have to their host's memory"});
  }

  void check_samples(std::size_t s) {
    const PlanStage& stage = plan_.stages[s];
    const int step = step_samples(problem_), size = batch_of(problem_, stage);
    if (size < 1 || step % size != 0)
      fail(concat("stage ", s, " takes micro-batches of ", size, " samples, which do not divide the step's ", step));
    for (const int node : stage.nodes) {
      if (!problem_.graph.nodes[node].equal_batches) continue;
      if (equal_size_ == 0) equal_size_ = size;
      if (equal_size_ != size)
        fail(concat("stage ", s, " takes micro-batches of ", size, " samples, others of ", equal_size_),
             {concat("node ", node_text(node), " depends on the micro-batch's size, as nodes of other stages do")});
    }
  }

  const PlanProblem& problem_;
  const Plan& plan_;
  std::vector<int> stage_of_;
  int equal_size_ = 0;  // size of the micro-batches of stages whose nodes need equal ones
};

void check_microbatches(const PlanProblem& problem) {
  constexpr int kMost = 100'000;
  const int samples = step_samples(problem), smallest = allowed_batches(problem).front();
  if (samples / smallest > kMost)
    throw Error(concat("a step of ", samples, " samples has ", samples / smallest, " micro-batches of ", smallest),
                {concat("a plan has at most ", kMost)}, "--microbatch-sizes SIZES, or a smaller --batch");
}

void check_costs(const PlanGraph& graph) {
  for (const PlanNode& node : graph.nodes)
    if (node.costs.empty()) throw Error(concat("node ", quote(node.name), " of ", graph.name, " has no costs"));
}

}  // namespace

void check_problem(const PlanProblem& problem) {
  check_cluster(problem.cluster);
  check_costs(problem.graph);
  measured_samples(problem.graph);
  check_edges(problem.graph);
  check_microbatches(problem);
}

void check_plan(const PlanProblem& problem, const Plan& plan) {
  Checks(problem, plan).run();
}

}  // namespace penstock
