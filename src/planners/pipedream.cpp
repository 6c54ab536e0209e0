// PipeDream's planner (Narayanan et al., SOSP 2019). Stages are differences of nested downsets, each on several workers that take
// micro-batches in turn. The search is exact and goes level by level through the cluster's hierarchy. A plan's value is the time between
// two micro-batches.
#include <algorithm>
#include <cmath>

#include "base/numbers.h"
#include "base/text.h"
#include "cost/cost_model.h"
#include "cost/equal_devices.h"
#include "cost/smallest_memory.h"
#include "penstock/error.h"
#include "planners/downsets.h"
#include "planners/likely_cuts.h"
#include "planners/planner_list.h"

namespace penstock {
namespace {

// On several levels there is a search from each set; of more sets than this some stand for all.
constexpr int kMostOnLevels = 1000;
constexpr int kMostCells = 1 << 24;     // most cells of a table, sets times workers: 270 MB
constexpr std::int64_t kPairWork = 16;  // elementary steps for a pair of sets that makes no stage

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

struct Choice {
  int from = -1;    // the downset before the stage; -1: no chain that fits is known
  int workers = 0;  // the stage's number of workers
};

// The chains of stages from one downset to all others: the best value and last stage, by set and by workers used.
struct Table {
  int width = 0;  // the most workers, plus 1
  std::vector<double> value;
  std::vector<Choice> choice;
};

class Search {
 public:
  Search(Downsets sets, const Reduced& reduced, const std::vector<Level>& levels, double speed, const PlanOptions& options, bool straight,
         TimeLimit& limit)
      : limit_(limit), sets_(std::move(sets)), levels_(levels), transfers_(!options.ignore_transfers), straight_(straight) {
    std::vector<double> seconds, parameters, outputs, live;
    for (const PlanNode& node : reduced.graph.nodes) {
      seconds.push_back((node.costs[0].forward + node.costs[0].backward) / speed);
      parameters.push_back(node.costs[0].parameter_bytes);
      outputs.push_back(node.output_bytes);
      live.push_back(node.costs[0].live_bytes + node.costs[0].resident_bytes);
    }
    seconds_ = sets_.sums(seconds);
    parameters_ = sets_.sums(parameters);
    stash_ = sets_.sums(live);
    live_ = sets_.sums(reduced.live);
    resident_ = sets_.sums(reduced.resident);
    first_live_ = reduced.first_live;
    cut_ = sets_.cut_sums(reduced.graph, outputs);
  }

  // The value of the best plan when each device has `memory` bytes; infinite where there is none.
  double solve(double memory) {
    memory_ = memory;
    below_.clear();
    for (int level = 0; level + 1 < static_cast<int>(levels_.size()) && !limit_.is_over(0); ++level) {
      set_level(level);
      std::vector<double> values(at(sets_.count()) * at(sets_.count()), kInfinity);
      for (int start = 0; start < full() && !limit_.is_over(0); ++start) {
        const Table table = chains_from(start, full(), kInfinity, sets_from(start));
        for (int set = start + 1; set <= full(); ++set) values[at(start) * at(sets_.count()) + at(set)] = best_of(table, set).value;
      }
      below_.push_back(std::move(values));
    }
    if (limit_.is_over(0)) return kInfinity;
    set_level(static_cast<int>(levels_.size()) - 1);
    top_ = top_table();
    const double value = best_of(top_, full()).value;
    return limit_.is_over(0) ? kInfinity : value;
  }

  // Appends the stages of the plan that solve() found, with nodes of the reduced graph. They are complete even if the time is over
  // meanwhile.
  void stages(std::vector<PlanStage>& out) {
    found_ = true;
    append(static_cast<int>(levels_.size()) - 1, 0, full(), {0}, out);
  }

 private:
  struct Best {
    double value = kInfinity;
    int workers = 0;
  };

  int full() const { return sets_.count() - 1; }
  bool is_late(std::int64_t work) const { return !found_ && limit_.is_over(work); }

  // The value with all workers in use or, where a graph has too few stages for that, with as many as can be.
  Best best_of(const Table& table, int set) const {
    for (int used = table.width - 1; used > 0; --used)
      if (const double value = table.value[at(set) * at(table.width) + at(used)]; value < kInfinity) return {value, used};
    return {};
  }

  std::vector<int> sets_from(int start) const {
    std::vector<int> out;
    for (int set = start; set <= full(); ++set)
      if (sets_.nested(start, set)) out.push_back(set);
    return out;
  }
  // Sets of which each has one node more than the one before.
  std::vector<int> one_path() const {
    if (!sets_.complete()) return sets_from(0);
    std::vector<int> out = {0};
    for (int set = 1; set <= full(); ++set)
      if (sets_.size(set) == sets_.size(out.back()) + 1 && sets_.nested(out.back(), set)) out.push_back(set);
    return out;
  }

