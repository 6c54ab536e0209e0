// The smallest largest load (Tarnawski et al., NeurIPS 2020): the forward graph split into contiguous sets, one for each accelerator or
// host processor. An accelerator's load is what its nodes compute and what each output that crosses its border takes, once; a host
// processor's is what its nodes compute there.
#include <algorithm>
#include <cmath>

#include "base/numbers.h"
#include "base/text.h"
#include "penstock/error.h"
#include "plan/cost_model.h"
#include "plan/downsets.h"
#include "plan/equal_devices.h"
#include "plan/planner_list.h"
#include "plan/smallest_memory.h"

namespace penstock {
namespace {

// Of chains to one downset, by the accelerators and host processors used.
struct Cell {
  double value = kInfinity;
  int from = -1;  // the last stage is what the set has more than this one
  bool on_cpu = false;
};

class Search {
 public:
  // No more of either than there are nodes are of use.
  Search(const PlanGraph& graph, const EqualDevices& devices, int cpus)
      : sets_(graph),
        first_cpu_(devices.count),
        accelerators_(std::min(devices.count, static_cast<int>(graph.nodes.size()))),
        cpus_(std::min(cpus, static_cast<int>(graph.nodes.size()))) {
    std::vector<double> load, cpu, bytes, unsupported, least;
    for (const PlanNode& node : graph.nodes) {
      const bool runs = !node.costs.empty();
      unsupported.push_back(runs ? 0 : 1);
      load.push_back(runs ? (node.costs[0].forward + node.costs[0].backward) / devices.speed : 0);
      bytes.push_back(runs ? node.costs[0].resident_bytes + node.costs[0].live_bytes : 0);
      cpu.push_back(cpus_ > 0 ? node.cpu_seconds : kInfinity);
      least.push_back(runs ? std::min(load.back(), cpu.back()) : cpu.back());
      // Forward and backward, where the file has bytes.
      transfer_.push_back(node.transfer_seconds >= 0 ? node.transfer_seconds : 2 * node.output_bytes / devices.bandwidth);
    }
    load_ = sets_.sums(load);
    cpu_node_ = cpu;
    bytes_ = sets_.sums(bytes);
    unsupported_ = sets_.sums(unsupported);
    least_ = sets_.sums(least);
    readers_.resize(graph.nodes.size());
    for (const PlanEdge& edge : graph.edges) readers_[at(edge.from)].push_back(edge.to);
    find_cuts();
  }

  // The smallest largest load with so many bytes on each accelerator; infinite where nothing fits.
  double solve(double memory) {
    memory_ = memory;
    std::vector<int> path = {0}, all;
    for (int set = 0; set <= full(); ++set) {
      all.push_back(set);
      if (sets_.size(set) == sets_.size(path.back()) + 1 && sets_.nested(path.back(), set)) path.push_back(set);
    }
    // A path of sets gives a bound, with which most of the others are left out.
    chains(path, kInfinity);
    const double bound = best().value;
    chains(all, bound * (1 + 1e-12));
    return best().value;
  }

  bool complete() const { return sets_.complete(); }

