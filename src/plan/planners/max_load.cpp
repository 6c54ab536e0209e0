// The planner of the smallest largest load (Tarnawski et al., NeurIPS 2020). It splits the forward graph into contiguous sets, one for each
// accelerator or host processor. An accelerator's load is the time of its nodes plus that of each output that crosses its border, counted
// once; a host processor's load is the time of its nodes there.
#include <algorithm>
#include <cmath>

#include "base/numbers.h"
#include "base/text.h"
#include "cost/cost_model.h"
#include "cost/equal_devices.h"
#include "cost/evaluate.h"
#include "cost/smallest_memory.h"
#include "penstock/error.h"
#include "planners/downsets.h"
#include "planners/likely_cuts.h"
#include "planners/planner_list.h"

namespace penstock {
namespace {

// The least load of a node: on an accelerator or, where there are any, on a host processor.
double least_load(const PlanNode& node, double speed, int cpus) {
  const double load = node.costs.empty() ? kInfinity : (node.costs[0].forward + node.costs[0].backward) / speed;
  return cpus > 0 ? std::min(load, node.cpu_seconds) : load;
}

// The best chain of stages up to one downset with so many accelerators and host processors.
struct Cell {
  double value = kInfinity;
  int from = -1;  // the previous downset: the last stage is what this set has more
  bool on_cpu = false;
};

class Search {
 public:
  // More devices of either kind than there are nodes, or stages, are of no use.
  Search(const PlanGraph& graph, Downsets sets, const EqualDevices& devices, int cpus, int stages, TimeLimit& limit)
      : limit_(limit),
        sets_(std::move(sets)),
        first_cpu_(devices.count),
        accelerators_(std::min({devices.count, stages, static_cast<int>(graph.nodes.size())})),
        cpus_(std::min(cpus, static_cast<int>(graph.nodes.size()))) {
    std::vector<double> load, cpu, bytes, unsupported, least;
    std::vector<std::vector<int>> readers(graph.nodes.size());
    for (const PlanEdge& edge : graph.edges) readers[edge.from].push_back(edge.to);
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      const PlanNode& node = graph.nodes[n];
      const bool runs = !node.costs.empty();
      unsupported.push_back(runs ? 0 : 1);
      load.push_back(runs ? (node.costs[0].forward + node.costs[0].backward) / devices.speed : 0);
      bytes.push_back(runs ? node.costs[0].resident_bytes + node.costs[0].live_bytes : 0);
      cpu.push_back(cpus_ > 0 ? node.cpu_seconds : kInfinity);
      least.push_back(least_load(node, devices.speed, cpus_));
      for (const PlanOutput& output : node.outputs) outputs_.push_back({static_cast<int>(n), output.seconds, output.readers});
      // A file with bytes gives one output, which is sent forward and, as a gradient, back.
      if (node.outputs.empty()) outputs_.push_back({static_cast<int>(n), 2 * node.output_bytes / devices.bandwidth, readers[n]});
    }
    load_ = sets_.sums(load);
    cpu_node_ = cpu;
    bytes_ = sets_.sums(bytes);
    unsupported_ = sets_.sums(unsupported);
    least_ = sets_.sums(least);
    find_cuts();
  }

  // The smallest largest load when each accelerator has so many bytes; infinite where nothing fits.
  double solve(double memory) {
    memory_ = memory;
    std::vector<int> path = {0}, all;
    for (int set = 0; set <= full(); ++set) {
      all.push_back(set);
      if (sets_.size(set) == sets_.size(path.back()) + 1 && sets_.nested(path.back(), set)) path.push_back(set);
    }
    // A path of sets gives a bound, which excludes most of the other sets.
    if (!sets_.complete()) path = all;
    chains(path, kInfinity);
    const Best bound = best();
    if (limit_.is_over(0) || !sets_.complete()) return bound.value;
    std::vector<Cell> of_path = cells_;
    chains(all, bound.value * (1 + 1e-12));
    if (!limit_.is_over(0) || best().value < kInfinity) return best().value;
    cells_ = std::move(of_path);
    return bound.value;
  }