  // A path of sets gives a bound, which excludes most of the other sets.
  Table top_table() const {
    const Best bound = best_of(chains_from(0, full(), kInfinity, one_path()), full());
    const bool all = bound.workers == levels_.back().size;
    return chains_from(0, full(), all ? bound.value * (1 + 1e-12) : kInfinity, sets_from(0));
  }

  // Seconds of a stage on one worker of this level.
  double seconds(int from, int to) const {
    return level_ == 0 ? seconds_[at(to)] - seconds_[at(from)] : below_[at(level_) - 1][at(from) * at(sets_.count()) + at(to)];
  }

  // The figures of a stage that do not depend on its number of workers.
  struct Stage {
    double seconds, bytes, transfer;
  };
  // `first`: the stage is a chain's first. The transfer of its input then counts elsewhere, and the devices of a group share the sum of its
  // gradients. (The original's code has both for first stages only.)
  Stage stage_of(int from, int to, bool first) const {
    const Level& level = levels_[at(level_)];
    const double bytes = parameters_[at(to)] - parameters_[at(from)];
    const double transfer = transfers_ && !first ? 2 * std::max(cut_[at(from)], to == full() ? 0 : cut_[at(to)]) / level.bandwidth : 0;
    return {seconds(from, to), bytes / (first ? level.below : 1), transfer};
  }
  double value_of(const Stage& stage, int workers) const {
    return std::max(stage.seconds * share_[at(workers)] + stage.bytes * reduce_[at(workers)], stage.transfer * share_[at(workers)]);
  }

  // Whether a stage on m workers fits, where `used` workers are taken up to and with it. As the original counts, it keeps
  // ceil((level.size - used) / m) micro-batches and as many times its parameters. That is nothing for the last stage. In any case one
  // micro-batch, shared by its workers, must fit.
  bool fits(int from, int to, int m, int used) const {
    if (memory_ == kInfinity) return true;
    const Level& level = levels_[at(level_)];
    const int kept = (level.size - used + m - 1) / m;
    if (kept * (stash_[at(to)] - stash_[at(from)]) > memory_ * level.below) return false;
    const double live = live_[at(to)] - live_[at(from)] + (from == 0 ? first_live_ : 0);
    return level_ > 0 || resident_[at(to)] - resident_[at(from)] + live / m <= memory_;
  }

  void set_level(int level) {
    level_ = level;
    const int n = levels_[at(level)].size;
    share_.assign(at(n) + 1, 0);
    reduce_ = share_;
    for (int m = 1; m <= n; ++m) {
      share_[at(m)] = 1.0 / m;
      reduce_[at(m)] = 4.0 * (m - 1) / m / m / levels_[at(level)].bandwidth;
    }
  }

  // The number of workers that so many seconds need to keep to the bound.
  static double share(double seconds, double bound) {
    if (seconds == kInfinity) return kInfinity;
    return seconds > 0 ? seconds / bound : 0;
  }

  // Computes all chains of stages from `start` towards `end` over some of the sets (ascending, `start` first). Values above `bound` are
  // dropped.
  Table chains_from(int start, int end, double bound, const std::vector<int>& sets) const {
    const int n = levels_[at(level_)].size;
    Table table;
    table.width = n + 1;
    table.value.assign(at(sets_.count()) * at(n + 1), kInfinity);
    table.choice.resize(table.value.size());
    std::vector<int> least(at(sets_.count()), n + 1);  // by set: the fewest workers that a chain to it uses
    least[at(start)] = 0;
    for (std::size_t j = 1; j < sets.size(); ++j) {
      const int to = sets[j];
      // The work that is left must fit on the workers that are left.
      const double left = share(seconds_[at(end)] - seconds_[at(to)], bound * levels_[at(level_)].below);
      const int most = left > n ? 0 : n - static_cast<int>(std::ceil(left * (1 - 1e-9)));
      for (std::size_t i = 0; i < j && !is_late(kPairWork); ++i)
        if (least[at(sets[i])] < most && sets_.nested(sets[i], to)) add_stage(table, sets[i], to, i == 0, bound, most, least[at(sets[i])]);
      for (int used = most; used > 0; --used)
        if (table.value[at(to) * at(n + 1) + at(used)] < kInfinity) least[at(to)] = used;
    }
    return table;
  }

