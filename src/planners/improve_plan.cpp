#include "planners/improve_plan.h"

#include <algorithm>
#include <optional>
#include <random>

#include "base/numbers.h"
#include "cost/cost_model.h"
#include "search/anneal.h"

namespace penstock {
namespace {

// The way of this degree that is called as the one at `choice`, else the first of that degree; -1: it has none.
int choice_at_degree(const PlanNode& node, int choice, int degree) {
  const int same = choice_of(node, degree, node.costs[at(choice)].name);
  if (same >= 0) return same;
  const auto found = std::find_if(node.costs.begin(), node.costs.end(), [&](const NodeCost& cost) { return cost.degree == degree; });
  return found == node.costs.end() ? -1 : static_cast<int>(found - node.costs.begin());
}

// One random change of some stages. Each returns false where it makes no sense, and may then leave them half done.
class Change {
 public:
  Change(const PlanProblem& problem, std::mt19937_64& random, const std::vector<int>& sizes)
      : problem_(problem), graph_(problem.graph), random_(random), sizes_(sizes) {}

  bool apply(std::vector<PlanStage>& stages) {
    switch (below(16)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
      case 5:
        return move_nodes(stages);
      case 6:
      case 7:
        return split(stages);
      case 8:
        return merge(stages);
      case 9:
      case 10:
        return exchange_devices(stages);
      case 11:
      case 12:
        return change_replicas(stages);
      case 13:
      case 14:
        return change_size(stages);
      default:
        return change_ways(stages);
    }
  }

 private:
  // Not a standard distribution: those differ between libraries.
  int below(std::size_t count) { return static_cast<int>(random_() % count); }
  PlanStage& any(std::vector<PlanStage>& stages) { return stages[at(below(stages.size()))]; }

  // `node`, and with `later` all that follows it within its stage, or with `earlier` what comes before.
  std::vector<char> closure(const std::vector<int>& of, int node, bool later, bool earlier) const {
    std::vector<char> chosen(graph_.nodes.size(), 0);
    chosen[at(node)] = 1;
    const std::size_t edges = graph_.edges.size();
    // Edges may be in any order: as often as something is added. In the usual one once is enough.
    for (bool added = later || earlier; added;) {
      added = false;
      for (std::size_t i = 0; i < edges; ++i) {
        const PlanEdge& edge = graph_.edges[later ? i : edges - 1 - i];
        const int a = later ? edge.from : edge.to, b = later ? edge.to : edge.from;
        if (of[at(b)] != of[at(node)] || of[at(a)] != of[at(node)] || !chosen[at(a)] || chosen[at(b)]) continue;
        chosen[at(b)] = 1;
        added = true;
      }
    }
    return chosen;
  }

  // Moves the chosen nodes of stage `from` to stage `to`.
  bool move(std::vector<PlanStage>& stages, const std::vector<char>& chosen, int from, int to) {
    PlanStage &a = stages[at(from)], &b = stages[at(to)];
    std::vector<std::pair<int, int>> stay, go;  // node, choice
    for (std::size_t i = 0; i < a.nodes.size(); ++i) (chosen[at(a.nodes[i])] ? go : stay).emplace_back(a.nodes[i], a.choices[i]);
    for (auto& [node, choice] : go) {
      choice = choice_at_degree(graph_.nodes[at(node)], choice, b.degree);
      if (choice < 0) return false;
    }
    for (std::size_t i = 0; i < b.nodes.size(); ++i) go.emplace_back(b.nodes[i], b.choices[i]);
    std::sort(go.begin(), go.end());
    set_nodes(a, stay);
    set_nodes(b, go);
    if (stay.empty()) stages.erase(stages.begin() + from);
    return true;
  }
  static void set_nodes(PlanStage& stage, const std::vector<std::pair<int, int>>& nodes) {
    stage.nodes.clear();
    stage.choices.clear();
    for (const auto& [node, choice] : nodes) {
      stage.nodes.push_back(node);
      stage.choices.push_back(choice);
    }
  }

