// SPDX-License-Identifier: Apache-2.0
// The planner of the smallest largest load (Tarnawski et al., NeurIPS 2020). It splits the forward graph into contiguous sets, one for each
// device. A device's load is the time of its nodes plus that of each output that crosses its border, counted once.
#include <algorithm>

#include "base/numbers.h"
#include "cost/cost_model.h"
#include "cost/equal_devices.h"
#include "cost/evaluate.h"
#include "cost/smallest_memory.h"
#include "planners/downset_chains.h"
#include "planners/likely_cuts.h"
#include "planners/planner_list.h"

namespace penstock {
namespace {

double seconds_of(const PlanNode& node, double speed) {
  return (node.costs[0].forward + node.costs[0].backward) / speed;
}

class LoadSearch {
 public:
  // More devices than there are nodes, or stages, are of no use.
  LoadSearch(const PlanGraph& graph, Downsets sets, const EqualDevices& devices, int stages, TimeLimit& limit)
      : limit_(limit), sets_(std::move(sets)), devices_(std::min({devices.count, stages, static_cast<int>(graph.nodes.size())})) {
    std::vector<double> load, bytes;
    std::vector<std::vector<int>> readers(graph.nodes.size());
    for (const PlanEdge& edge : graph.edges) readers[edge.from].push_back(edge.to);
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      const PlanNode& node = graph.nodes[n];
      load.push_back(seconds_of(node, devices.speed));
      bytes.push_back(node.costs[0].resident_bytes + node.costs[0].live_bytes);
      for (const PlanOutput& output : node.outputs) outputs_.push_back({static_cast<int>(n), output.seconds, output.readers});
      // A file with bytes gives one output, which is sent forward and, as a gradient, back.
      if (node.outputs.empty()) outputs_.push_back({static_cast<int>(n), 2 * node.output_bytes / devices.bandwidth, readers[n]});
    }
    load_ = sets_.sums(load);
    bytes_ = sets_.sums(bytes);
    find_cuts();
  }

  // The smallest largest load when each device has so many bytes; infinite where nothing fits.
  double solve(double memory) {
    double value = kInfinity;
    // A path of sets gives a bound, which excludes most of the other sets.
    for (const std::vector<int>& sets : {sets_.path(), sets_.all()}) {
      ChainTable found = chains(sets, value * (1 + 1e-12), memory);
      if (least_of(found) < kInfinity) {
        value = least_of(found);
        table_ = std::move(found);
      }
      if (limit_.is_over(0) || !sets_.complete()) break;
    }
    return value;
  }

  // The stages of the plan that solve() found.
  std::vector<PlanStage> stages() const {
    std::vector<PlanStage> out;
    const double* values = table_.value(full());
    int set = full(), device = static_cast<int>(std::min_element(values, values + table_.width) - values);  // on the fewest devices
    while (set != 0) {
      const int from = table_.last(set)[device].from;
      PlanStage& stage = out.emplace_back();
      stage.nodes = sets_.difference(from, set);
      stage.devices = {--device};
      set = from;
    }
    std::reverse(out.begin(), out.end());
    return out;
  }

 private:
  int full() const { return sets_.count() - 1; }
  double least_of(const ChainTable& table) const { return *std::min_element(table.value(full()), table.value(full()) + table.width); }

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
  double load_of(int from, int to) const {
    const auto in_stage = [&](int node) { return sets_.holds(to, node) && !sets_.holds(from, node); };
    double load = load_[to] - load_[from];
    for (const int output : cuts_[to])
      if (crosses(outputs_[output], in_stage)) load += outputs_[output].seconds;
    for (const int output : cuts_[from])
      if (!crosses(outputs_[output], to) && crosses(outputs_[output], in_stage)) load += outputs_[output].seconds;
    return load;
  }

  // The chains over some of the sets (ascending, the empty one first), without values above `bound`.
  ChainTable chains(const std::vector<int>& sets, double bound, double memory) {
    const ChainSpace space{.downsets = sets_, .work = load_, .workers = devices_, .of_stage = 1, .limit = limit_};
    return chains_over(space, sets, full(), bound, [&](ChainTable& table, int from, int to, int most, int least) {
      if (bytes_[to] - bytes_[from] > memory) return;
      const double load = load_of(from, to);
      if (load > bound) return;
      limit_.is_over(devices_);
      for (int used = least; used < most; ++used) {
        const double value = std::max(table.value(from)[used], load);
        if (value >= table.value(to)[used + 1]) continue;
        table.value(to)[used + 1] = value;
        table.last(to)[used + 1] = {from, 1};
      }
    });
  }

  TimeLimit& limit_;
  Downsets sets_;
  int devices_;
  std::vector<Output> outputs_;         // of all nodes
  std::vector<double> load_, bytes_;    // by downset
  std::vector<std::vector<int>> cuts_;  // by downset: the outputs that cross its border
  ChainTable table_{0, 0};              // of the last solve() that found a plan
};

CutCosts load_cut_costs(const PlanGraph& graph, const Downsets& sets, const EqualDevices& devices) {
  std::vector<double> seconds, sent;
  for (const PlanNode& node : graph.nodes) {
    seconds.push_back(seconds_of(node, devices.speed));
    sent.push_back(node.outputs.empty() ? 2 * node.output_bytes / devices.bandwidth : 0);
    for (const PlanOutput& output : node.outputs) sent.back() += output.seconds;
  }
  return {sets.sums(seconds), sets.cut_sums(graph, sent)};
}

}  // namespace

Plan plan_by_max_load(const PlanProblem& problem, const PlanOptions& options) {
  TimeLimit limit(options.seconds, options.clock);
  check_one_device(problem.graph, "max-load");
  const EqualDevices devices = equal_devices(problem.cluster);
  const Downsets all(problem.graph, most_downsets(problem.graph, kMostListed), limit);
  const int stages = most_stages(problem, measured_samples(problem.graph));
  Plan plan;
  plan.bottleneck = kInfinity;
  plan.optimal = search_cuts(all, load_cut_costs(problem.graph, all, devices), devices.count,
                             [&](Downsets sets) {
                               LoadSearch search(problem.graph, std::move(sets), devices, stages, limit);
                               const double value = search.solve(devices.memory);
                               if (value == kInfinity && plan.bottleneck == kInfinity)
                                 fail_memory("max-load", problem.graph.name, devices.memory, limit,
                                             [&](double bytes) { return search.solve(bytes) < kInfinity; });
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
