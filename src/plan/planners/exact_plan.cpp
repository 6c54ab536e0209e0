// SPDX-License-Identifier: Apache-2.0
#include "planners/exact_plan.h"

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "base/numbers.h"
#include "base/text.h"
#include "cost/cost_model.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr double kSlack = 1 - 1e-9;       // a gain smaller than this is not worth looking for
constexpr std::int64_t kPlaceWork = 256;  // elementary steps for a stage that is placed or a node that is given to one

using Mask = std::uint64_t;  // a set of nodes or stages

template <class Test>
bool any_cost(const PlanProblem& problem, Test&& test) {
  const auto& nodes = problem.graph.nodes;
  return std::any_of(nodes.begin(), nodes.end(), [&](const PlanNode& n) { return std::any_of(n.costs.begin(), n.costs.end(), test); });
}

// A way to run a set of nodes on `degree * replicas` devices of speed 1.
struct Option {
  SetCost cost;  // for one micro-batch
  std::vector<int> choices;
  int degree = 1, size = 1;
  bool allowed = true;  // whether its size is allowed; other sizes only count for the bound
  // Whether o takes no more of anything.
  bool dominated_by(const Option& o) const {
    return o.cost.forward <= cost.forward && o.cost.backward <= cost.backward && o.cost.live_bytes <= cost.live_bytes &&
           o.cost.resident_bytes <= cost.resident_bytes && o.cost.parameter_bytes <= cost.parameter_bytes && o.cost.update <= cost.update;
  }
};

// For every set of nodes that is asked for, the options to run it on a number of devices.
class SetOptions {
 public:
  SetOptions(const PlanProblem& problem, bool any_size)
      : problem_(problem),
        devices_(static_cast<int>(problem.cluster.devices.size())),
        any_size_(any_size),
        sizes_(allowed_batches(problem)),
        samples_(step_samples(problem)) {
    sync_ = any_cost(problem, [](const NodeCost& cost) { return !cost.forward_sync.empty() || !cost.backward_sync.empty(); });
  }

  struct Set {
    bool known = false;
    std::vector<Option> options;
    // The least of all options, on devices of speed 1: seconds of a step; bytes with one micro-batch in flight.
    double seconds = kInfinity, bytes = kInfinity;
  };
  const Set& of(Mask nodes, int devices) {
    std::vector<Set>& sets = sets_[nodes];
    if (sets.empty()) sets.resize(at(devices_ + 1));
    Set& set = sets[at(devices)];
    if (!set.known) find(nodes, devices, set);
    return set;
  }
  // Seconds of a step without the update.
  double step_seconds(const Option& option) const { return (option.cost.forward + option.cost.backward) * samples_ / option.size; }

 private:
  void find(Mask nodes, int devices, Set& set) {
    set.known = true;
    for (int degree = 1; degree <= devices; ++degree) {
      if (devices % degree != 0 || (devices > degree && !problem_.replicas)) continue;
      const int replicas = devices / degree;
      for (const int size : any_size_ ? possible_batches(problem_, replicas) : sizes_) add(nodes, degree, replicas, size, set.options);
    }
    for (const Option& option : set.options) {
      set.seconds = std::min(set.seconds, step_seconds(option) + option.cost.update);
      set.bytes = std::min(set.bytes, option.cost.resident_bytes + option.cost.live_bytes);
    }
    std::sort(set.options.begin(), set.options.end(), [&](const Option& a, const Option& b) { return step_seconds(a) < step_seconds(b); });
  }

  // Adds options node by node, and drops those that another option of the same degree and size beats in everything.
  void add(Mask nodes, int degree, int replicas, int size, std::vector<Option>& options) const {
    std::vector<Option> part(1);
    part[0].degree = degree;
    part[0].size = size;
    part[0].allowed = std::binary_search(sizes_.begin(), sizes_.end(), size);
    for (Mask left = nodes; left != 0; left &= left - 1) {
      const PlanNode& node = problem_.graph.nodes[at(std::countr_zero(left))];
      std::vector<Option> more;
      for (const int way : ways_of(node, degree)) {
        const SetCost cost = cost_of(node, way, static_cast<double>(size) / replicas);
        for (const Option& option : part) {
          Option& longer = more.emplace_back(option);
          longer.cost += cost;
          longer.choices.push_back(way);
        }
      }
      part = sync_ ? more : undominated(std::move(more));  // with sync bytes of its own no way beats another in everything
    }
    options.insert(options.end(), part.begin(), part.end());
  }