  bool move_nodes(std::vector<PlanStage>& stages) {
    if (stages.size() < 2) return false;
    const std::vector<int> of = places_of(graph_, stages).stage;
    int node = below(graph_.nodes.size()), to = below(stages.size());
    if (!graph_.edges.empty() && below(4) > 0) {  // over a border
      const std::size_t begin = at(below(graph_.edges.size()));
      for (std::size_t i = 0; i < graph_.edges.size(); ++i) {
        const PlanEdge& edge = graph_.edges[(begin + i) % graph_.edges.size()];
        if (of[at(edge.from)] == of[at(edge.to)]) continue;
        const bool forward = below(2) == 0;
        node = forward ? edge.from : edge.to;
        to = of[at(forward ? edge.to : edge.from)];
        break;
      }
    }
    const int from = of[at(node)];
    if (from == to) return false;
    const bool with_all = below(2) == 0;
    return move(stages, closure(of, node, with_all && from < to, with_all && from > to), from, to);
  }

  // To a device that is idle, or one of its replicas', or another stage's.
  bool split(std::vector<PlanStage>& stages) {
    const std::vector<int> of = places_of(graph_, stages).stage;
    const int node = below(graph_.nodes.size()), from = of[at(node)];
    if (stages[at(from)].nodes.size() < 2) return false;
    std::vector<int> idle = idle_devices(problem_.cluster, stages);
    if (idle.empty()) {
      PlanStage& donor = any(stages);
      if (donor.replicas() < 2) return false;
      for (int i = 0; i < donor.degree; ++i) take(donor.devices, idle);
    }
    PlanStage added;
    added.degree = stages[at(from)].degree <= static_cast<int>(idle.size()) ? stages[at(from)].degree : 1;
    added.samples = stages[at(from)].samples;
    for (int i = 0; i < added.degree; ++i) take(idle, added.devices);
    stages.push_back(std::move(added));
    const bool later = below(2) == 0;
    return move(stages, closure(of, node, later, !later), from, static_cast<int>(stages.size()) - 1);
  }

  bool merge(std::vector<PlanStage>& stages) {
    if (stages.size() < 2) return false;
    const int from = below(stages.size()), to = below(stages.size());
    if (from == to) return false;
    PlanStage &a = stages[at(from)], &b = stages[at(to)];
    if (problem_.replicas && below(2) == 0 && a.devices.size() % at(b.degree) == 0) {
      b.devices.insert(b.devices.end(), a.devices.begin(), a.devices.end());
      std::sort(b.devices.begin(), b.devices.end());
    }
    return move(stages, std::vector<char>(graph_.nodes.size(), 1), from, to);
  }

  bool exchange_devices(std::vector<PlanStage>& stages) {
    PlanStage& a = any(stages);
    std::vector<int> idle = idle_devices(problem_.cluster, stages);
    if (!idle.empty() && below(2) == 0) {
      std::swap(a.devices[at(below(a.devices.size()))], idle[at(below(idle.size()))]);
    } else {
      PlanStage& b = any(stages);
      if (&a == &b) return false;
      if (below(2) == 0 && static_cast<int>(b.devices.size()) % a.degree == 0 && static_cast<int>(a.devices.size()) % b.degree == 0)
        std::swap(a.devices, b.devices);
      else
        std::swap(a.devices[at(below(a.devices.size()))], b.devices[at(below(b.devices.size()))]);
      std::sort(b.devices.begin(), b.devices.end());
    }
    std::sort(a.devices.begin(), a.devices.end());
    return true;
  }

  void take(std::vector<int>& from, std::vector<int>& to) {
    const std::size_t i = at(below(from.size()));
    to.insert(std::upper_bound(to.begin(), to.end(), from[i]), from[i]);
    from.erase(from.begin() + static_cast<std::ptrdiff_t>(i));
  }

