// GraphPipe (2406.17145): stages that branch and join, none slower per sample than the least target that can be kept, with the shortest way
// through them, because what a step takes beyond its bottleneck is the depth of the pipeline and not its number of stages.
//
// T = B * slowest + longest way (iteration_time.h). Bisection finds the least target for which there are stages (graphpipe_search.h); from
// there the target rises by a hundredth as long as a shorter way could still make up for it, and every answer is a candidate. So the
// formula's best over all targets is missed by a hundredth at most. The candidates with the least T are then simulated and the fastest is
// the plan: with them those of the plain line of nodes, without branches, so that a pipeline in a row is taken where it is better.
//
// Branches stand in a line and only neighbours make a group, so there are several lines: of a small graph all orders of the branches, else
// the graph's own and one with heavy and light branches in turn.
//
// Devices are taken as equal: as slow and as small as the weakest among them. Where they differ, the stronger ones alone are tried too.
// Links are the slowest of the cluster, and where there is a hierarchy those of each level.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <set>

#include "base/text.h"
#include "penstock/error.h"
#include "plan/cost_model.h"
#include "plan/evaluate.h"
#include "plan/graphpipe.h"
#include "plan/graphpipe_search.h"
#include "plan/iteration_time.h"
#include "plan/planner_list.h"