  // Extends the chains to `from` that use at least `least` workers by one stage, to at most `most` workers.
  void add_stage(Table& table, int from, int to, bool first, double bound, int most, int least) const {
    const Stage stage = stage_of(from, to, first);
    const double* before = &table.value[at(from) * at(table.width)];
    double* best = &table.value[at(to) * at(table.width)];
    Choice* choice = &table.choice[at(to) * at(table.width)];
    const double needed = share(stage.seconds, bound) * (1 - 1e-9);
    if (!(needed <= most)) return;
    const int fewest = std::max(1, static_cast<int>(needed));
    for (int m = fewest; m <= (straight_ ? std::min(1, most) : most - least); ++m) {
      if (is_late(most)) return;
      const double value = value_of(stage, m);
      if (value > bound) continue;
      for (int used = first ? m : least + m; used <= (first ? m : most); ++used) {
        const double chain = first ? value : std::max(before[used - m], value);
        if (chain >= best[used] || !fits(from, to, m, used)) continue;
        best[used] = chain;
        choice[used] = {from, m};
      }
    }
  }

  // Appends the stages between two sets on `level`, on each of the equal groups of devices that begin at `devices`.
  void append(int level, int from, int to, const std::vector<int>& devices, std::vector<PlanStage>& out) {
    set_level(level);
    const bool top = level + 1 == static_cast<int>(levels_.size());
    const Table own = top ? Table() : chains_from(from, to, kInfinity, sets_from(from));
    const Table& table = top ? top_ : own;
    struct Part {
      int from, to, first, workers;
    };
    std::vector<Part> parts;
    for (int set = to, used = best_of(table, to).workers; set != from;) {
      const Choice choice = table.choice[at(set) * at(table.width) + at(used)];
      used -= choice.workers;
      parts.push_back({choice.from, set, used, choice.workers});
      set = choice.from;
    }
    std::reverse(parts.begin(), parts.end());
    for (const Part& part : parts) {
      std::vector<int> begins;
      for (const int begin : devices)
        for (int worker = part.first; worker < part.first + part.workers; ++worker)
          begins.push_back(begin + worker * levels_[at(level)].below);
      if (level > 0) {
        append(level - 1, part.from, part.to, begins, out);
        continue;
      }
      PlanStage& stage = out.emplace_back();
      stage.nodes = sets_.difference(part.from, part.to);
      stage.devices = std::move(begins);
    }
  }

  TimeLimit& limit_;
  Downsets sets_;
  const std::vector<Level>& levels_;
  bool transfers_, straight_;
  bool found_ = false;  // whether solve() has found a plan, whose stages are being read
  Table top_;           // of the highest level
  double memory_ = kInfinity, first_live_ = 0;
  std::vector<double> seconds_, parameters_, stash_, live_, resident_, cut_;  // by downset
  int level_ = 0;                       // the level that is being searched; the next line is for that level, by the number of workers m:
  std::vector<double> share_, reduce_;  // 1/m; seconds of summing per byte of parameters
  std::vector<std::vector<double>> below_;  // by level already searched: the value between two sets
};

CutCosts cut_costs(const PlanGraph& graph, const Downsets& sets, double speed) {
  std::vector<double> seconds, outputs;
  for (const PlanNode& node : graph.nodes) {
    seconds.push_back((node.costs[0].forward + node.costs[0].backward) / speed);
    outputs.push_back(node.output_bytes);
  }
  return {sets.sums(seconds), sets.cut_sums(graph, outputs)};
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
  const auto solve = [&](Downsets sets) {
    Search search(std::move(sets), reduced, levels, devices.speed, options, options.straight || !problem.replicas, limit);
    const double value = search.solve(memory);
    if (value == kInfinity && plan.bottleneck == kInfinity)
      fail_memory("pipedream", problem.graph.name, memory, limit, [&](double bytes) { return search.solve(bytes) < kInfinity; });
    if (value < plan.bottleneck) {
      std::vector<PlanStage> stages;
      search.stages(stages);
      if (limit.is_over(0)) return plan.bottleneck;  // the time was over while the stages of the levels were found again
      plan.stages = std::move(stages);
      plan.bottleneck = value;
    }
    return plan.bottleneck;
  };
  if (levels.size() > 1 && all.count() > kMostOnLevels) {
    solve(all.only(spread_cuts(costs, all.all(), kMostOnLevels)));
  } else {
    plan.optimal = search_cuts(all, costs, devices.count, solve);
  }
  if (plan.bottleneck == kInfinity) fail_late("pipedream", problem.graph.name, limit);
  plan.optimal = plan.optimal && !limit.is_over(0);
  put_back(problem.graph, reduced, plan.stages);
  return plan;
}

}  // namespace penstock
