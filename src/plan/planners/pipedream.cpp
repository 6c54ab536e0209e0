// SPDX-License-Identifier: Apache-2.0
// PipeDream's planner (Narayanan et al., SOSP 2019). Stages are differences of nested downsets, each on several workers that take
// micro-batches in turn. The search is exact and goes level by level through the cluster's hierarchy. A plan's value is the time between
// two micro-batches.
#include <algorithm>
#include <ranges>

#include "base/numbers.h"
#include "base/text.h"
#include "cost/cost_model.h"
#include "cost/equal_devices.h"
#include "cost/smallest_memory.h"
#include "penstock/error.h"
#include "planners/downset_chains.h"
#include "planners/likely_cuts.h"
#include "planners/planner_list.h"

namespace penstock {
namespace {

// On several levels there is a search from each set; of more sets than this some stand for all.
constexpr int kMostOnLevels = 1000;
constexpr int kMostCells = 1 << 24;  // most cells of a table, sets times workers: 270 MB

// ---- The graph without nodes that no stage should be cut for: sources that are inputs (the first stage has them) and sinks that only pick
// an output of the node that they read (they stay with it).

struct Reduced {
  PlanGraph graph;
  std::vector<int> nodes;              // for each node of the reduced graph, its number in the whole one
  std::vector<int> dropped;            // ascending
  std::vector<double> live, resident;  // bytes of each node, including those of sinks that stay with it
  double first_live = 0;               // live bytes of the inputs
};

std::vector<bool> kept_nodes(const PlanGraph& graph) {
  std::vector<bool> kept(graph.nodes.size(), true), has_input(graph.nodes.size()), has_reader(graph.nodes.size());
  for (const PlanEdge& edge : graph.edges) has_input[at(edge.to)] = true;
  for (std::size_t i = 0; i < kept.size(); ++i) kept[i] = has_input[i] || !graph.nodes[i].kind.starts_with("Input");
  for (const PlanEdge& edge : graph.edges) has_reader[at(edge.from)] = true;
  for (std::size_t i = 0; i < kept.size(); ++i) kept[i] = kept[i] && (has_reader[i] || !graph.nodes[i].kind.starts_with("__getitem__"));
  if (std::find(kept.begin(), kept.end(), true) == kept.end()) kept.assign(kept.size(), true);
  return kept;
}

Reduced reduce(const PlanGraph& graph) {
  const std::vector<bool> kept = kept_nodes(graph);
  Reduced out;
  out.graph.name = graph.name;
  std::vector<int> number(graph.nodes.size(), -1);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (!kept[i]) {
      out.dropped.push_back(static_cast<int>(i));
      continue;
    }
    number[i] = static_cast<int>(out.nodes.size());
    out.nodes.push_back(static_cast<int>(i));
    out.graph.nodes.push_back(graph.nodes[i]);
    out.live.push_back(graph.nodes[i].costs[0].live_bytes);
    out.resident.push_back(graph.nodes[i].costs[0].resident_bytes);
  }
  std::vector<int> holder(graph.nodes.size(), -1);  // of a sink: the node that it reads
  for (const PlanEdge& edge : graph.edges) holder[at(edge.to)] = number[at(edge.from)];
  for (const int node : out.dropped)
    (holder[at(node)] < 0 ? out.first_live : out.live[at(holder[at(node)])]) += graph.nodes[at(node)].costs[0].live_bytes;
  for (const PlanEdge& edge : graph.edges)
    if (kept[at(edge.from)] && kept[at(edge.to)]) out.graph.edges.push_back({number[at(edge.from)], number[at(edge.to)], edge.bytes});
  return out;
}

// ---- The cluster as a hierarchy of equal workers.

struct Level {
  int size = 1;   // workers in a group of this level: devices, or groups of the level below
  int below = 1;  // devices of each worker
  double bandwidth = kInfinity;
};

std::vector<Level> levels_of(const ClusterSpec& cluster) {
  const int devices = static_cast<int>(cluster.devices.size());
  std::vector<Level> levels;
  int below = 1;
  for (const ClusterSpec::Level& level : cluster.levels) {
    if (level.size > 1) levels.push_back({level.size, below, level.link.bandwidth});
    below *= level.size;
  }
  if (levels.empty()) levels.push_back({devices, 1, kInfinity});
  // Links of single pairs: the slowest one of a level counts for the whole level.
  for (const auto& [pair, link] : cluster.between)
    for (Level& level : levels) {
      const int together = level.below * level.size;
      if (pair.first / together != pair.second / together || pair.first / level.below == pair.second / level.below) continue;
      level.bandwidth = std::min(level.bandwidth, link.bandwidth);
    }
  return levels;
}

// ---- The search.

int most_sets(const PlanGraph& graph, const std::vector<Level>& levels) {
  int widest = 1;
  for (const Level& level : levels) widest = std::max(widest, level.size + 1);
  return std::min(kMostCells / widest, most_downsets(graph, kMostListed));
}

CutCosts cut_costs(const PlanGraph& graph, const Downsets& sets, double speed) {
  std::vector<double> seconds, outputs;
  for (const PlanNode& node : graph.nodes) {
    seconds.push_back((node.costs[0].forward + node.costs[0].backward) / speed);
    outputs.push_back(node.output_bytes);
  }
  return {sets.sums(seconds), sets.cut_sums(graph, outputs)};
}

// The problem that is searched, with sums by downset.
struct PipeDreamProblem {
  Downsets sets;
  const std::vector<Level>& levels;
  CutCosts costs;
  std::vector<double> parameters, stash, live, resident;
  double first_live;
  bool transfers = true, straight = false;  // PlanOptions

