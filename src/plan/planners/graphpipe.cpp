// SPDX-License-Identifier: Apache-2.0
// GraphPipe (2406.17145): stages that branch and join. None is slower per sample than a target, the least that can be kept, and the longest
// path through them is as short as possible, because what a step takes beyond its bottleneck depends on the depth of the pipeline and not
// on its number of stages.
//
// T = B * slowest + longest path (iteration_time.h). Bisection finds the least target for which there are stages (graphpipe_search.h); from
// there the target rises by a hundredth (for large graphs by three) as long as a shorter path could still make up for it, and every answer
// is a candidate. So the formula's best over all targets is missed by as much at most. The formula leaves out how transfers and
// micro-batches of different sizes meet, so the plan is the candidate that is fastest in simulation. The candidates include those with one
// size for all stages, and those of the plain line of nodes without branches: a pipeline in a row is taken where it is better.
//
// Branches stand in a line and only neighbours form a group, so two lines are tried: the graph's own order and one with heavy and light
// branches in turn. What lines leave out, as stages that share several branches, is looked for from the best plan (graphpipe_formula.h).
//
// Devices are taken as equal: as slow and as small as the weakest among them. Where they differ, the stronger ones alone are tried too.
// Links are as the slowest of the cluster and, where there is a hierarchy, as those of each level.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>

#include "base/numbers.h"
#include "cost/cost_model.h"
#include "cost/evaluate.h"
#include "cost/iteration_time.h"
#include "cost/smallest_memory.h"
#include "planners/graphpipe.h"
#include "planners/graphpipe_formula.h"
#include "planners/graphpipe_search.h"
#include "planners/planner_list.h"

