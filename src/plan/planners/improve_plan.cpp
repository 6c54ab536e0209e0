// SPDX-License-Identifier: Apache-2.0
#include "planners/improve_plan.h"

#include <algorithm>
#include <optional>
#include <random>

#include "base/numbers.h"
#include "cost/cost_model.h"
#include "search/anneal.h"

namespace penstock {
namespace {

// The inputs of random changes to a plan.
struct Luck {
  const PlanProblem& problem;
  std::mt19937_64& random;
  const std::vector<int>& sizes;
};

// Not a standard distribution: those differ between libraries.
int below(const Luck& luck, std::size_t count) {
  return static_cast<int>(luck.random() % count);
}

PlanStage& any(const Luck& luck, std::vector<PlanStage>& stages) {
  return stages[at(below(luck, stages.size()))];
}

// `node`, and with `later` all that follows it within its stage, or with `earlier` what comes before.
std::vector<char> closure(const PlanGraph& graph, const std::vector<int>& of, int node, bool later, bool earlier) {
  std::vector<char> chosen(graph.nodes.size(), 0);
  chosen[at(node)] = 1;
  const std::size_t edges = graph.edges.size();
  // Edges may be in any order: as often as something is added. In the usual one once is enough.
  for (bool added = later || earlier; added;) {
    added = false;
    for (std::size_t i = 0; i < edges; ++i) {
      const PlanEdge& edge = graph.edges[later ? i : edges - 1 - i];
      const int a = later ? edge.from : edge.to, b = later ? edge.to : edge.from;
      if (of[at(b)] != of[at(node)] || of[at(a)] != of[at(node)] || !chosen[at(a)] || chosen[at(b)]) continue;
      chosen[at(b)] = 1;
      added = true;
    }
  }
  return chosen;
}

void set_nodes(PlanStage& stage, const std::vector<std::pair<int, int>>& nodes) {
  stage.nodes.clear();
  stage.choices.clear();
  for (const auto& [node, choice] : nodes) {
    stage.nodes.push_back(node);
    stage.choices.push_back(choice);
  }
}

// Moves the chosen nodes of stage `from` to stage `to`.
bool move(const PlanGraph& graph, std::vector<PlanStage>& stages, const std::vector<char>& chosen, int from, int to) {
  PlanStage &a = stages[at(from)], &b = stages[at(to)];
  std::vector<std::pair<int, int>> stay, go;  // node, choice
  for (std::size_t i = 0; i < a.nodes.size(); ++i) (chosen[at(a.nodes[i])] ? go : stay).emplace_back(a.nodes[i], a.choices[i]);
  for (auto& [node, choice] : go) {
    const PlanNode& moved = graph.nodes[at(node)];
    choice = nearest_choice(moved, b.degree, moved.costs[at(choice)].name);
    if (choice < 0) return false;
  }
  for (std::size_t i = 0; i < b.nodes.size(); ++i) go.emplace_back(b.nodes[i], b.choices[i]);
  std::sort(go.begin(), go.end());
  set_nodes(a, stay);
  set_nodes(b, go);
  if (stay.empty()) stages.erase(stages.begin() + from);
  return true;
}

bool move_nodes(const Luck& luck, std::vector<PlanStage>& stages) {
  if (stages.size() < 2) return false;
  const PlanGraph& graph = luck.problem.graph;
  const std::vector<int> of = places_of(graph, stages).stage;
  int node = below(luck, graph.nodes.size()), to = below(luck, stages.size());
  if (!graph.edges.empty() && below(luck, 4) > 0) {  // over a border
    const std::size_t begin = at(below(luck, graph.edges.size()));
    for (std::size_t i = 0; i < graph.edges.size(); ++i) {
      const PlanEdge& edge = graph.edges[(begin + i) % graph.edges.size()];
      if (of[at(edge.from)] == of[at(edge.to)]) continue;
      const bool forward = below(luck, 2) == 0;
      node = forward ? edge.from : edge.to;
      to = of[at(forward ? edge.to : edge.from)];
      break;
    }
  }
  const int from = of[at(node)];
  if (from == to) return false;
  const bool with_all = below(luck, 2) == 0;
  return move(graph, stages, closure(graph, of, node, with_all && from < to, with_all && from > to), from, to);
}

void take(const Luck& luck, std::vector<int>& from, std::vector<int>& to) {
  const std::size_t i = at(below(luck, from.size()));
  to.insert(std::upper_bound(to.begin(), to.end(), from[i]), from[i]);
  from.erase(from.begin() + static_cast<std::ptrdiff_t>(i));
}

// To a device that is idle, or one of its replicas', or another stage's.
bool split(const Luck& luck, std::vector<PlanStage>& stages) {
  const std::vector<int> of = places_of(luck.problem.graph, stages).stage;
  const int node = below(luck, luck.problem.graph.nodes.size()), from = of[at(node)];
  if (stages[at(from)].nodes.size() < 2) return false;
  std::vector<int> idle = idle_devices(luck.problem.cluster, stages);
  if (idle.empty()) {
    PlanStage& donor = any(luck, stages);
    if (donor.replicas() < 2) return false;
    for (int i = 0; i < donor.degree; ++i) take(luck, donor.devices, idle);
  }
  PlanStage added;
  added.degree = stages[at(from)].degree <= static_cast<int>(idle.size()) ? stages[at(from)].degree : 1;
  added.samples = stages[at(from)].samples;
  for (int i = 0; i < added.degree; ++i) take(luck, idle, added.devices);
  stages.push_back(std::move(added));
  const bool later = below(luck, 2) == 0;
  return move(luck.problem.graph, stages, closure(luck.problem.graph, of, node, later, !later), from, static_cast<int>(stages.size()) - 1);
}

bool merge(const Luck& luck, std::vector<PlanStage>& stages) {
  if (stages.size() < 2) return false;
  const int from = below(luck, stages.size()), to = below(luck, stages.size());
  if (from == to) return false;
  PlanStage &a = stages[at(from)], &b = stages[at(to)];
  if (luck.problem.replicas && below(luck, 2) == 0 && a.devices.size() % at(b.degree) == 0) {
    b.devices.insert(b.devices.end(), a.devices.begin(), a.devices.end());
    std::sort(b.devices.begin(), b.devices.end());
  }
  return move(luck.problem.graph, stages, std::vector<char>(luck.problem.graph.nodes.size(), 1), from, to);
}

bool exchange_devices(const Luck& luck, std::vector<PlanStage>& stages) {
  PlanStage& a = any(luck, stages);
  std::vector<int> idle = idle_devices(luck.problem.cluster, stages);
  if (!idle.empty() && below(luck, 2) == 0) {
    std::swap(a.devices[at(below(luck, a.devices.size()))], idle[at(below(luck, idle.size()))]);
  } else {
    PlanStage& b = any(luck, stages);
    if (&a == &b) return false;
    if (below(luck, 2) == 0 && static_cast<int>(b.devices.size()) % a.degree == 0 && static_cast<int>(a.devices.size()) % b.degree == 0)
      std::swap(a.devices, b.devices);
    else
      std::swap(a.devices[at(below(luck, a.devices.size()))], b.devices[at(below(luck, b.devices.size()))]);
    std::sort(b.devices.begin(), b.devices.end());
  }
  std::sort(a.devices.begin(), a.devices.end());
  return true;
}

bool change_replicas(const Luck& luck, std::vector<PlanStage>& stages) {
  if (!luck.problem.replicas) return false;
  PlanStage& stage = any(luck, stages);
  std::vector<int> idle = idle_devices(luck.problem.cluster, stages);
  if (stage.replicas() > 1 && below(luck, 3) == 0) {
    for (int i = 0; i < stage.degree; ++i) take(luck, stage.devices, idle);
    return true;
  }
  if (idle.empty()) {  // from another
    PlanStage& donor = any(luck, stages);
    if (&donor == &stage || donor.replicas() < 2) return false;
    for (int i = 0; i < donor.degree; ++i) take(luck, donor.devices, idle);
  }
  if (static_cast<int>(idle.size()) < stage.degree) return false;
  for (int i = 0; i < stage.degree; ++i) take(luck, idle, stage.devices);
  return true;
}

bool change_size(const Luck& luck, std::vector<PlanStage>& stages) {
  const int size = luck.sizes[at(below(luck, luck.sizes.size()))];
  if (luck.sizes.size() < 2) return false;
  if (below(luck, 2) == 0) {
    for (PlanStage& stage : stages) stage.samples = size;
  } else {
    any(luck, stages).samples = size;
  }
  return true;
}

// One node's, or the whole stage's: then to any degree for which it has the devices.
bool change_ways(const Luck& luck, std::vector<PlanStage>& stages) {
  PlanStage& stage = any(luck, stages);
  const auto& costs = luck.problem.graph.nodes[at(stage.nodes[at(below(luck, stage.nodes.size()))])].costs;
  const NodeCost& way = costs[at(below(luck, costs.size()))];
  const std::size_t only = below(luck, 2) == 0 ? at(below(luck, stage.nodes.size())) : stage.nodes.size();
  if (only < stage.nodes.size() && way.degree != stage.degree) return false;
  if (stage.devices.size() % at(way.degree) != 0) {
    std::vector<int> idle = idle_devices(luck.problem.cluster, stages);
    while (stage.devices.size() % at(way.degree) != 0 && !idle.empty()) take(luck, idle, stage.devices);
  }
  if (stage.devices.size() % at(way.degree) != 0) return false;
  stage.degree = way.degree;
  if (stage.replicas() > 1 && !luck.problem.replicas) stage.devices.resize(at(stage.degree));
  for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
    if (only < stage.nodes.size() && i != only) continue;
    const PlanNode& node = luck.problem.graph.nodes[at(stage.nodes[i])];
    const int named = choice_of(node, way.degree, way.name);
    stage.choices[i] = named >= 0 ? named : nearest_choice(node, way.degree, node.costs[at(stage.choices[i])].name);
    if (stage.choices[i] < 0) return false;
  }
  return true;
}

// One random change. False where it makes no sense; it may then be half done.
bool change(const Luck& luck, std::vector<PlanStage>& stages) {
  const int kind = below(luck, 16);
  if (kind < 6) return move_nodes(luck, stages);
  if (kind < 8) return split(luck, stages);
  if (kind < 9) return merge(luck, stages);
  if (kind < 11) return exchange_devices(luck, stages);
  if (kind < 13) return change_replicas(luck, stages);
  if (kind < 15) return change_size(luck, stages);
  return change_ways(luck, stages);
}

double lack_of(const PlanFigures& figures) {
  double lack = 0;
  for (const StageFigures& s : figures.stages) lack += std::max(0.0, s.bytes(s.ahead) / s.memory - 1);
  return figures.fit() ? 0 : lack;
}

// Returns the value that annealing makes smaller: a plan that does not fit counts as a longer one.
double energy(const PlanScore& score) {
  return score.value * (1 + 20 * score.lack);
}

}  // namespace