  int full() const { return sets.count() - 1; }
};

PipeDreamProblem searched(Downsets sets, const Reduced& reduced, const std::vector<Level>& levels, double speed) {
  std::vector<double> parameters, live;
  for (const PlanNode& node : reduced.graph.nodes) {
    parameters.push_back(node.costs[0].parameter_bytes);
    live.push_back(node.costs[0].live_bytes + node.costs[0].resident_bytes);
  }
  const CutCosts costs = cut_costs(reduced.graph, sets, speed);
  return {.sets = sets,
          .levels = levels,
          .costs = costs,
          .parameters = sets.sums(parameters),
          .stash = sets.sums(live),
          .live = sets.sums(reduced.live),
          .resident = sets.sums(reduced.resident),
          .first_live = reduced.first_live};
}

// A level of the hierarchy, as the search sees it.
struct Layer {
  const PipeDreamProblem& in;
  const Level& level;
  double memory;                      // of each device
  std::vector<double> below;          // the value between two sets on one worker, a group of the level below; empty: a worker is a device
  std::vector<double> share, reduce;  // by the number of workers m: 1/m; seconds of summing per byte of parameters
};

Layer layer_of(const PipeDreamProblem& in, const Level& level, double memory, std::vector<double> below) {
  Layer layer{in, level, memory, std::move(below), std::vector<double>(at(level.size) + 1), std::vector<double>(at(level.size) + 1)};
  for (int m = 1; m <= level.size; ++m) {
    layer.share[at(m)] = 1.0 / m;
    layer.reduce[at(m)] = 4.0 * (m - 1) / m / m / level.bandwidth;
  }
  return layer;
}

struct Best {
  double value = kInfinity;
  int workers = 0;
};

// The value with all workers in use or, where a graph has too few stages for that, with as many as can be.
Best best_of(const ChainTable& table, int set) {
  for (int used = static_cast<int>(table.width) - 1; used > 0; --used)
    if (const double value = table.value(set)[used]; value < kInfinity) return {value, used};
  return {};
}

std::vector<int> sets_from(const PipeDreamProblem& in, int start) {
  std::vector<int> out;
  for (int set = start; set <= in.full(); ++set)
    if (in.sets.nested(start, set)) out.push_back(set);
  return out;
}

// A stage, of the nodes between two sets, and its figures that do not depend on its number of workers. `seconds`: on one worker.
struct PipeDreamStage {
  int from, to;
  double seconds, bytes, transfer;
};

// `first`: the stage is a chain's first. The transfer of its input then counts elsewhere, and the devices of a group share the sum of its
// gradients. (The original's code has both for first stages only.)
PipeDreamStage stage_of(const Layer& layer, int from, int to, bool first) {
  const PipeDreamProblem& in = layer.in;
  const double bytes = in.parameters[at(to)] - in.parameters[at(from)];
  const double cut = std::max(in.costs.cut[at(from)], to == in.full() ? 0 : in.costs.cut[at(to)]);
  return {from, to,
          layer.below.empty() ? in.costs.work[at(to)] - in.costs.work[at(from)] : layer.below[at(from) * at(in.sets.count()) + at(to)],
          bytes / (first ? layer.level.below : 1), in.transfers && !first ? 2 * cut / layer.level.bandwidth : 0};
}

double value_of(const Layer& layer, const PipeDreamStage& stage, int workers) {
  const double share = layer.share[at(workers)];
  return std::max(stage.seconds * share + stage.bytes * layer.reduce[at(workers)], stage.transfer * share);
}

// Whether a stage on m workers fits, where `used` workers are taken up to and with it. As the original counts, it keeps
// ceil((level.size - used) / m) micro-batches and as many times its parameters. That is nothing for the last stage. In any case one
// micro-batch, shared by its workers, must fit.
bool holds(const Layer& layer, const PipeDreamStage& stage, int m, int used) {
  if (layer.memory == kInfinity) return true;
  const PipeDreamProblem& in = layer.in;
  const auto [from, to] = std::pair(stage.from, stage.to);
  const int kept = (layer.level.size - used + m - 1) / m;
  if (kept * (in.stash[at(to)] - in.stash[at(from)]) > layer.memory * layer.level.below) return false;
  const double live = in.live[at(to)] - in.live[at(from)] + (from == 0 ? in.first_live : 0);
  return !layer.below.empty() || in.resident[at(to)] - in.resident[at(from)] + live / m <= layer.memory;
}

// The least number of workers used in [begin, last] with which the stage fits, last + 1 where none is: the more are used, the less it
// keeps.
int least_holding(const Layer& layer, const PipeDreamStage& stage, int m, int begin, int last) {
  if (layer.memory == kInfinity) return begin;
  const auto range = std::views::iota(begin, last + 1);
  const auto found = std::ranges::partition_point(range, [&](int used) { return !holds(layer, stage, m, used); });
  return begin + static_cast<int>(found - range.begin());
}

// Whether a stage of that value behind one of `count` chains is better than the chain there is now. Most are not: this has no branches.
bool improves(const double* before, const double* best, int count, double value) {
  std::int64_t better = 0;
  for (int i = 0; i < count; ++i) better |= std::max(before[i], value) < best[i];
  return better != 0;
}

// The chains from the first of `sets`, which ascend, over the others towards `end`. Values above `bound` are dropped.
ChainTable chains_from(const Layer& layer, int end, double bound, const std::vector<int>& sets, TimeLimit& limit) {
  const PipeDreamProblem& in = layer.in;
  const int workers = layer.level.size;
  const ChainSpace space{in.sets, in.costs.work, workers, in.straight ? 1 : workers, layer.level.below, limit};
  return chains_over(space, sets, end, bound, [&](ChainTable& table, int from, int to, int most, int least) {
    const bool first = from == sets[0];
    const PipeDreamStage stage = stage_of(layer, from, to, first);
    const double* before = table.value(from);
    double* best = table.value(to);
    const double needed = workers_for(stage.seconds, bound) * (1 - 1e-9);
    if (!(needed <= most)) return;
    const int fewest = std::max(1, static_cast<int>(needed));
    for (int m = fewest; m <= (in.straight ? std::min(1, most) : most - least); ++m) {
      if (limit.is_over(most)) return;
      const double value = value_of(layer, stage, m);
      if (value > bound) continue;
      const int last = first ? m : most;
      const int begin = least_holding(layer, stage, m, least + m, last);
      if (!improves(before + begin - m, best + begin, last - begin + 1, value)) continue;
      for (int used = begin; used <= last; ++used) {
        const double chain = std::max(before[used - m], value);
        if (chain >= best[used]) continue;
        best[used] = chain;
        table.last(to)[used] = {from, m};
      }
    }
  });
}

// The value between any two sets.
std::vector<double> values_of(const Layer& layer, TimeLimit& limit) {
  const PipeDreamProblem& in = layer.in;
  const std::size_t count = at(in.sets.count());
  std::vector<double> values(count * count, kInfinity);
  for (int start = 0; start < in.full() && !limit.is_over(0); ++start) {
    const ChainTable table = chains_from(layer, in.full(), kInfinity, sets_from(in, start), limit);
    for (int set = start + 1; set <= in.full(); ++set) values[at(start) * count + at(set)] = best_of(table, set).value;
  }
  return values;
}

// A few sets of a path give a bound, which excludes most chains of the whole path; its bound excludes most of the other sets.
ChainTable top_table(const Layer& layer, TimeLimit& limit) {
  constexpr int kFew = 16;
  const std::vector<int> path = layer.in.sets.path();
  double bound = kInfinity;
  ChainTable table(0, 0);
  for (const std::vector<int>& sets : {spread_cuts(layer.in.costs, path, kFew), path, layer.in.sets.all()}) {
    table = chains_from(layer, layer.in.full(), bound, sets, limit);
    const Best best = best_of(table, layer.in.full());
    if (best.workers == layer.level.size) bound = best.value * (1 + 1e-12);
  }
  return table;
}

// The best plan when each device has so much memory.
struct Solved {
  std::vector<Layer> layers = {};
  ChainTable top{0, 0};      // of the highest layer
  double value = kInfinity;  // infinite: there is none
};

Solved solve(const PipeDreamProblem& in, double memory, TimeLimit& limit) {
  Solved out;
  for (const Level& level : in.levels) {
    out.layers.push_back(layer_of(in, level, memory, out.layers.empty() ? std::vector<double>() : values_of(out.layers.back(), limit)));
    if (limit.is_over(0)) return out;
  }
  out.top = top_table(out.layers.back(), limit);
  if (!limit.is_over(0)) out.value = best_of(out.top, in.full()).value;
  return out;
}

// A part of a plan: the stages between two sets, on so many workers from the first on.
struct Part {
  int from, to, first = 0, workers = 0;
};

// Appends the stages of a part on a layer, on each of the equal groups of devices that begin at `devices`; with nodes of the reduced graph.
void append(const Solved& solved, std::size_t number, const Part& whole, const std::vector<int>& devices, std::vector<PlanStage>& out) {
  const Layer& layer = solved.layers[number];
  const bool top = number + 1 == solved.layers.size();
  TimeLimit none;
  const ChainTable own = top ? ChainTable(0, 0) : chains_from(layer, whole.to, kInfinity, sets_from(layer.in, whole.from), none);
  const ChainTable& table = top ? solved.top : own;
  std::vector<Part> parts;
  for (int set = whole.to, used = best_of(table, set).workers; set != whole.from;) {
    const ChainTable::Last& last = table.last(set)[used];
    used -= last.workers;
    parts.push_back({last.from, set, used, last.workers});
    set = last.from;
  }
  std::reverse(parts.begin(), parts.end());
  for (const Part& part : parts) {
    std::vector<int> begins;
    for (const int begin : devices)
      for (int worker = part.first; worker < part.first + part.workers; ++worker) begins.push_back(begin + worker * layer.level.below);
    if (number > 0) {
      append(solved, number - 1, part, begins, out);
      continue;
    }
    PlanStage& stage = out.emplace_back();
    stage.nodes = layer.in.sets.difference(part.from, part.to);
    stage.devices = std::move(begins);
  }
}

// Turns stages of the reduced graph into stages of the whole one.
void put_back(const PlanGraph& graph, const Reduced& reduced, std::vector<PlanStage>& stages) {
  std::vector<int> stage_of(graph.nodes.size(), 0);
  for (std::size_t s = 0; s < stages.size(); ++s)
    for (int& node : stages[s].nodes) {
      node = reduced.nodes[at(node)];
      stage_of[at(node)] = static_cast<int>(s);
    }
  for (const int node : reduced.dropped) {
    for (const PlanEdge& edge : graph.edges)
      if (edge.to == node) stage_of[at(node)] = std::max(stage_of[at(node)], stage_of[at(edge.from)]);
    stages[at(stage_of[at(node)])].nodes.push_back(node);
  }
  for (PlanStage& stage : stages) std::sort(stage.nodes.begin(), stage.nodes.end());
}

}  // namespace