  // The stages of the plan that solve() found.
  std::vector<PlanStage> stages() const {
    std::vector<PlanStage> out;
    int set = full(), accelerators = best().accelerators, cpus = best().cpus;
    while (set != 0) {
      const Cell& cell = cells_[at(set) * width() + index(accelerators, cpus)];
      PlanStage& stage = out.emplace_back();
      stage.nodes = sets_.difference(cell.from, set);
      // Host processors are numbered after the devices.
      stage.devices = {cell.on_cpu ? first_cpu_ + --cpus : --accelerators};
      set = cell.from;
    }
    std::reverse(out.begin(), out.end());
    return out;
  }

 private:
  struct Best {
    double value = kInfinity;
    int accelerators = 0, cpus = 0;
  };

  int full() const { return sets_.count() - 1; }
  std::size_t width() const { return at(accelerators_ + 1) * at(cpus_ + 1); }
  std::size_t index(int accelerators, int cpus) const { return at(accelerators) * at(cpus_ + 1) + at(cpus); }

  // The best value and, of those who have it, the one on the fewest devices.
  Best best() const {
    Best best;
    for (int a = 0; a <= accelerators_; ++a)
      for (int c = 0; c <= cpus_; ++c)
        if (const double value = cells_[at(full()) * width() + index(a, c)].value; value < best.value) best = {value, a, c};
    return best;
  }

  // One output. It counts where it crosses a set's border, in or out: gradients mostly come from nodes that follow.
  struct Output {
    int node;
    double seconds;
    std::vector<int> readers;
  };
  // Whether some of the output's node and readers are in the set of this test and others are not.
  template <class Holds>
  static bool crosses(const Output& output, Holds&& holds) {
    const bool inside = holds(output.node);
    return std::any_of(output.readers.begin(), output.readers.end(), [&](int reader) { return holds(reader) != inside; });
  }
  bool crosses(const Output& output, int set) const {
    return crosses(output, [&](int node) { return sets_.holds(set, node); });
  }

  void find_cuts() {
    cuts_.resize(at(sets_.count()));
    for (int set = 0; set <= full(); ++set)
      for (std::size_t i = 0; i < outputs_.size(); ++i)
        if (crosses(outputs_[i], set)) cuts_[set].push_back(static_cast<int>(i));
  }

  // An output that crosses the stage's border is among those that cross the border of one of the two sets.
  double accelerator_load(int from, int to) const {
    const auto in_stage = [&](int node) { return sets_.holds(to, node) && !sets_.holds(from, node); };
    double load = load_[to] - load_[from];
    for (const int output : cuts_[to])
      if (crosses(outputs_[output], in_stage)) load += outputs_[output].seconds;
    for (const int output : cuts_[from])
      if (!crosses(outputs_[output], to) && crosses(outputs_[output], in_stage)) load += outputs_[output].seconds;
    return load;
  }

  double cpu_load(int from, int to) const {
    double load = 0;
    for (const int node : sets_.difference(from, to)) load += cpu_node_[node];
    return load;
  }

  // Computes all chains over some of the sets (ascending, the empty one first). Values above `bound` are dropped.
  void chains(const std::vector<int>& sets, double bound) {
    cells_.assign(at(sets_.count()) * width(), {});
    cells_[0].value = 0;
    std::vector<bool> reached(at(sets_.count()), false);
    reached[0] = true;
    for (std::size_t j = 1; j < sets.size(); ++j) {
      const int to = sets[j];
      for (std::size_t i = 0; i < j && !limit_.is_over(kWork); ++i)
        if (reached[sets[i]] && least_[to] - least_[sets[i]] <= bound && sets_.nested(sets[i], to)) add_stage(sets[i], to, bound);
      reached[to] = false;
      for (std::size_t cell = 0; cell < width(); ++cell) {
        // The rest must fit on the devices that are left.
        const auto used = static_cast<int>(cell / at(cpus_ + 1) + cell % at(cpus_ + 1));
        Cell& here = cells_[at(to) * width() + cell];
        if (least_[full()] - least_[to] > bound * (accelerators_ + cpus_ - used) * (1 + 1e-9)) here.value = kInfinity;
        if (here.value < kInfinity) reached[to] = true;
      }
    }
  }