  bool change_replicas(std::vector<PlanStage>& stages) {
    if (!problem_.replicas) return false;
    PlanStage& stage = any(stages);
    std::vector<int> idle = idle_devices(problem_.cluster, stages);
    if (stage.replicas() > 1 && below(3) == 0) {
      for (int i = 0; i < stage.degree; ++i) take(stage.devices, idle);
      return true;
    }
    if (idle.empty()) {  // from another
      PlanStage& donor = any(stages);
      if (&donor == &stage || donor.replicas() < 2) return false;
      for (int i = 0; i < donor.degree; ++i) take(donor.devices, idle);
    }
    if (static_cast<int>(idle.size()) < stage.degree) return false;
    for (int i = 0; i < stage.degree; ++i) take(idle, stage.devices);
    return true;
  }

  bool change_size(std::vector<PlanStage>& stages) {
    const int size = sizes_[at(below(sizes_.size()))];
    if (sizes_.size() < 2) return false;
    if (below(2) == 0) {
      for (PlanStage& stage : stages) stage.samples = size;
    } else {
      any(stages).samples = size;
    }
    return true;
  }

  // One node's, or the whole stage's: then to any degree for which it has the devices.
  bool change_ways(std::vector<PlanStage>& stages) {
    PlanStage& stage = any(stages);
    const auto& costs = graph_.nodes[at(stage.nodes[at(below(stage.nodes.size()))])].costs;
    const NodeCost& way = costs[at(below(costs.size()))];
    const std::size_t only = below(2) == 0 ? at(below(stage.nodes.size())) : stage.nodes.size();
    if (only < stage.nodes.size() && way.degree != stage.degree) return false;
    if (stage.devices.size() % at(way.degree) != 0) {
      std::vector<int> idle = idle_devices(problem_.cluster, stages);
      while (stage.devices.size() % at(way.degree) != 0 && !idle.empty()) take(idle, stage.devices);
    }
    if (stage.devices.size() % at(way.degree) != 0) return false;
    stage.degree = way.degree;
    if (stage.replicas() > 1 && !problem_.replicas) stage.devices.resize(at(stage.degree));
    for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
      if (only < stage.nodes.size() && i != only) continue;
      const PlanNode& node = graph_.nodes[at(stage.nodes[i])];
      const int named = choice_of(node, way.degree, way.name);
      stage.choices[i] = named >= 0 ? named : choice_at_degree(node, stage.choices[i], way.degree);
      if (stage.choices[i] < 0) return false;
    }
    return true;
  }

  const PlanProblem& problem_;
  const PlanGraph& graph_;
  std::mt19937_64& random_;
  const std::vector<int>& sizes_;
};

double lack_of(const PlanFigures& figures) {
  double lack = 0;
  for (const StageFigures& s : figures.stages) lack += std::max(0.0, s.bytes(s.ahead) / s.memory - 1);
  return figures.fit() ? 0 : lack;
}

// What annealing goes down: a plan that does not fit counts as a longer one.
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
  Change change(problem, random, sizes);
  std::vector<PlanStage> best = stages, next;
  PlanScore least = score_of(figures_of(problem, stages), options.goal), score;
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
    bool possible = change.apply(next);
    for (int more = static_cast<int>(random() % 3); more > 0 && possible; --more) possible = change.apply(next);
    if (!possible || !order_stages(problem.graph, next) || !sizes_agree(problem, next)) return {};
    const PlanFigures figures = figures_of(problem, next);
    if (!can_be_simulated(figures)) return {};
    if (options.goal == PlanGoal::time && energy({lack_of(figures), step_bound(figures)}) > most) return kInfinity;
    limit.is_over(forwards_of(figures));
    score = score_of(figures, options.goal);
    return energy(score);
  };
  const auto settle = [&](double, bool stays) {
    if (!stays) return;
    std::swap(stages, next);
    if (score < least) least = score, best = stages;
  };
  const double now = energy(score_of(figures_of(problem, stages), options.goal));
  anneal(options.tries, Cooling{now, random, progress}, [&](std::int64_t) { return !limit.is_over(work); }, change_some, settle);
  return best;
}

}  // namespace penstock