namespace penstock {
namespace {

constexpr int kLargeGraph = 100;     // nodes; in larger graphs the targets are three times as far apart
constexpr double kWorthwhile = 1.1;  // a line whose candidates take longer than this times the best is not searched

using Candidate = GraphpipePlan;

struct Finder {
  const PlanProblem& problem;
  TimeLimit& limit;
  std::int64_t states = 0;
  std::vector<Candidate> squeezed = {};
  Candidate best = {.plan = {}, .time = kInfinity};  // by the formula
  const StageCosting* costing = nullptr;             // of the best
  std::optional<Candidate> last = {};                // the last one found for a line's targets
};

// Numbers of replicas to try: all where there are few, of many those of five binary digits, and the largest possible.
std::vector<int> replica_counts(int most) {
  std::vector<int> counts;
  for (int count = 1, step = 1; count <= most; count += step) {
    if (count >= 64 * step) step *= 2;
    counts.push_back(count);
  }
  if (counts.back() != most) counts.push_back(most);
  return counts;
}

// --- what stages may be ---

// Replicas share a micro-batch evenly. A graph measured with a single sample does not say its samples: that one may be shared.
std::vector<StageOption> options_of(const PlanProblem& problem, StageCosting& costing, const std::vector<int>& sizes) {
  const bool whole = allowed_batches(problem) != std::vector<int>{1};
  std::set<double> shares;
  std::vector<StageOption> options;
  const int most = problem.replicas ? static_cast<int>(costing.devices.size()) : 1;
  for (const int size : sizes)
    for (const int r : replica_counts(most)) {
      if (whole && size % r != 0) continue;
      shares.insert(static_cast<double>(size) / r);
      const double ring = 2.0 * (r - 1), batches = static_cast<double>(costing.samples) / size;
      options.push_back({.samples = size,
                         .replicas = r,
                         .transfer = 1 / (r * costing.link.bandwidth),
                         .reduce = ring / r / costing.link.bandwidth / batches,
                         .reduce_latency = ring * costing.link.latency / batches});
    }
  costing.shares.assign(shares.begin(), shares.end());
  for (StageOption& option : options) {
    const double share = static_cast<double>(option.samples) / option.replicas;
    option.share = static_cast<int>(std::distance(shares.begin(), shares.find(share)));
  }
  return options;
}

// The names of the ways to run on one device; each node needs one of them.
std::set<std::string> names_of(const PlanGraph& graph) {
  std::set<std::string> names;
  for (const PlanNode& node : graph.nodes) {
    const std::vector<int> ways = ways_of(node, 1);
    if (ways.empty()) fail_one_device(node, "graphpipe");
    for (const int way : ways) names.insert(node.costs[way].name);
  }
  return names;
}

// One way for each node: the one of this name where the node has it, on one device.
std::vector<int> choices_of(const PlanGraph& graph, const std::string& name) {
  std::vector<int> choices;
  for (const PlanNode& node : graph.nodes) choices.push_back(nearest_choice(node, 1, name));
  return choices;
}

// Adds costings with one size for all stages, from the smallest, which needs the least memory; then one in which each stage has its own
// size (but one size for all stages whose nodes need that), which takes longer to search.
void add_sizes(const PlanProblem& problem, StageCosting costing, std::vector<StageCosting>& costings) {
  const std::vector<int> sizes = allowed_batches(problem);
  for (const int size : sizes) {
    costing.options = options_of(problem, costing, {size});
    costings.push_back(costing);
  }
  if (sizes.size() == 1) return;
  const auto& nodes = problem.graph.nodes;
  const bool equal = std::any_of(nodes.begin(), nodes.end(), [](const PlanNode& node) { return node.equal_batches; });
  costing.options = options_of(problem, costing, sizes);
  for (const int size : equal ? sizes : std::vector<int>{0}) {
    costing.equal_size = size;
    costings.push_back(costing);
  }
}

// Sets of devices: for each speed and memory the devices at least as fast and as large, taken as equal to the weakest of them. All devices
// come first.
std::vector<StageCosting> device_sets(const PlanProblem& problem) {
  const auto& devices = problem.cluster.devices;
  std::set<double> speeds, memories;
  for (const ClusterDevice& device : devices) speeds.insert(device.speed), memories.insert(device.memory);
  std::vector<StageCosting> sets;
  for (const double speed : speeds)
    for (const double memory : memories) {
      StageCosting set{.speed = speed, .memory = memory, .samples = step_samples(problem)};
      for (std::size_t d = 0; d < devices.size(); ++d)
        if (devices[d].speed >= speed && devices[d].memory >= memory) set.devices.push_back(static_cast<int>(d));
      const bool known = std::any_of(sets.begin(), sets.end(), [&](const StageCosting& s) { return s.devices == set.devices; });
      if (!set.devices.empty() && !known) sets.push_back(std::move(set));
    }
  return sets;
}

// The combinations of devices, ways to run nodes and sizes of micro-batches; all their plans compete.
std::vector<StageCosting> costings_of(const PlanProblem& problem) {
  const std::set<std::string> names = names_of(problem.graph);
  std::vector<StageCosting> costings;
  for (StageCosting& set : device_sets(problem)) {
    std::vector<ClusterLink> links = {slowest_link(problem.cluster, set.devices, set.devices)};
    for (const ClusterSpec::Level& level : problem.cluster.levels)
      if (level.size > 1 && level.link.bandwidth > links[0].bandwidth) links.push_back(level.link);
    for (const ClusterLink& link : links)
      for (const std::string& name : names) {
        set.link = link;
        set.choices = choices_of(problem.graph, name);
        add_sizes(problem, set, costings);
      }
  }
  return costings;
}

// --- in which lines the nodes stand ---

// The least device seconds of each node for a sample.
std::vector<double> node_work(const PlanGraph& graph, const StageCosting& costing) {
  std::vector<double> work;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const SetCost cost = cost_of(graph.nodes[i], costing.choices[i], costing.shares.back());
    work.push_back((cost.forward + cost.backward) / costing.shares.back());
  }
  return work;
}

SeriesParallel tree_of(const PlanGraph& graph, const std::vector<double>& work) {
  std::vector<std::pair<int, int>> edges;
  for (const PlanEdge& edge : graph.edges) edges.emplace_back(edge.from, edge.to);
  return series_parallel(work, edges);
}

// Orders each parallel as: the heaviest component, the lightest, the second heaviest, ...
SeriesParallel alternating(SeriesParallel tree, const std::vector<double>& node_work) {
  std::vector<double> work;
  for (SeriesParallel::Component& component : tree.components) {
    double sum = component.node >= 0 ? node_work[component.node] : 0;
    for (const int inside : component.components) sum += work[inside];
    work.push_back(sum);
    if (component.kind != SeriesParallel::Kind::kParallel) continue;
    std::vector<int> sorted = component.components;
    std::stable_sort(sorted.begin(), sorted.end(), [&](int a, int b) { return work[a] > work[b]; });
    for (std::size_t i = 0; i < sorted.size(); ++i)
      component.components[i] = i % 2 == 0 ? sorted[i / 2] : sorted[sorted.size() - 1 - i / 2];
  }
  return tree;
}

// The nodes in their order, without branches.
StageLine plain_line(const PlanGraph& graph, const StageCosting& costing) {
  std::vector<int> order(graph.nodes.size());
  std::iota(order.begin(), order.end(), 0);
  return make_line(graph, costing, std::move(order), {});
}

// The lines with branches; none of a graph that is a chain.
std::vector<StageLine> branched_lines(const PlanGraph& graph, const StageCosting& costing) {
  const std::vector<double> work = node_work(graph, costing);
  const SeriesParallel tree = tree_of(graph, work);
  std::vector<StageLine> lines;
  for (const SeriesParallel& t : {tree, alternating(tree, work)}) {
    StageLine line = make_line(graph, costing, t);
    const bool known = std::any_of(lines.begin(), lines.end(), [&](const StageLine& other) { return other.order == line.order; });
    if (!known) lines.push_back(std::move(line));
  }
  std::erase_if(lines, [](const StageLine& line) { return line.forks.empty(); });
  return lines;
}

// --- the search ---

// The plan of a line's stages. Micro-batches in flight and time follow from the graph's own edges; on a plain line, as if each stage fed
// the next.
Candidate make_candidate(const StageLine& line, const std::vector<LineStage>& found) {
  const StageCosting& costing = *line.costing;
  std::vector<PlanStage> stages;
  std::size_t device = 0;
  for (const LineStage& s : found) {
    const StageOption& option = costing.options[s.option];
    PlanStage& stage = stages.emplace_back();
    stage.nodes.assign(line.order.begin() + s.begin, line.order.begin() + s.end);
    std::sort(stage.nodes.begin(), stage.nodes.end());
    for (const int node : stage.nodes) stage.choices.push_back(costing.choices[node]);
    for (int r = 0; r < option.replicas; ++r) stage.devices.push_back(costing.devices[device++]);
    stage.samples = option.samples;
  }
  const StageShape shape = line.forks.empty() ? chain(static_cast<int>(stages.size())) : shape_of(*line.graph, stages);
  return by_formula(*line.graph, costing, std::move(stages), shape);
}

// Whether the micro-batches in flight that the formula assumes must fit into memory.
enum class InFlightMemory { counts, squeezed };

// Stages that keep the target and fit. First micro-batches in flight are not counted: often the stages fit anyway, or not at all. Where
// they do not, they may still run with fewer in flight.
std::optional<Candidate> at_target(Finder& finder, const StageLine& line, StageTarget target, InFlightMemory in_flight) {
  target.memory = line.costing->memory;
  for (const bool counted : {false, true}) {
    target.in_flight = counted;
    const auto stages = stages_within(line, target, finder.states, finder.limit);
    if (!stages) return std::nullopt;
    Candidate made = make_candidate(line, *stages);
    if (made.lack == 0 || in_flight == InFlightMemory::squeezed) return made;
    if (!target.any_path) finder.squeezed.push_back(std::move(made));
  }
  return std::nullopt;
}

// The least seconds of the node at a position over all options: for a sample, or for a micro-batch.
double least_seconds(const StageLine& line, int position, bool of_sample) {
  double least = kInfinity;
  for (const StageOption& option : line.costing->options) {
    const std::vector<double>& sums = line.seconds[option.share];
    least = std::min(least, (sums[position + 1] - sums[position]) / (of_sample ? option.samples : 1));
  }
  return least;
}

// A target below which none can be kept.
double lowest_target(const StageLine& line) {
  double low = line.work.back() / static_cast<double>(line.costing->devices.size());
  for (int i = 0; i < line.size(); ++i) low = std::max(low, least_seconds(line, i, true));
  return low;
}

// A target that all stages keep.
double highest_target(const StageLine& line, TimeLimit& limit) {
  double high = 0;
  for (const StageOption& option : line.costing->options)
    for (int end = 1; end <= line.size() && !limit.is_over(end); ++end)
      for (int begin = 0; begin < end; ++begin) high = std::max(high, seconds_per_sample(line, begin, end, option));
  return high;
}

// The least target that can be kept, to one part in 10^4 (10^3 for many nodes); infinite: none can.
double least_target(Finder& finder, const StageLine& line, InFlightMemory in_flight) {
  const double highest = highest_target(line, finder.limit), lowest = std::max(lowest_target(line), highest * 1e-12);
  // The slowest stage's seconds per sample; infinite where no stages are found.
  const auto slowest_at = [&](double target) {
    const auto found = at_target(finder, line, {.per_sample = target, .any_path = true}, in_flight);
    if (found) finder.last = found;
    return found ? found->plan.bottleneck : kInfinity;
  };
  double low = lowest, high = std::min(lowest * 1.02, highest), slowest = slowest_at(high);
  for (double factor = 1.05; std::isinf(slowest) && high < highest && !finder.limit.is_over(); factor *= 1.2) {
    low = high;
    high = std::min(high * factor, highest);
    slowest = slowest_at(high);
  }
  const double precision = line.size() > kLargeGraph ? 1e-3 : 1e-4;
  while (slowest > low * (1 + precision) && !std::isinf(slowest) && !finder.limit.is_over()) {
    const double middle = std::sqrt(low * slowest), found = slowest_at(middle);
    (std::isinf(found) ? low : slowest) = std::isinf(found) ? middle : found;
  }
  return slowest;
}

// A lower bound of the longest path through the graph.
double least_way(const StageLine& line) {
  const std::vector<int> ones(line.order.size(), 1);
  std::vector<double> seconds(line.order.size());
  for (int i = 0; i < line.size(); ++i) seconds[line.order[i]] = least_seconds(line, i, false);
  StageShape nodes;
  nodes.predecessors.resize(line.order.size());
  for (const PlanEdge& edge : line.graph->edges) nodes.predecessors[edge.to].push_back(edge.from);
  return longest_path(nodes, ones, seconds);
}

// The plans with the shortest ways for the least target and for higher ones, as long as these could be faster by the formula.
std::vector<Candidate> candidates_of(Finder& finder, const StageLine& line, InFlightMemory in_flight) {
  std::vector<Candidate> candidates;
  const double samples = line.costing->samples, shortest = least_way(line);
  if (samples * lowest_target(line) + shortest > finder.best.time * kWorthwhile) return candidates;
  finder.last.reset();
  double target = least_target(finder, line, in_flight), best = kInfinity, limit = best;
  if (std::isinf(target)) return candidates;
  do {
    // The target is rounded up, because sums along other ways differ in their last digits.
    if (auto found = at_target(finder, line, {.per_sample = target * (1 + 1e-12), .path_limit = limit}, in_flight)) {
      best = std::min(best, found->time);
      if (best < finder.best.time) finder.best = *found, finder.costing = line.costing;
      candidates.push_back(std::move(*found));
    }
    limit = best - samples * target;  // longer ways are not worth looking for at this target or above
    target *= line.size() > kLargeGraph ? 1.03 : 1.01;
  } while (samples * target + shortest < best && !finder.limit.is_over());
  if (candidates.empty() && finder.last) candidates.push_back(std::move(*finder.last));  // the time was over
  return candidates;
}

// --- the choice, by simulation ---

struct Choice {
  double bound = 0;  // lower bound of the plan's step
  const Plan* plan = nullptr;
  PlanFigures figures;
};

// The candidates sorted by their bounds.
std::vector<Choice> choices_of(const PlanProblem& problem, const GraphpipePlans& plans) {
  std::vector<Choice> choices;
  for (const auto* kind : {&plans.branched, &plans.in_a_row, &plans.squeezed})
    for (const Candidate& candidate : *kind) {
      Choice choice{.plan = &candidate.plan, .figures = figures_of(problem, candidate.plan.stages)};
      if (!choice.figures.fit() || !can_be_simulated(choice.figures)) continue;
      choice.bound = step_bound(choice.figures);
      choices.push_back(std::move(choice));
    }
  std::stable_sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) { return a.bound < b.bound; });
  return choices;
}