namespace penstock {
namespace {

constexpr int kMostOrders = 120;  // of branches, of a graph of kSmallGraph nodes at most
constexpr std::size_t kSmallGraph = 16;
constexpr double kTargetStep = 1.01;

std::size_t at(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

using Candidate = GraphpipePlan;

struct Finder {
  const PlanProblem& problem;
  std::chrono::steady_clock::time_point deadline;
  std::int64_t states = 0;
  std::vector<Candidate> squeezed = {};

  bool late() const { return std::chrono::steady_clock::now() > deadline; }
};

// --- what stages may be ---

// Replicas share a micro-batch evenly. A graph measured with a single sample does not know its samples: that one may be shared.
std::vector<StageOption> options_of(const PlanProblem& problem, StageCosting& costing, const std::vector<int>& sizes) {
  const bool whole = allowed_batches(problem) != std::vector<int>{1};
  std::set<double> shares;
  std::vector<StageOption> options;
  const int most = problem.replicas ? static_cast<int>(costing.devices.size()) : 1;
  for (const int size : sizes)
    for (int r = 1; r <= most; ++r) {
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

// One way to run each node: of this name where it has it, on one device.
std::vector<int> choices_of(const PlanGraph& graph, const std::string& name) {
  std::vector<int> choices;
  for (const PlanNode& node : graph.nodes) {
    int choice = choice_of(node, 1, name);
    for (std::size_t i = 0; choice < 0 && i < node.costs.size(); ++i)
      if (node.costs[i].degree == 1) choice = static_cast<int>(i);
    if (choice < 0)
      throw Error(concat("node ", quote(node.name), " has no costs on one device"), {}, "graphpipe has no tensor parallelism");
    choices.push_back(choice);
  }
  return choices;
}

// With each stage's size of its own (but one for all stages whose nodes ask for that), and with one size for all.
void add_sizes(const PlanProblem& problem, StageCosting costing, std::vector<StageCosting>& costings) {
  const std::vector<int> sizes = allowed_batches(problem);
  const auto& nodes = problem.graph.nodes;
  const bool equal = std::any_of(nodes.begin(), nodes.end(), [](const PlanNode& node) { return node.equal_batches; });
  costing.options = options_of(problem, costing, sizes);
  for (const int size : equal ? sizes : std::vector<int>{0}) {
    costing.equal_size = size;
    costings.push_back(costing);
  }
  costing.equal_size = 0;
  for (const int size : sizes.size() > 1 ? sizes : std::vector<int>{}) {
    costing.options = options_of(problem, costing, {size});
    costings.push_back(costing);
  }
}

// The ways to look at the cluster, the nodes and the micro-batches; all their plans compete.
std::vector<StageCosting> costings_of(const PlanProblem& problem) {
  const ClusterSpec& cluster = problem.cluster;
  std::set<double> speeds;
  for (const ClusterDevice& device : cluster.devices) speeds.insert(device.speed);
  std::vector<ClusterLink> links;
  std::set<std::string> names;
  for (const PlanNode& node : problem.graph.nodes)
    for (const NodeCost& cost : node.costs)
      if (cost.degree == 1) names.insert(cost.name);
  std::vector<StageCosting> costings;
  for (const double speed : speeds) {
    StageCosting costing{.speed = speed, .memory = std::numeric_limits<double>::infinity(), .samples = step_samples(problem)};
    for (std::size_t d = 0; d < cluster.devices.size(); ++d) {
      if (cluster.devices[d].speed < speed) continue;
      costing.devices.push_back(static_cast<int>(d));
      costing.memory = std::min(costing.memory, cluster.devices[d].memory);
    }
    links = {slowest_link(cluster, costing.devices, costing.devices)};
    for (const ClusterSpec::Level& level : cluster.levels)
      if (level.size > 1 && level.link.bandwidth > links[0].bandwidth) links.push_back(level.link);
    for (const ClusterLink& link : links) {
      costing.link = link;
      for (const std::string& name : names) {
        costing.choices = choices_of(problem.graph, name);
        add_sizes(problem, costing, costings);
      }
    }
  }
  return costings;
}

// --- in which lines the nodes stand ---

// Least device seconds for a sample.
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

// The tree with the parts of its parallels in every order, as far as kMostOrders go.
std::vector<SeriesParallel> all_orders(SeriesParallel tree) {
  std::vector<SeriesParallel> orders;
  while (static_cast<int>(orders.size()) < kMostOrders) {
    orders.push_back(tree);
    bool more = false;  // like counting: the first parallel that has another order takes it, those before it start anew
    for (SeriesParallel::Part& part : tree.parts) {
      if (part.kind != SeriesParallel::Kind::kParallel) continue;
      more = std::next_permutation(part.parts.begin(), part.parts.end());
      if (more) break;
    }
    if (!more) break;
  }
  return orders;
}

// The heaviest part of each parallel, the lightest, the second heaviest, ...
SeriesParallel alternating(SeriesParallel tree, const std::vector<double>& node_work) {
  std::vector<double> work;
  for (SeriesParallel::Part& part : tree.parts) {
    double sum = part.node >= 0 ? node_work[at(part.node)] : 0;
    for (const int inside : part.parts) sum += work[at(inside)];
    work.push_back(sum);
    if (part.kind != SeriesParallel::Kind::kParallel) continue;
    std::vector<int> sorted = part.parts;
    std::stable_sort(sorted.begin(), sorted.end(), [&](int a, int b) { return work[at(a)] > work[at(b)]; });
    for (std::size_t i = 0; i < sorted.size(); ++i) part.parts[i] = i % 2 == 0 ? sorted[i / 2] : sorted[sorted.size() - 1 - i / 2];
  }
  return tree;
}

// The plain one last.
std::vector<StageLine> lines_of(const PlanGraph& graph, const StageCosting& costing) {
  const std::vector<double> work = node_work(graph, costing);
  const SeriesParallel tree = tree_of(graph, work);
  std::vector<StageLine> lines;
  for (const SeriesParallel& t : graph.nodes.size() <= kSmallGraph ? all_orders(tree) : std::vector{tree, alternating(tree, work)}) {
    StageLine line = make_line(graph, costing, t);
    const bool known = std::any_of(lines.begin(), lines.end(), [&](const StageLine& other) { return other.order == line.order; });
    if (!known) lines.push_back(std::move(line));
  }
  std::vector<int> order(graph.nodes.size());
  std::iota(order.begin(), order.end(), 0);
  const bool chain = lines.size() == 1 && lines[0].forks.empty() && lines[0].order == order;
  if (!chain) lines.push_back(make_line(graph, costing, order, {}));
  return lines;
}

// --- the search ---

struct Made {
  Candidate candidate = {};
  bool fits = false;
};

// The plan of a line's stages, as the graph's own edges make it: what is in flight, and the time.
Made make_candidate(const StageLine& line, const std::vector<LineStage>& stages) {
  const StageCosting& costing = *line.costing;
  Made made{.fits = true};
  Plan& plan = made.candidate.plan;
  std::vector<double> per_sample;
  std::vector<int> sizes;
  std::size_t device = 0;
  for (const LineStage& s : stages) {
    const StageOption& option = costing.options[at(s.option)];
    PlanStage& stage = plan.stages.emplace_back();
    stage.name = concat("stage", plan.stages.size() - 1);
    stage.nodes.assign(line.order.begin() + s.begin, line.order.begin() + s.end);
    std::sort(stage.nodes.begin(), stage.nodes.end());
    for (const int node : stage.nodes) stage.choices.push_back(costing.choices[at(node)]);
    for (int r = 0; r < option.replicas; ++r) stage.devices.push_back(costing.devices[device++]);
    stage.samples = option.samples;
    sizes.push_back(option.samples);
    per_sample.push_back(seconds_per_sample(line, s.begin, s.end, option));
  }
  const StageShape shape = shape_of(*line.graph, plan.stages);
  const std::vector<int> in_flight = graphpipe_in_flight(shape, sizes);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const StageOption& option = costing.options[at(stages[i].option)];
    plan.stages[i].ahead = in_flight[i] / option.samples;
    made.fits = made.fits && bytes_needed(line, stages[i].begin, stages[i].end, option, in_flight[i]) <= costing.memory;
  }
  plan.bottleneck = *std::max_element(per_sample.begin(), per_sample.end());
  made.candidate.time = iteration_time(shape, sizes, per_sample, costing.samples, plan.bottleneck);
  return made;
}

// Stages that keep the target and fit, with the shortest way. Without counting what is in flight first: often it fits anyway, or not at
// all.
std::optional<Candidate> at_target(Finder& finder, const StageLine& line, StageTarget target) {
  target.memory = line.costing->memory;
  for (const bool in_flight : {false, true}) {
    target.in_flight = in_flight;
    const auto stages = stages_within(line, target, finder.states);
    if (!stages) return std::nullopt;
    Made made = make_candidate(line, *stages);
    if (made.fits) return std::move(made.candidate);
    finder.squeezed.push_back(std::move(made.candidate));
  }
  return std::nullopt;
}

// Between which targets the least one lies: what nobody can keep below, and what everybody can.
std::pair<double, double> target_bounds(const StageLine& line) {
  double low = line.work.back() / static_cast<double>(line.costing->devices.size()), high = 0;
  for (int i = 0; i < line.size(); ++i) {
    double least = std::numeric_limits<double>::infinity();
    for (const StageOption& option : line.costing->options) {
      const std::vector<double>& seconds = line.seconds[at(option.share)];
      least = std::min(least, (seconds[at(i + 1)] - seconds[at(i)]) / option.samples);
    }
    low = std::max(low, least);
  }
  for (const StageOption& option : line.costing->options)
    for (int end = 1; end <= line.size(); ++end)
      for (int begin = 0; begin < end; ++begin) high = std::max(high, seconds_per_sample(line, begin, end, option));
  return {std::max(low, high * 1e-12), high};
}

// The candidate of the least target that can be kept, to one part in 10^4 (10^3 for many nodes); nothing: none fits.
std::optional<Candidate> least_target(Finder& finder, const StageLine& line) {
  const auto [lowest, highest] = target_bounds(line);
  const double precision = line.size() <= 100 ? 1e-4 : 1e-3;
  double low = lowest, high = lowest * 1.02;
  std::optional<Candidate> best = at_target(finder, line, {.per_sample = std::min(high, highest)});
  for (double factor = 1.05; !best; factor *= 1.2) {
    if (high >= highest) return std::nullopt;
    low = high;
    high *= factor;
    best = at_target(finder, line, {.per_sample = std::min(high, highest)});
  }
  while (best->plan.bottleneck > low * (1 + precision) && !finder.late()) {
    const double middle = std::sqrt(low * best->plan.bottleneck);
    if (auto found = at_target(finder, line, {.per_sample = middle}))
      best = std::move(found);
    else
      low = middle;
  }
  return best;
}

// No way through a graph takes less.
double least_way(const StageLine& line) {
  std::vector<double> node(line.order.size());
  for (int i = 0; i < line.size(); ++i) {
    double least = std::numeric_limits<double>::infinity();
    for (const StageOption& option : line.costing->options) {
      const std::vector<double>& seconds = line.seconds[at(option.share)];
      least = std::min(least, seconds[at(i + 1)] - seconds[at(i)]);
    }
    node[at(line.order[at(i)])] = least;
  }
  std::vector<double> way(node.size());
  double longest = 0;
  std::vector<std::vector<int>> before(node.size());
  for (const PlanEdge& edge : line.graph->edges) before[at(edge.to)].push_back(edge.from);
  for (std::size_t i = 0; i < node.size(); ++i) {
    for (const int from : before[i]) way[i] = std::max(way[i], way[at(from)]);
    way[i] += node[i];
    longest = std::max(longest, way[i]);
  }
  return longest;
}

// The least target's, and those of higher ones with a shorter way, as long as they could be faster by the formula.
std::vector<Candidate> candidates_of(Finder& finder, const StageLine& line) {
  std::vector<Candidate> candidates;
  std::optional<Candidate> first = least_target(finder, line);
  if (!first) return candidates;
  const double samples = line.costing->samples, shortest = least_way(line);
  double target = first->plan.bottleneck, best = first->time;
  candidates.push_back(std::move(*first));
  while (!finder.late()) {
    const double limit = best - samples * target;  // what this target and those below it cannot reach is not worth looking for
    target *= kTargetStep;
    if (samples * target + shortest >= best) break;
    auto found = at_target(finder, line, {.per_sample = target, .way_limit = limit});
    if (!found) continue;
    best = std::min(best, found->time);
    candidates.push_back(std::move(*found));
  }
  return candidates;
}

// The smallest memory for which there are stages of any speed, to one part in 1000.
double smallest_memory(const StageLine& line, bool in_flight) {
  StageTarget target{.per_sample = target_bounds(line).second, .in_flight = in_flight, .any_way = true};
  std::int64_t states = 0;
  const auto fits = [&](double memory) {
    target.memory = memory;
    return stages_within(line, target, states).has_value();
  };
  double low = line.resident.back() / static_cast<double>(line.costing->devices.size()), high = std::max(low, 1.0);
  while (!fits(high)) low = high, high *= 2;
  while (high - low > high * 1e-3) (fits((low + high) / 2) ? high : low) = (low + high) / 2;
  return high;
}

[[noreturn]] void fail_memory(const PlanProblem& problem) {
  const PlanGraph& graph = problem.graph;
  const std::vector<StageCosting> costings = costings_of(problem);
  const StageCosting& costing = costings.front();
  const StageLine line = make_line(graph, costing, tree_of(graph, node_work(graph, costing)));
  double least = smallest_memory(line, false);
  if (least <= costing.memory) least = smallest_memory(line, true);  // stages of different sizes need more than one micro-batch
  throw Error(concat("no stages of ", graph.name, " fit on ", costing.devices.size(), " devices"),
              {concat("memory of a device: ", bytes_text(costing.memory)), concat("the smallest that would do: ", bytes_text(least))},
              "give devices with more memory, or more of them, or smaller micro-batches");
}

}  // namespace

GraphpipePlans graphpipe_plans(const PlanProblem& problem, double seconds) {
  const auto time = std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
  Finder finder{problem, std::chrono::steady_clock::now() + time};
  const std::vector<StageCosting> costings = costings_of(problem);
  GraphpipePlans plans;
  for (const StageCosting& costing : costings) {
    const std::vector<StageLine> lines = lines_of(problem.graph, costing);
    for (const StageLine& line : lines) {
      if (finder.late() && !plans.branched.empty()) break;
      auto& kind = line.forks.empty() ? plans.in_a_row : plans.branched;
      std::vector<Candidate> found = candidates_of(finder, line);
      kind.insert(kind.end(), std::make_move_iterator(found.begin()), std::make_move_iterator(found.end()));
    }
  }
  plans.squeezed = std::move(finder.squeezed);
  plans.states = finder.states;
  for (auto* kind : {&plans.branched, &plans.in_a_row, &plans.squeezed})
    std::stable_sort(kind->begin(), kind->end(), [](const Candidate& a, const Candidate& b) { return a.time < b.time; });
  return plans;
}

Plan plan_by_graphpipe(const PlanProblem& problem, const PlanOptions& options) {
  GraphpipePlans plans = graphpipe_plans(problem, options.seconds);
  std::vector<std::pair<double, Plan*>> by_bound;  // no step of the plan is shorter
  for (auto* kind : {&plans.branched, &plans.in_a_row, &plans.squeezed})
    for (Candidate& candidate : *kind) {
      const PlanFigures figures = figures_of(problem, candidate.plan.stages);
      if (figures.fit()) by_bound.emplace_back(step_bound(figures), &candidate.plan);
    }
  std::stable_sort(by_bound.begin(), by_bound.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  Plan* best = nullptr;
  for (const auto& [bound, plan] : by_bound) {
    if (best && bound >= best->predicted_time) break;
    evaluate(problem, *plan);
    if (!best || plan->predicted_time < best->predicted_time) best = plan;
  }
  if (!best) fail_memory(problem);
  return std::move(*best);
}

}  // namespace penstock
