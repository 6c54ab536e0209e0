// SPDX-License-Identifier: Apache-2.0
// DawnPiper (Peng et al., 2505.05856): a chain of single-device stages cut between any two nodes, with recomputation and swap where the
// memory asks for them.
//
// Stage x of p holds p - x micro-batches, so cuts of equal time and cuts of equal memory differ, and the best cut lies between the two. The
// devices are halved recursively: for the nodes of each half every cut between the compute-balanced and the memory-balanced one is tried. A
// single device takes its nodes' fastest ways and, while they do not fit, exchanges them for ways that hold less, first those that cost the
// least time for each byte. The memory-balanced cut is that of the least memory with all such exchanges, so if any cuts fit, the ones found
// do.
//
// A node that is computed again takes the device's time, one that is swapped that of its link to the host, beside it: a stage takes the
// longer of the two. What a second of the link is worth decides which nodes are swapped, so each price at which two exchanges of a node
// change places is tried.
//
// Objective: the slowest stage or link, also to the host, in seconds of one micro-batch. Among several numbers of stages and sizes of
// micro-batches the plan with the shortest simulated step is taken.
#include <algorithm>
#include <cmath>

#include "base/numbers.h"
#include "planners/chain_view.h"
#include "planners/improve_plan.h"
#include "planners/planner_list.h"

namespace penstock {
namespace {

// Another way to run a node, and what it costs and saves compared with the fastest way.
struct Exchange {
  int place = 0, choice = 0;  // place: the node's position in the order; choice: index of its costs
  double seconds = 0;         // for one micro-batch
  double swap_bytes = 0;      // more of one micro-batch that go to the host's memory and back
  double live_bytes = 0, resident_bytes = 0;

  double bytes(int in_flight) const { return live_bytes * in_flight + resident_bytes - swap_bytes * std::min(in_flight, kSwappedThere); }
};

std::vector<Exchange> exchanges_of(const ChainView& view) {
  std::vector<Exchange> exchanges;
  const bool has_host = weakest(view.problem->cluster).host.has_value();
  for (int place = 0; place < std::ssize(view.order); ++place) {
    const PlanNode& node = view.problem->graph.nodes[view.order[place]];
    const int chosen = view.choices[view.order[place]];
    const SetCost fast = cost_of(node, chosen, view.samples);
    for (const int way : ways_of(node, 1)) {
      if (way == chosen) continue;
      const SetCost cost = cost_of(node, way, view.samples);
      if (cost.swap_bytes > 0 && !has_host) continue;
      exchanges.push_back({place, way, cost.forward + cost.backward - fast.forward - fast.backward, cost.swap_bytes - fast.swap_bytes,
                           fast.live_bytes - cost.live_bytes, fast.resident_bytes - cost.resident_bytes});
    }
  }
  return exchanges;
}

// The prices of a byte that is swapped, in seconds, between which the exchanges differ in order: none, and just above each price at which
// two exchanges of one node cost the same for each byte that they save. Of many such prices some.
std::vector<double> prices_of(const std::vector<Exchange>& exchanges, int in_flight) {
  constexpr std::size_t kMost = 15;
  std::vector<double> equal;
  for (const Exchange& a : exchanges)
    for (const Exchange& b : exchanges) {
      const double more = b.swap_bytes * a.bytes(in_flight) - a.swap_bytes * b.bytes(in_flight);
      const double price = (a.seconds * b.bytes(in_flight) - b.seconds * a.bytes(in_flight)) / more;
      if (a.place == b.place && more > 0 && price > 0) equal.push_back(price);
    }
  std::ranges::sort(equal);
  std::vector<double> out = {0};
  const std::size_t count = std::min(kMost, equal.size());
  for (std::size_t i = 0; i < count; ++i) out.push_back(equal[(i + 1) * equal.size() / count - 1] * (1 + 1e-9));
  return out;
}

struct Leaf {
  double seconds = kInfinity;  // for one micro-batch; infinite: it does not fit
  std::vector<Exchange> exchanges = {};
};

// A range of devices of the line; ranges are halved until they have one device.
struct Range {
  int first = 0, end = 0;
  int left = -1, right = -1;  // indices of the two halves
  double speed = 0;           // sum of its devices'
};

class Halving {
 public:
  Halving(const ChainView& view, std::vector<int> devices, TimeLimit& limit)
      : view_(view), limit_(limit), devices_(std::move(devices)), n_(view.atoms()), p_(static_cast<int>(devices_.size())) {
    const std::vector<Exchange> exchanges = exchanges_of(view);
    for (int in_flight = 1; in_flight <= p_; ++in_flight) add_exchanges(exchanges, in_flight);
    add_range(0, p_);
    memory_.assign(ranges_.size() * at(n_ + 1) * at(n_ + 1), kUnknown);
    found_.resize(memory_.size());
  }

  std::optional<ChainPlan> run() {
    const double bottleneck = best(0, 0, n_);
    if (bottleneck == kInfinity || limit_.is_over(0)) return {};
    std::vector<PlanStage> stages;
    append(0, 0, n_, stages);
    return timed_chain(view_, std::move(stages), bottleneck, limit_);
  }