  static std::vector<Option> undominated(std::vector<Option> all) {
    std::vector<Option> kept;
    for (Option& option : all) {
      if (std::any_of(kept.begin(), kept.end(), [&](const Option& k) { return option.dominated_by(k); })) continue;
      std::erase_if(kept, [&](const Option& k) { return k.dominated_by(option); });
      kept.push_back(std::move(option));
    }
    return kept;
  }

  const PlanProblem& problem_;
  int devices_;
  bool any_size_;
  std::vector<int> sizes_;  // allowed sizes
  double samples_;
  bool sync_ = false;                                // whether some way adds bytes to a transfer
  std::unordered_map<Mask, std::vector<Set>> sets_;  // by nodes, then devices
};

// Classes of devices that are alike: exchanging two of one class changes nothing.
std::vector<std::vector<int>> device_classes(const ClusterSpec& cluster) {
  const int count = static_cast<int>(cluster.devices.size());
  const auto alike = [&](int a, int b) {
    const ClusterDevice &x = cluster.devices[at(a)], &y = cluster.devices[at(b)];
    if (x.speed != y.speed || x.memory != y.memory) return false;
    for (int other = 0; other < count; ++other) {
      if (other == a || other == b) continue;
      const ClusterLink i = cluster.link(a, other), j = cluster.link(b, other);
      if (i.latency != j.latency || i.bandwidth != j.bandwidth) return false;
    }
    return true;
  };
  std::vector<std::vector<int>> classes;
  for (int d = 0; d < count; ++d) {
    const auto found = std::find_if(classes.begin(), classes.end(), [&](const auto& members) { return alike(members[0], d); });
    if (found == classes.end())
      classes.push_back({d});
    else
      found->push_back(d);
  }
  return classes;
}

// A lower bound of a stage's all-reduce in any order of its devices: in a ring of more than two each device has two neighbours.
double least_all_reduce(const ClusterSpec& cluster, const PlanStage& stage, double bytes) {
  const int replicas = stage.replicas();
  if (replicas < 2) return 0;
  ClusterLink slowest;
  for (const int device : stage.devices) {
    std::vector<double> latencies, bandwidths;
    for (const int other : stage.devices) {
      if (other == device) continue;
      latencies.push_back(cluster.link(device, other).latency);
      bandwidths.push_back(-cluster.link(device, other).bandwidth);
    }
    std::sort(latencies.begin(), latencies.end());
    std::sort(bandwidths.begin(), bandwidths.end());
    const std::size_t neighbour = replicas > 2 ? 1 : 0;
    slowest = slower(slowest, {latencies[neighbour], -bandwidths[neighbour]});
  }
  return 2.0 * (replicas - 1) * (bytes / replicas / slowest.bandwidth + slowest.latency);
}

// The problem that is searched.
struct ExactProblem {
  const PlanProblem& problem;
  PlanGoal goal;
  int nodes, devices;
  bool one_device;                        // whether each stage has one device
  std::vector<std::vector<int>> classes;  // devices of each class
  std::vector<Mask> feeding;              // by node: the nodes that feed it
  double fastest = 0, largest = 0;        // of the devices
};

ExactProblem searched(const PlanProblem& problem, PlanGoal goal) {
  ExactProblem in{problem,
                  goal,
                  static_cast<int>(problem.graph.nodes.size()),
                  static_cast<int>(problem.cluster.devices.size()),
                  !problem.replicas && !any_cost(problem, [](const NodeCost& cost) { return cost.degree > 1; }),
                  device_classes(problem.cluster),
                  std::vector<Mask>(problem.graph.nodes.size())};
  for (const PlanEdge& edge : problem.graph.edges) in.feeding[at(edge.to)] |= Mask{1} << edge.from;
  for (const ClusterDevice& device : problem.cluster.devices) {
    in.fastest = std::max(in.fastest, device.speed);
    in.largest = std::max(in.largest, device.memory);
  }
  return in;
}

// The nodes of the set that come after (`later`) or before the given ones.
Mask closure(const ExactProblem& in, Mask nodes, Mask set, bool later) {
  for (Mask before = 0; before != nodes;) {
    before = nodes;
    for (int n = 0; n < in.nodes; ++n) {
      const Mask node = Mask{1} << n;
      if (later ? (set & node) && (in.feeding[at(n)] & nodes) : (nodes & node) != 0) nodes |= later ? node : in.feeding[at(n)] & set;
    }
  }
  return nodes;
}