PlanScore score_of(const PlanFigures& figures, PlanGoal goal) {
  if (goal == PlanGoal::time) return {lack_of(figures), step_seconds(figures)};
  double bytes = 0;
  for (const StageFigures& s : figures.stages)
    if (s.bytes(s.ahead) > s.memory) bytes = std::max(bytes, s.bytes(s.ahead));
  return {0, figures.fit() ? 0 : bytes};
}

bool sizes_agree(const PlanProblem& problem, const std::vector<PlanStage>& stages) {
  int size = 0;
  for (const PlanStage& stage : stages)
    for (const int node : stage.nodes) {
      if (!problem.graph.nodes[at(node)].equal_batches) continue;
      if (size == 0) size = batch_of(problem, stage);
      if (size != batch_of(problem, stage)) return false;
    }
  return true;
}

std::vector<PlanStage> improve_stages(const PlanProblem& problem, std::vector<PlanStage> stages, const ImproveOptions& options,
                                      TimeLimit& limit) {
  std::mt19937_64 random(options.seed);
  const std::vector<int> sizes = allowed_batches(problem);
  const Luck luck{problem, random, sizes};
  const auto score_within = [&](const std::vector<PlanStage>& of, double most) -> PlanScore {
    if (options.score) return options.score(of);
    const PlanFigures figures = figures_of(problem, of);
    if (!can_be_simulated(figures)) return {0, kInfinity};
    if (options.goal == PlanGoal::time && energy({lack_of(figures), step_bound(figures)}) > most) return {0, kInfinity};
    limit.is_over(forwards_of(figures));
    return score_of(figures, options.goal);
  };
  std::vector<PlanStage> best = stages, next;
  PlanScore least = score_within(stages, kInfinity), score;
  for (PlanStage& stage : stages) {
    if (stage.choices.empty()) stage.choices.assign(stage.nodes.size(), 0);
    stage.ahead = 0;  // what a planner counted with is no longer so when its stages change
  }
  const std::int64_t work =
      static_cast<std::int64_t>(problem.graph.nodes.size() + problem.graph.edges.size() + problem.cluster.devices.size());
  // Where time is short it sets the pace of cooling; else it does not count, and the same seed does the same.
  const auto progress = [&](std::int64_t n) {
    const double late = limit.share_used(), tried = static_cast<double>(n) / options.tries;
    return late > 0.25 ? std::max(late, tried) : tried;
  };
  const auto change_some = [&](double most) -> std::optional<double> {
    next = stages;
    bool possible = change(luck, next);
    for (int more = static_cast<int>(random() % 3); more > 0 && possible; --more) possible = change(luck, next);
    if (!possible || !order_stages(problem.graph, next) || !sizes_agree(problem, next)) return {};
    score = score_within(next, most);
    return energy(score);
  };
  const auto settle = [&](double, bool stays) {
    if (!stays) return;
    std::swap(stages, next);
    if (score < least) least = score, best = stages;
  };
  const double now = energy(score_within(stages, kInfinity));
  anneal(options.tries, Cooling{now, random, progress}, [&](std::int64_t) { return !limit.is_over(work); }, change_some, settle);
  return best;
}

}  // namespace penstock