  // Of the plan that solve() found.
  std::vector<PlanStage> stages() const {
    std::vector<PlanStage> out;
    int set = full(), accelerators = best().accelerators, cpus = best().cpus;
    while (set != 0) {
      const Cell& cell = cells_[at(set) * width() + index(accelerators, cpus)];
      PlanStage& stage = out.emplace_back();
      stage.nodes = sets_.difference(cell.from, set);
      // Host processors have the numbers after the devices'.
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

  // On the fewest devices of those with the same value.
  Best best() const {
    Best best;
    for (int a = 0; a <= accelerators_; ++a)
      for (int c = 0; c <= cpus_; ++c)
        if (const double value = cells_[at(full()) * width() + index(a, c)].value; value < best.value) best = {value, a, c};
    return best;
  }

  void find_cuts() {
    cuts_.resize(at(sets_.count()));
    for (int set = 0; set <= full(); ++set)
      for (const int node : sets_.difference(0, set))
        if (std::any_of(readers_[at(node)].begin(), readers_[at(node)].end(), [&](int reader) { return !sets_.holds(set, reader); }))
          cuts_[at(set)].push_back(node);
  }

  double accelerator_load(int from, int to) const {
    double load = load_[at(to)] - load_[at(from)];
    for (const int node : cuts_[at(to)])
      if (!sets_.holds(from, node)) load += transfer_[at(node)];
    for (const int node : cuts_[at(from)])
      if (std::any_of(readers_[at(node)].begin(), readers_[at(node)].end(),
                      [&](int reader) { return sets_.holds(to, reader) && !sets_.holds(from, reader); }))
        load += transfer_[at(node)];
    return load;
  }

  double cpu_load(int from, int to) const {
    double load = 0;
    for (const int node : sets_.difference(from, to)) load += cpu_node_[at(node)];
    return load;
  }

  // All chains over some of the sets (ascending, the empty one first). Nothing above `bound` is kept.
  void chains(const std::vector<int>& sets, double bound) {
    cells_.assign(at(sets_.count()) * width(), {});
    cells_[0].value = 0;
    std::vector<bool> reached(at(sets_.count()), false);
    reached[0] = true;
    for (std::size_t j = 1; j < sets.size(); ++j) {
      const int to = sets[j];
      for (std::size_t i = 0; i < j; ++i)
        if (reached[at(sets[i])] && sets_.nested(sets[i], to)) add_stage(sets[i], to, bound);
      reached[at(to)] = false;
      for (std::size_t cell = 0; cell < width(); ++cell) {
        // What is left must fit on the devices that are left.
        const auto used = static_cast<int>(cell / at(cpus_ + 1) + cell % at(cpus_ + 1));
        Cell& here = cells_[at(to) * width() + cell];
        if (least_[at(full())] - least_[at(to)] > bound * (accelerators_ + cpus_ - used) * (1 + 1e-9)) here.value = kInfinity;
        if (here.value < kInfinity) reached[at(to)] = true;
      }
    }
  }

  void add_stage(int from, int to, double bound) {
    const bool fits = bytes_[at(to)] - bytes_[at(from)] <= memory_ && unsupported_[at(to)] == unsupported_[at(from)];
    const double load = fits && load_[at(to)] - load_[at(from)] <= bound ? accelerator_load(from, to) : kInfinity;
    if (load <= bound && load < kInfinity) extend(from, to, load, false);
    if (cpus_ == 0) return;
    const double cpu = cpu_load(from, to);
    if (cpu <= bound && cpu < kInfinity) extend(from, to, cpu, true);
  }

  void extend(int from, int to, double load, bool on_cpu) {
    for (int a = 0; a + !on_cpu <= accelerators_; ++a)
      for (int c = 0; c + on_cpu <= cpus_; ++c) {
        const double value = std::max(cells_[at(from) * width() + index(a, c)].value, load);
        Cell& cell = cells_[at(to) * width() + index(a + !on_cpu, c + on_cpu)];
        if (value < cell.value) cell = {value, from, on_cpu};
      }
  }

  Downsets sets_;
  int first_cpu_, accelerators_, cpus_;
  double memory_ = kInfinity;
  std::vector<double> transfer_, cpu_node_;                 // of each node
  std::vector<std::vector<int>> readers_;                   // of each node
  std::vector<double> load_, bytes_, unsupported_, least_;  // of each downset
  std::vector<std::vector<int>> cuts_;                      // of each downset: its nodes that a node outside reads
  std::vector<Cell> cells_;                                 // of each downset
};

}  // namespace

Plan plan_by_max_load(const PlanProblem& problem, const PlanOptions&) {
  check_one_device(problem.graph, "max-load");
  const EqualDevices devices = equal_devices(problem.cluster);
  Search search(problem.graph, devices, problem.cluster.cpus);
  Plan plan;
  plan.bottleneck = search.solve(devices.memory);
  if (plan.bottleneck == kInfinity && search.solve(kInfinity) == kInfinity)
    throw Error(concat("no plan of ", problem.graph.name, " has all nodes that only a host processor runs on ", problem.cluster.cpus,
                       problem.cluster.cpus == 1 ? " processor" : " processors"),
                {"each holds one stage, which nothing outside it joins in a circle"}, "more --cpus, or costs on a device");
  if (plan.bottleneck == kInfinity)
    fail_memory(problem.graph.name, devices.memory, smallest_memory([&](double bytes) { return search.solve(bytes) < kInfinity; }));
  plan.stages = search.stages();
  plan.optimal = search.complete();
  return plan;
}

}  // namespace penstock