// The split itself and its neighbours. These differ by one node, with all or nothing of what comes before or after it in its stage, by an
// exchange of two nodes, or by two stages that are joined.
std::vector<std::vector<Mask>> neighbours(const ExactProblem& in, const std::vector<Mask>& sets) {
  std::vector<std::vector<Mask>> all = {sets};
  const auto move = [&](std::size_t from, std::size_t to, Mask nodes, Mask back = 0) {
    std::vector<Mask>& moved = all.emplace_back(sets);
    if (to == sets.size()) moved.push_back(0);
    moved[from] = (moved[from] & ~nodes) | back;
    moved[to] = (moved[to] & ~back) | nodes;
    std::erase(moved, Mask{0});
    if (moved.size() > at(in.devices)) all.pop_back();
  };
  for (std::size_t from = 0; from < sets.size(); ++from)
    for (std::size_t to = 0; to <= sets.size(); ++to) {
      if (from == to) continue;
      if (to < from) move(from, to, sets[from]);
      for (Mask left = sets[from]; left != 0; left &= left - 1) {
        const Mask node = left & -left;
        const Mask later = closure(in, node, sets[from], true), earlier = closure(in, node, sets[from], false);
        move(from, to, node);
        if (later != node) move(from, to, later);
        if (earlier != node) move(from, to, earlier);
        for (Mask other = to < from ? sets[to] : 0; other != 0; other &= other - 1) move(from, to, node, other & -other);
      }
    }
  return all;
}

// Stages, each after those that feed it.
struct Order {
  std::vector<std::size_t> stages;
  std::vector<Mask> feeds;  // by stage: the stages that feed it
};

// Orders the stages of the nodes up to `last`. Returns false where there is a circle.
bool order_sets(const ExactProblem& in, const std::vector<Mask>& sets, int last, Order& order) {
  order.feeds.assign(sets.size(), 0);
  for (int node = 0; node <= last; ++node)
    for (std::size_t s = 0; s < sets.size(); ++s) {
      if (!(sets[s] >> node & 1)) continue;
      for (std::size_t from = 0; from < sets.size(); ++from)
        if (from != s && (sets[from] & in.feeding[at(node)])) order.feeds[s] |= Mask{1} << from;
    }
  order.stages.clear();
  for (Mask done = 0; order.stages.size() < sets.size();) {
    const std::size_t before = order.stages.size();
    for (std::size_t s = 0; s < sets.size(); ++s)
      if (!(done >> s & 1) && !(order.feeds[s] & ~done)) {
        order.stages.push_back(s);
        done |= Mask{1} << s;
      }
    if (order.stages.size() == before) return false;
  }
  return true;
}

// The best plan that has been found, of all splits into stages that were placed.
class Placing {
 public:
  // Plans must be better than `best`. With `prove` it also finds what bounds the plans of these splits.
  Placing(const ExactProblem& in, TimeLimit& limit, bool prove, double best)
      : in_(in), limit_(limit), options_(in.problem, prove), best_(best) {}

  ExactResult result() && {
    ExactResult result{std::move(best_stages_), {0, best_}, !limit_.is_over(0)};
    if (result.finished) result.bound = std::min(bound_, best_);
    return result;
  }

  // Gives `node` to each existing stage in turn and to a new one, so that every split occurs once, and tries all ways to run each. `sets`
  // and `order`: of the nodes before it.
  void split(std::vector<Mask>& sets, Order& order, int node) {
    if (limit_.is_over(kPlaceWork)) return;
    if (node == in_.nodes) return place(sets, order);
    for (std::size_t s = 0; s <= sets.size() && s < at(in_.devices); ++s) {
      const bool opened = s == sets.size();
      if (opened) sets.push_back(0);
      sets[s] |= Mask{1} << node;
      if (can_be_best(sets) && order_sets(in_, sets, node, order)) split(sets, order, node + 1);
      if (opened)
        sets.pop_back();
      else
        sets[s] &= ~(Mask{1} << node);
    }
  }