  void add_stage(int from, int to, double bound) {
    const bool fits = bytes_[to] - bytes_[from] <= memory_ && unsupported_[to] == unsupported_[from];
    const double load = fits && load_[to] - load_[from] <= bound ? accelerator_load(from, to) : kInfinity;
    if (load <= bound && load < kInfinity) extend(from, to, load, false);
    if (cpus_ == 0) return;
    const double cpu = cpu_load(from, to);
    if (cpu <= bound && cpu < kInfinity) extend(from, to, cpu, true);
  }

  void extend(int from, int to, double load, bool on_cpu) {
    limit_.is_over(static_cast<std::int64_t>(width()));
    for (int a = 0; a + !on_cpu <= accelerators_; ++a)
      for (int c = 0; c + on_cpu <= cpus_; ++c) {
        const double value = std::max(cells_[at(from) * width() + index(a, c)].value, load);
        Cell& cell = cells_[at(to) * width() + index(a + !on_cpu, c + on_cpu)];
        if (value < cell.value) cell = {value, from, on_cpu};
      }
  }

  static constexpr std::int64_t kWork = 16;  // elementary steps for a pair of sets that makes no stage

  TimeLimit& limit_;
  Downsets sets_;
  int first_cpu_, accelerators_, cpus_;
  double memory_ = kInfinity;
  std::vector<double> cpu_node_;                            // by node
  std::vector<Output> outputs_;                             // of all nodes
  std::vector<double> load_, bytes_, unsupported_, least_;  // by downset
  std::vector<std::vector<int>> cuts_;                      // by downset: the outputs that cross its border
  std::vector<Cell> cells_;                                 // by downset, then devices used
};

[[noreturn]] void fail(const PlanProblem& problem, const EqualDevices& devices, Search& search, TimeLimit& limit) {
  if (limit.is_over(0)) fail_late("max-load", problem.graph.name, limit);
  const int cpus = problem.cluster.cpus;
  if (search.solve(kInfinity) == kInfinity)
    throw Error(concat("no plan of ", problem.graph.name, " has all nodes that only a host processor runs on ", cpus,
                       cpus == 1 ? " processor" : " processors"),
                {"each holds one stage, which nothing outside it joins in a circle"}, "more --cpus, or costs on a device");
  fail_memory("max-load", problem.graph.name, devices.memory, limit, [&](double bytes) { return search.solve(bytes) < kInfinity; });
}

CutCosts cut_costs(const PlanGraph& graph, const Downsets& sets, const EqualDevices& devices, int cpus) {
  std::vector<double> least, sent;
  for (const PlanNode& node : graph.nodes) {
    least.push_back(least_load(node, devices.speed, cpus));
    sent.push_back(node.outputs.empty() ? 2 * node.output_bytes / devices.bandwidth : 0);
    for (const PlanOutput& output : node.outputs) sent.back() += output.seconds;
  }
  return {sets.sums(least), sets.cut_sums(graph, sent)};
}

}  // namespace

Plan plan_by_max_load(const PlanProblem& problem, const PlanOptions& options) {
  TimeLimit limit(options.seconds, options.clock);
  check_one_device(problem.graph, "max-load");
  const EqualDevices devices = equal_devices(problem.cluster);
  const int cpus = problem.cluster.cpus;
  const Downsets all(problem.graph, most_downsets(problem.graph, kMostListed), limit);
  const int stages = most_stages(problem, measured_samples(problem.graph));
  Plan plan;
  plan.bottleneck = kInfinity;
  plan.optimal = search_cuts(all, cut_costs(problem.graph, all, devices, cpus), devices.count + cpus,
                             [&](Downsets sets) {
                               Search search(problem.graph, std::move(sets), devices, cpus, stages, limit);
                               const double value = search.solve(devices.memory);
                               if (value == kInfinity && plan.bottleneck == kInfinity) fail(problem, devices, search, limit);
                               if (value < plan.bottleneck) {
                                 plan.stages = search.stages();
                                 plan.bottleneck = value;
                               }
                               return plan.bottleneck;
                             }) &&
                 !limit.is_over(0);
  return plan;
}

}  // namespace penstock