 private:
  static constexpr double kUnknown = -1;
  struct Found {
    double seconds = kUnknown;  // of the slowest stage or link
    int cut = -1;
  };

  int in_flight(int device) const { return std::min(p_ - device, view_.microbatches); }
  const ClusterDevice& device(int i) const { return view_.problem->cluster.devices[devices_[i]]; }
  std::size_t key(int range, int begin, int end) const { return (at(range) * at(n_ + 1) + at(begin)) * at(n_ + 1) + at(end); }

  // Adds the exchanges that save something, for each price of what is swapped sorted by their cost for each byte, and the most that they
  // save up to each border.
  void add_exchanges(std::vector<Exchange> all, int in_flight) {
    const int flying = std::min(in_flight, view_.microbatches);
    constexpr double kRounding = 1e-9;
    std::erase_if(all, [&](const Exchange& e) { return e.bytes(flying) <= kRounding * flying * std::abs(e.live_bytes); });
    std::vector<std::vector<Exchange>>& by_price = exchanges_.emplace_back();
    for (const double price : prices_of(all, flying)) {
      const auto cost = [&](const Exchange& e) { return e.seconds + price * e.swap_bytes; };
      std::ranges::stable_sort(by_price.emplace_back(all),
                               [&](const Exchange& a, const Exchange& b) { return cost(a) * b.bytes(flying) < cost(b) * a.bytes(flying); });
    }
    std::vector<double> most(view_.order.size() + 1, 0);
    for (const Exchange& e : all) most[e.place + 1] = std::max(most[e.place + 1], e.bytes(flying));
    for (std::size_t i = 1; i < most.size(); ++i) most[i] += most[i - 1];
    std::vector<double>& savings = savings_.emplace_back();
    for (const int place : view_.places) savings.push_back(most[place]);
  }

  int add_range(int first, int end) {
    const int index = static_cast<int>(ranges_.size());
    ranges_.push_back({.first = first, .end = end});
    for (int i = first; i < end; ++i) ranges_[index].speed += device(i).speed;
    if (end - first < 2) return index;
    const int middle = first + (end - first) / 2;
    const int left = add_range(first, middle), right = add_range(middle, end);
    ranges_[index].left = left;
    ranges_[index].right = right;
    return index;
  }

  int size(int range) const { return ranges_[range].end - ranges_[range].first; }

  // The least memory that the atoms need, as a share of a device's memory, on the device that needs most.
  double memory(int range, int begin, int end) {
    double& known = memory_[key(range, begin, end)];
    if (known != kUnknown) return known;
    const Range& here = ranges_[range];
    if (here.left < 0) {
      const int flying = in_flight(here.first);
      const std::vector<double>& saved = savings_[p_ - here.first - 1];
      const double bytes = bytes_of(view_, begin, end, 1, flying) - (saved[end] - saved[begin]);
      const double memory = device(here.first).memory;
      return known = memory < kInfinity ? bytes / memory : bytes / 1e300;
    }
    const int cut = memory_cut(range, begin, end);
    return memory_[key(range, begin, end)] = std::max(memory(here.left, begin, cut), memory(here.right, cut, end));
  }