  // Goes from a split to its best neighbour until none is better.
  void polish(std::vector<Mask> sets) {
    Order order;
    for (bool better = true; better;) {
      better = false;
      for (const std::vector<Mask>& neighbour : neighbours(in_, sets)) {
        if (limit_.is_over(kPlaceWork)) return;
        if (!order_sets(in_, neighbour, in_.nodes - 1, order) || !can_be_best(neighbour)) continue;
        const double before = best_;
        place(neighbour, order);
        if (best_ == before) continue;
        better = true;
        sets = neighbour;
      }
    }
  }

 private:
  // False where the stages, with the nodes that they have already, need more devices than there are to be quick enough (or to fit).
  bool can_be_best(const std::vector<Mask>& sets) {
    int needed = 0;
    for (const Mask set : sets) {
      const int most = in_.devices - static_cast<int>(sets.size()) + 1;
      int devices = 1;
      while (devices <= most && !enough(set, devices)) ++devices;
      needed += devices;
      if (needed > in_.devices) return false;
    }
    return true;
  }

  // Tries all ways to run these stages.
  void place(const std::vector<Mask>& sets, const Order& order) {
    placed_.clear();
    for (const std::size_t s : order.stages) {
      Placed& stage = placed_.emplace_back();
      stage.nodes = sets[s];
      for (std::size_t before = 0; before + 1 < placed_.size(); ++before)
        if (order.feeds[s] >> order.stages[before] & 1) stage.before.push_back(before);
    }
    stages_.assign(placed_.size(), {});
    left_ = in_.classes;
    place(0);
  }

  struct Placed {
    Mask nodes = 0;
    std::vector<std::size_t> before = {};  // the stages that feed it
    double forward = 0, backward = 0;      // for one micro-batch
    double head = 0, tail = 0;             // seconds before its first forward, and after its last backward
  };

  bool enough(Mask set, int devices) {
    const SetOptions::Set& of = options_.of(set, devices);
    if (in_.goal == PlanGoal::memory) return of.bytes <= in_.largest || of.bytes < best_ * kSlack;
    return of.seconds / in_.fastest < best_ * kSlack && fits(of.bytes, in_.largest);
  }

  void place(std::size_t s) {
    limit_.is_over(kPlaceWork);
    if (s == placed_.size()) return score();
    stages_[s].nodes.clear();
    for (Mask left = placed_[s].nodes; left != 0; left &= left - 1) stages_[s].nodes.push_back(std::countr_zero(left));
    choose_devices(s, 0);
  }