[[noreturn]] void fail(const PlanProblem& problem, TimeLimit& limit) {
  if (limit.is_over()) fail_late("graphpipe", problem.graph.name, limit);
  const std::vector<StageCosting> costings = costings_of(problem);
  const StageCosting& costing = costings.front();  // all devices, the smallest micro-batches
  const StageLine line = make_line(problem.graph, costing, tree_of(problem.graph, node_work(problem.graph, costing)));
  StageTarget target{.per_sample = highest_target(line, limit), .any_path = true};
  std::int64_t states = 0;
  const auto fits = [&](double memory) {
    target.memory = memory;
    return stages_within(line, target, states, limit).has_value();
  };
  fail_memory("graphpipe", problem.graph.name, costing.memory, limit, fits);
}

}  // namespace

GraphpipePlans graphpipe_plans(const PlanProblem& problem, TimeLimit& limit) {
  if (problem.graph.nodes.size() > at(kMostGraphpipeNodes))
    throw Error(
        concat("graphpipe takes at most ", kMostGraphpipeNodes, " nodes; ", problem.graph.name, " has ", problem.graph.nodes.size()), {},
        "planner best asks the others");
  Finder finder{problem, limit};
  const std::vector<StageCosting> costings = costings_of(problem);
  GraphpipePlans plans;
  const auto search_line = [&](const StageLine& line, InFlightMemory in_flight, std::vector<Candidate>& kind) {
    std::vector<Candidate> found = candidates_of(finder, line, in_flight);
    kind.insert(kind.end(), std::make_move_iterator(found.begin()), std::make_move_iterator(found.end()));
  };
  const auto search = [&](InFlightMemory in_flight, std::vector<Candidate>& in_a_row, std::vector<Candidate>& branched) {
    for (const StageCosting& costing : costings)
      if (!limit.is_over()) search_line(plain_line(problem.graph, costing), in_flight, in_a_row);
    for (const StageCosting& costing : costings)
      for (const StageLine& line : branched_lines(problem.graph, costing))
        if (!limit.is_over()) search_line(line, in_flight, branched);
  };
  search(InFlightMemory::counts, plans.in_a_row, plans.branched);
  if (plans.branched.empty() && plans.in_a_row.empty()) {
    search(InFlightMemory::squeezed, finder.squeezed, finder.squeezed);
  } else if (finder.costing != nullptr) {
    StageCosting any_size = *finder.costing;
    any_size.options = options_of(problem, any_size, allowed_batches(problem));
    plans.branched.push_back(improved_by_formula(problem, any_size, finder.best.plan, limit));
  }
  plans.squeezed = std::move(finder.squeezed);
  plans.states = finder.states;
  for (auto* kind : {&plans.branched, &plans.in_a_row, &plans.squeezed})
    std::stable_sort(kind->begin(), kind->end(), [](const Candidate& a, const Candidate& b) { return a.time < b.time; });
  return plans;
}

Plan plan_by_graphpipe(const PlanProblem& problem, const PlanOptions& options) {
  TimeLimit limit(options.seconds, options.clock);
  const GraphpipePlans plans = graphpipe_plans(problem, limit);
  const std::vector<Choice> choices = choices_of(problem, plans);
  const Choice* best = nullptr;
  double least = kInfinity;
  for (const Choice& choice : choices) {
    if (choice.bound >= least || (best && limit.is_over(forwards_of(choice.figures)))) break;
    const double seconds = step_seconds(choice.figures);
    if (seconds >= least) continue;
    least = seconds;
    best = &choice;
  }
  if (!best) fail(problem, limit);
  return *best->plan;
}

}  // namespace penstock