  // The memory-balanced cut. With each atom the left half needs more and the right half less.
  int memory_cut(int range, int begin, int end) {
    const Range here = ranges_[range];
    // The first cut whose left half needs at least as much as its right half.
    int low = begin + size(here.left), high = end - size(here.right);
    while (low < high) {
      const int middle = (low + high) / 2;
      if (memory(here.left, begin, middle) >= memory(here.right, middle, end)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    const auto largest = [&](int cut) { return std::max(memory(here.left, begin, cut), memory(here.right, cut, end)); };
    return low > begin + size(here.left) && largest(low - 1) < largest(low) ? low - 1 : low;
  }

  int compute_cut(int range, int begin, int end) const {
    const Range& here = ranges_[range];
    const double left = ranges_[here.left].speed, right = ranges_[here.right].speed;
    const auto slower = [&](int cut) {
      const SetCost a = cost_of(view_, begin, cut), b = cost_of(view_, cut, end);
      return std::max((a.forward + a.backward) / left, (b.forward + b.backward) / right);
    };
    int best = begin + size(here.left);
    for (int cut = best + 1; cut <= end - size(here.right); ++cut)
      if (slower(cut) < slower(best)) best = cut;
    return best;
  }

  double best(int range, int begin, int end) {
    const Range here = ranges_[range];
    if (end - begin < size(range)) return kInfinity;
    Found& known = found_[key(range, begin, end)];
    if (known.seconds != kUnknown) return known.seconds;
    if (limit_.is_over(end - begin)) return kInfinity;
    if (here.left < 0) return known.seconds = leaf(here.first, begin, end).seconds;
    Found found{.seconds = kInfinity};
    if (fits(memory(range, begin, end), 1)) {
      const int compute = compute_cut(range, begin, end), balanced = memory_cut(range, begin, end);
      const int first = ranges_[here.right].first;
      const ClusterLink link = view_.problem->cluster.link(devices_[first - 1], devices_[first]);
      for (int cut = std::min(compute, balanced); cut <= std::max(compute, balanced); ++cut) {
        double seconds = std::max(transfer_seconds(view_, cut, link, 1, 1), best(here.left, begin, cut));
        if (seconds < found.seconds) seconds = std::max(seconds, best(here.right, cut, end));
        if (seconds < found.seconds) found = {seconds, cut};
      }
    }
    return (known = found).seconds;
  }

  // The atoms as the stage of device i.
  Leaf leaf(int i, int begin, int end) const {
    Leaf best;
    for (const std::vector<Exchange>& exchanges : exchanges_[p_ - i - 1]) {
      Leaf found = leaf(i, begin, end, exchanges);
      if (found.seconds < best.seconds) best = std::move(found);
      if (best.exchanges.empty()) break;  // it fits as it is, or in no way
    }
    return best;
  }

  // The same where exchanges are made in this order.
  Leaf leaf(int i, int begin, int end, const std::vector<Exchange>& exchanges) const {
    SetCost cost = cost_of(view_, begin, end);
    const int flying = in_flight(i);
    Leaf leaf;
    double bytes = bytes_of(view_, begin, end, 1, flying);
    const double memory = device(i).memory;
    std::vector<double> saved(fits(bytes, memory) ? 0 : at(view_.places[end] - view_.places[begin]), 0);
    for (const Exchange& e : exchanges) {
      if (fits(bytes, memory)) break;
      if (e.place < view_.places[begin] || e.place >= view_.places[end]) continue;
      double& of_node = saved[e.place - view_.places[begin]];
      if (e.bytes(flying) <= of_node) continue;
      std::erase_if(leaf.exchanges, [&](const Exchange& other) { return other.place == e.place; });
      bytes -= e.bytes(flying) - of_node;
      of_node = e.bytes(flying);
      leaf.exchanges.push_back(e);
    }
    if (!fits(bytes, memory)) return {};
    for (auto e = leaf.exchanges.end(); e != leaf.exchanges.begin();) {  // drop exchanges that later ones made unnecessary
      --e;
      if (!fits(bytes + e->bytes(flying), memory)) continue;
      bytes += e->bytes(flying);
      e = leaf.exchanges.erase(e);
    }
    for (const Exchange& e : leaf.exchanges) {
      cost.forward += e.seconds;
      cost.swap_bytes += e.swap_bytes;
    }
    const ClusterLink host = device(i).host.value_or(ClusterLink());
    const double copies = cost.swap_bytes > 0 ? 2 * (host.latency + cost.swap_bytes / host.bandwidth) : 0;
    leaf.seconds = std::max((cost.forward + cost.backward) / device(i).speed, copies);
    return leaf;
  }

  void append(int range, int begin, int end, std::vector<PlanStage>& stages) {
    const Range& here = ranges_[range];
    if (here.left >= 0) {
      const int cut = found_[key(range, begin, end)].cut;
      append(here.left, begin, cut, stages);
      append(here.right, cut, end, stages);
      return;
    }
    PlanStage& stage = stages.emplace_back(stage_of(view_, begin, end, {devices_[here.first]}));
    stage.ahead = p_ - here.first;
    for (const Exchange& e : leaf(here.first, begin, end).exchanges) {
      const auto node = std::lower_bound(stage.nodes.begin(), stage.nodes.end(), view_.order[e.place]);
      stage.choices[node - stage.nodes.begin()] = e.choice;
    }
  }

  const ChainView& view_;
  TimeLimit& limit_;
  std::vector<int> devices_;
  int n_, p_;
  std::vector<std::vector<std::vector<Exchange>>> exchanges_;  // by the number of micro-batches in flight - 1, and by price
  std::vector<std::vector<double>> savings_;                   // by the first, summed over all nodes before each border
  std::vector<Range> ranges_;                                  // the first range holds all devices
  std::vector<double> memory_;                                 // by (range, begin, end)
  std::vector<Found> found_;
};

std::optional<ChainPlan> best_halving(const ChainView& view, TimeLimit& limit) {
  std::optional<ChainPlan> best;
  for (const int count : stage_counts(most_stages(view))) {
    if (limit.is_over()) break;
    std::optional<ChainPlan> plan = Halving(view, fastest_devices(view.problem->cluster, count), limit).run();
    if (plan && (!best || plan->value < best->value)) best = std::move(plan);
  }
  return best;
}

}  // namespace

Plan plan_by_dawnpiper(const PlanProblem& problem, const PlanOptions& options) {
  // The way in which a node holds least depends on how many micro-batches are in flight, unless there is one that holds less of each.
  const bool by_trial = std::ranges::any_of(problem.graph.nodes, [](const PlanNode& node) {
    return std::ranges::any_of(node.costs, [](const NodeCost& cost) { return cost.swap_bytes > 0; });
  });
  return plan_of_chain("dawnpiper", problem, {.most_atoms = 128, .in_flight = InFlight::pipelined, .by_trial = by_trial}, options,
                       best_halving);
}

}  // namespace penstock