Plan plan_by_pipedream(const PlanProblem& problem, const PlanOptions& options) {
  TimeLimit limit(options.seconds, options.clock);
  check_one_device(problem.graph, "pipedream");
  measured_samples(problem.graph);
  const Reduced reduced = reduce(problem.graph);
  const std::vector<Level> levels = levels_of(problem.cluster);
  const EqualDevices devices = equal_devices(problem.cluster);
  const double memory = options.memory ? devices.memory : kInfinity;
  const Downsets all(reduced.graph, most_sets(reduced.graph, levels), limit);
  const CutCosts costs = cut_costs(reduced.graph, all, devices.speed);
  Plan plan;
  plan.bottleneck = kInfinity;
  const auto improve = [&](Downsets sets) {
    PipeDreamProblem in = searched(std::move(sets), reduced, levels, devices.speed);
    in.transfers = !options.ignore_transfers;
    in.straight = options.straight || !problem.replicas;
    const Solved solved = solve(in, memory, limit);
    if (solved.value == kInfinity && plan.bottleneck == kInfinity)
      fail_memory("pipedream", problem.graph.name, memory, limit, [&](double bytes) { return solve(in, bytes, limit).value < kInfinity; });
    if (solved.value < plan.bottleneck) {
      plan.stages.clear();
      append(solved, levels.size() - 1, {0, in.full()}, {0}, plan.stages);
      plan.bottleneck = solved.value;
    }
    return plan.bottleneck;
  };
  if (levels.size() > 1 && all.count() > kMostOnLevels) {
    improve(all.only(spread_cuts(costs, all.all(), kMostOnLevels)));
  } else {
    plan.optimal = search_cuts(all, costs, devices.count, improve);
  }
  if (plan.bottleneck == kInfinity) fail_late("pipedream", problem.graph.name, limit);
  plan.optimal = plan.optimal && !limit.is_over(0);
  put_back(problem.graph, reduced, plan.stages);
  return plan;
}

}  // namespace penstock