  // Tries any number of devices of each class; of a class always the first that are left.
  void choose_devices(std::size_t s, std::size_t c) {
    if (limit_.is_over(0)) return;
    if (c == left_.size()) {
      if (!stages_[s].devices.empty()) choose_option(s);
      return;
    }
    const std::vector<int> all = left_[c];
    const std::vector<int> before = stages_[s].devices;
    for (std::size_t count = 0; count <= all.size(); ++count) {
      std::vector<int>& devices = stages_[s].devices;
      devices = before;
      devices.insert(devices.end(), all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
      left_[c].assign(all.begin() + static_cast<std::ptrdiff_t>(count), all.end());
      if (devices.size() > 1 && in_.one_device) break;
      choose_devices(s, c + 1);
    }
    left_[c] = all;
    stages_[s].devices = before;
  }
  void choose_option(std::size_t s) {
    const std::vector<int> unsorted = stages_[s].devices;
    std::sort(stages_[s].devices.begin(), stages_[s].devices.end());
    const ClusterDevice device = weakest(in_.problem.cluster, unsorted);
    for (const Option& option : options_.of(placed_[s].nodes, static_cast<int>(unsorted.size())).options) {
      const double bytes = option.cost.resident_bytes + option.cost.live_bytes;
      // The rest is slower, as options ascend.
      if (limit_.is_over(0) || (in_.goal == PlanGoal::time && options_.step_seconds(option) / device.speed >= best_ * kSlack)) break;
      if (!fits(bytes, device.memory) && (in_.goal == PlanGoal::time || bytes >= best_ * kSlack)) continue;
      if (in_.goal == PlanGoal::time && around(s, option, device.speed) + options_.step_seconds(option) / device.speed >= best_ * kSlack)
        continue;
      PlanStage& stage = stages_[s];
      stage.choices = option.choices;
      stage.degree = option.degree;
      stage.samples = option.size;
      forbidden_ += !option.allowed;
      place(s + 1);
      forbidden_ -= !option.allowed;
    }
    stages_[s].devices = unsorted;
  }

  // Seconds before a stage's first forward and after its last backward, at least. The stages that feed it are placed already.
  double around(std::size_t s, const Option& option, double speed) {
    Placed& here = placed_[s];
    here.head = 0;
    here.tail = option.cost.update / speed;
    here.forward = option.cost.forward / speed;
    here.backward = option.cost.backward / speed;
    for (const std::size_t b : here.before) {
      const Placed& before = placed_[b];
      const int groups = (option.size + stages_[b].samples - 1) / stages_[b].samples;
      here.head = std::max(here.head, before.head + groups * before.forward);
      here.tail = std::max(here.tail, before.tail + before.backward);
    }
    return here.head + here.tail;
  }

  void score() {
    if (!sizes_agree(in_.problem, stages_)) return;
    const PlanFigures figures = figures_of(in_.problem, stages_);
    if (in_.goal == PlanGoal::time && !figures.fit()) return;
    if (in_.goal == PlanGoal::time) bound_ = std::min(bound_, bound_of(figures));
    if (forbidden_ > 0 || (in_.goal == PlanGoal::time && step_bound(figures) >= best_ * kSlack)) return;
    const PlanScore score = score_of(figures, in_.goal);
    if (score.value >= best_ * kSlack) return;
    best_ = score.value;
    best_stages_ = stages_;
  }

  // The lower bound for these stages with any order of their work and of their devices.
  double bound_of(PlanFigures figures) const {
    for (std::size_t s = 0; s < stages_.size() && in_.classes.size() > 1; ++s) {
      const double bytes = cost_of(in_.problem.graph, stages_[s].nodes, stages_[s].choices, 1).parameter_bytes;
      figures.stages[s].all_reduce = std::min(figures.stages[s].all_reduce, least_all_reduce(in_.problem.cluster, stages_[s], bytes));
    }
    return step_bound(figures, PlanOrder::any);
  }

  const ExactProblem& in_;
  TimeLimit& limit_;
  SetOptions options_;
  double best_, bound_ = kInfinity;
  std::vector<PlanStage> best_stages_;
  // The split that is being placed, in its order: the stages, as far as they have devices; the devices of each class that no stage has
  // yet; the number of stages with sizes that are not allowed.
  std::vector<Placed> placed_;
  std::vector<PlanStage> stages_;
  std::vector<std::vector<int>> left_;
  int forbidden_ = 0;
};

}  // namespace

ExactResult exact_stages(const PlanProblem& problem, const std::vector<PlanStage>& start, PlanGoal goal, TimeLimit& limit) {
  const int nodes = static_cast<int>(problem.graph.nodes.size()), devices = static_cast<int>(problem.cluster.devices.size());
  if (nodes > kExactNodes || devices > kExactDevices)
    throw Error(concat("exact takes at most ", kExactNodes, " nodes and ", kExactDevices, " devices"),
                {concat(problem.graph.name, " has ", nodes, " nodes, the cluster ", devices, " devices")}, "planner best takes any number");
  double best = kInfinity;
  if (!start.empty()) {
    const PlanScore score = score_of(figures_of(problem, start), goal);
    if (score.lack == 0) best = score.value;
  }
  const ExactProblem in = searched(problem, goal);
  Placing placing(in, limit, goal == PlanGoal::time, best);
  std::vector<Mask> sets;
  Order order;
  placing.split(sets, order, 0);
  return std::move(placing).result();
}

std::vector<PlanStage> polish_stages(const PlanProblem& problem, std::vector<PlanStage> stages, const PlanScore& best, TimeLimit& limit) {
  // Sets of nodes with several ways each have exponentially many.
  const bool ways = any_cost(problem, [](const NodeCost& cost) { return !cost.name.empty() && cost.name != "vanilla"; });
  if (problem.graph.nodes.size() > at(ways ? kExactNodes : kPolishNodes) || problem.cluster.devices.size() > kPolishDevices) return stages;
  std::vector<Mask> sets;
  for (const PlanStage& stage : stages) {
    Mask& set = sets.emplace_back(0);
    for (const int node : stage.nodes) set |= Mask{1} << node;
  }
  const ExactProblem in = searched(problem, PlanGoal::time);
  Placing placing(in, limit, false, best.lack > 0 ? kInfinity : best.value);
  placing.polish(std::move(sets));
  ExactResult found = std::move(placing).result();
  return found.stages.empty() ? stages : found.stages;
}

}  // namespace penstock
