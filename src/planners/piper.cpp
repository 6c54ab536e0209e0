// Piper's planner (Tarnawski et al., NeurIPS 2021). Stages are differences of nested downsets, each with a degree of data and of tensor
// parallelism and a way to run each of its nodes, such that no device holds more than its memory. A plan's value is the time between two
// micro-batches.
//
// Piper fills a table over (downset, devices, sum of data-parallel degrees). Here a bound on the value is bisected instead: for one bound
// each downset needs only its best pairs of devices and degrees, as fewer of both are always as good, and pairs that leave the rest of the
// graph too few devices are dropped.
#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "base/numbers.h"
#include "base/text.h"
#include "cost/cost_model.h"
#include "cost/equal_devices.h"
#include "cost/evaluate.h"
#include "cost/smallest_memory.h"
#include "penstock/error.h"
#include "planners/cheapest_ways.h"
#include "planners/downsets.h"
#include "planners/likely_cuts.h"
#include "planners/planner_list.h"

namespace penstock {
namespace {

constexpr int kMostStages = 10'000'000;  // sets of nodes times degrees, about 500 MB
constexpr std::int64_t kPairWork = 16;   // elementary steps for a pair of sets that makes no stage

// For each way of a node with this degree, the index of the first of its costs.
std::vector<int> ways_of(const PlanNode& node, int degree) {
  std::vector<int> out;
  for (std::size_t i = 0; i < node.costs.size(); ++i)
    if (node.costs[i].degree == degree && choice_of(node, degree, node.costs[i].name) == static_cast<int>(i))
      out.push_back(static_cast<int>(i));
  return out;
}

double sync_bytes(const std::map<int, double>& sync, int node) {
  const auto found = sync.find(node);
  return found == sync.end() ? 0 : found->second;
}

// Sums over downsets for one tensor-parallel degree.
struct Degree {
  int degree = 1;
  std::vector<std::vector<int>> ways;  // of each node; empty: it cannot run at this degree
  // Values of each node's fastest way, and (least_...) the least that any of its ways has: at first by node, then summed by downset.
  std::vector<double> seconds, parameters, live, resident, least_live, least_resident, missing;
  std::vector<double> into, out_of;  // of each edge: bytes, the least of all ways
  bool alike = true;                 // whether ways of one node differ in time and memory only
};

double value_of(const std::vector<double>& sums, int inner, int outer) {
  return sums[at(outer)] - sums[at(inner)];
}

Degree read_degree(const PlanGraph& graph, int degree, double speed) {
  Degree out;
  out.degree = degree;
  for (const PlanNode& node : graph.nodes) {
    out.ways.push_back(ways_of(node, degree));
    NodeCost fastest, least;
    for (const int way : out.ways.back()) {
      const NodeCost& cost = node.costs[at(way)];
      const bool first = way == out.ways.back()[0];
      if (first || cost.forward + cost.backward < fastest.forward + fastest.backward) fastest = cost;
      least.live_bytes = first ? cost.live_bytes : std::min(least.live_bytes, cost.live_bytes);
      least.resident_bytes = first ? cost.resident_bytes : std::min(least.resident_bytes, cost.resident_bytes);
      const NodeCost& other = node.costs[at(out.ways.back()[0])];
      out.alike = out.alike && cost.parameter_bytes == other.parameter_bytes && cost.forward_sync == other.forward_sync &&
                  cost.backward_sync == other.backward_sync;
    }
    out.missing.push_back(out.ways.back().empty());
    out.seconds.push_back((fastest.forward + fastest.backward) / speed);
    out.parameters.push_back(fastest.parameter_bytes);
    out.live.push_back(fastest.live_bytes);
    out.resident.push_back(fastest.resident_bytes);
    out.least_live.push_back(least.live_bytes);
    out.least_resident.push_back(least.resident_bytes);
  }
  const auto least_sync = [&](int node, int other, std::map<int, double> NodeCost::* sync) {
    double bytes = kInfinity;
    for (const int way : out.ways[at(node)]) bytes = std::min(bytes, sync_bytes(graph.nodes[at(node)].costs[at(way)].*sync, other));
    return bytes == kInfinity ? 0 : bytes;
  };
  for (const PlanEdge& edge : graph.edges) {
    out.into.push_back(edge.bytes + least_sync(edge.to, edge.from, &NodeCost::forward_sync));
    out.out_of.push_back(edge.bytes + least_sync(edge.from, edge.to, &NodeCost::backward_sync));
  }
  return out;
}

std::vector<int> degrees_of(const PlanGraph& graph, int devices) {
  std::vector<int> degrees;
  for (const PlanNode& node : graph.nodes)
    for (const NodeCost& cost : node.costs)
      if (cost.degree <= devices) degrees.push_back(cost.degree);
  std::sort(degrees.begin(), degrees.end());
  degrees.erase(std::unique(degrees.begin(), degrees.end()), degrees.end());
  return degrees;
}

// Whether the sets make few enough stages, as far as the time goes.
bool few_stages(const Downsets& sets, int degrees, TimeLimit& limit) {
  int stages = 0;
  for (int outer = 0; outer < sets.count(); ++outer)
    for (int inner = 0; inner < outer; ++inner)
      if (limit.is_over(kPairWork) || (sets.nested(inner, outer) && (stages += degrees) > kMostStages)) return false;
  return true;
}

struct ChosenSets {
  Downsets sets;
  bool all;
};

// All downsets, or as many as can be looked at in pairs.
ChosenSets choose_sets(const PlanGraph& graph, int degrees, TimeLimit& limit) {
  Downsets all(graph, most_downsets(graph, kMostListed), limit);
  if (all.count() <= kMostDownsets && few_stages(all, degrees, limit)) return {all, all.complete()};
  std::vector<double> seconds, outputs;
  for (const PlanNode& node : graph.nodes) {
    seconds.push_back(node.costs[0].degree * (node.costs[0].forward + node.costs[0].backward));
    outputs.push_back(node.output_bytes);
  }
  const CutCosts costs{all.sums(seconds), all.cut_sums(graph, outputs)};
  const int most = static_cast<int>(std::sqrt(2.0 * kMostStages / degrees));
  return {all.only(spread_cuts(costs, all.all(), most)), false};
}

// A stage at tensor degree t, before its data-parallel degree is chosen: its nodes are those of `outer` without `inner`.
struct Stage {
  int inner, outer;
  int degree;         // index into the degrees
  double cut;         // bytes over its border, in both directions
  double seconds;     // of one micro-batch on one replica, with transfers; no way is faster
  double parameters;  // bytes
};

// The end of a plan, from some stage to its last: all nodes outside of a downset have stages.
struct State {
  int devices, degrees;        // devices used; sum of data-parallel degrees
  int outer = -1, state = -1;  // the state that it continues: its downset and its index there
  int stage = -1, copies = 0;  // the stage that it adds, and its replicas
};

class Search {
 public:
  Search(const PlanGraph& graph, ChosenSets chosen, const EqualDevices& devices, int batches, bool replicas, TimeLimit& limit)
      : limit_(limit),
        graph_(graph),
        sets_(std::move(chosen.sets)),
        exact_(chosen.all),
        devices_(devices),
        batches_(batches),
        most_degrees_(std::min(batches, devices.count)) {
    for (int d = 1; d <= (replicas ? most_degrees_ : 1); ++d)
      if (batches % d == 0) copies_.push_back(d);
    for (const int degree : degrees_of(graph, devices.count)) degrees_.push_back(read_degree(graph, degree, devices.speed));
    find_work();
    find_stages();
  }

  // The least value, with its plan; infinite where nothing fits. When the time is over it is the best so far.
  double solve() {
    double low = work_.back() / devices_.count, high = kInfinity;
    // Bounds that are too low are refused quickly, so it begins there.
    for (double over = 1e-2; high == kInfinity && over < 1e12 && !limit_.is_over(0); over *= 2) {
      const double bound = std::max(low, 1e-300) * (1 + over);
      if ((high = attempt(bound)) == kInfinity) low = bound;
    }
    if (high == kInfinity && (high = attempt(1e300)) == kInfinity) return kInfinity;
    // `high` is the value of a plan; the last attempt proves that there is none below.
    while (high > 1e-290) {
      if (limit_.is_over(0)) {
        exact_ = false;
        break;
      }
      const bool close = high - low <= 1e-6 * high;
      const double bound = close ? high * (1 - 1e-12) : (low + high) / 2;
      const double found = attempt(bound);
      if (found < kInfinity) high = found;
      if (found == kInfinity && (close || limit_.is_over(0))) break;
      if (found == kInfinity) low = bound;
    }
    return high;
  }

  bool fits(double memory) {
    devices_.memory = memory;
    known_.clear();
    return attempt(1e300) < kInfinity;
  }

  // The stages of the last attempt that found a plan.
  const std::vector<PlanStage>& stages() const { return plan_; }
  bool exact() const { return exact_; }

 private:
  int full() const { return sets_.count() - 1; }

  // The least device seconds that the nodes of each downset need.
  void find_work() {
    std::vector<double> work(graph_.nodes.size(), kInfinity);
    for (const Degree& degree : degrees_)
      for (std::size_t i = 0; i < work.size(); ++i)
        if (!degree.ways[i].empty()) work[i] = std::min(work[i], degree.degree * degree.seconds[i]);
    for (std::size_t i = 0; i < work.size(); ++i)
      if (work[i] == kInfinity)
        throw Error(concat("node ", quote(graph_.nodes[i].name), " of ", graph_.name, " fits nowhere"),
                    {concat("its costs are for more than the ", devices_.count, " devices that there are")});
    work_ = sets_.sums(work);
    for (Degree& degree : degrees_)
      for (auto* values : {&degree.seconds, &degree.parameters, &degree.live, &degree.resident, &degree.least_live, &degree.least_resident,
                           &degree.missing})
        *values = sets_.sums(*values);
  }

  void find_stages() {
    std::vector<std::vector<int>> leaving(at(sets_.count()));  // by downset: the edges that leave it
    for (int set = 0; set <= full() && !limit_.is_over(static_cast<std::int64_t>(graph_.edges.size())); ++set)
      for (std::size_t e = 0; e < graph_.edges.size(); ++e)
        if (sets_.holds(set, graph_.edges[e].from) && !sets_.holds(set, graph_.edges[e].to))
          leaving[at(set)].push_back(static_cast<int>(e));
    first_.assign(at(sets_.count()) + 1, 0);
    for (int inner = 0; inner <= full(); ++inner) {
      first_[at(inner)] = stages_.size();
      for (int outer = inner + 1; outer <= full() && !limit_.is_over(kPairWork); ++outer)
        if (sets_.nested(inner, outer)) add_stages(inner, outer, leaving);
    }
    first_.back() = stages_.size();
  }

  void add_stages(int inner, int outer, const std::vector<std::vector<int>>& leaving) {
    for (std::size_t t = 0; t < degrees_.size(); ++t) {
      const Degree& degree = degrees_[t];
      if (value_of(degree.missing, inner, outer) > 0) continue;
      limit_.is_over(static_cast<std::int64_t>(leaving[at(inner)].size() + leaving[at(outer)].size()));
      double cut = 0;
      for (const int e : leaving[at(inner)])
        if (sets_.holds(outer, graph_.edges[at(e)].to)) cut += degree.into[at(e)];
      for (const int e : leaving[at(outer)])
        if (!sets_.holds(inner, graph_.edges[at(e)].from)) cut += degree.out_of[at(e)];
      stages_.push_back({inner, outer, static_cast<int>(t), 2 * cut, value_of(degree.seconds, inner, outer) + 2 * cut / devices_.bandwidth,
                         value_of(degree.parameters, inner, outer)});
    }
  }

  // Seconds on `copies` replicas, whose parameters are summed once for all micro-batches.
  double spread(double seconds, double parameters, int copies) const {
    return (seconds + 4.0 * (copies - 1) * parameters / batches_ / devices_.bandwidth) / copies;
  }

  // The value of a stage of which each replica keeps so many micro-batches, when the fastest ways do not fit; infinite where no ways fit.
  double slow_value(int number, int copies, int kept) {
    const Stage& stage = stages_[at(number)];
    const Degree& degree = degrees_[at(stage.degree)];
    // Where ways differ in time and memory only, the best ones do not depend on the number of replicas.
    const int counted = degree.alike ? 1 : copies;
    const auto bits = [](int value) { return static_cast<std::uint64_t>(value); };
    const std::uint64_t key = bits(number) << 40 ^ bits(counted) << 20 ^ bits(kept);
    const auto [known, fresh] = known_.try_emplace(key, 0);
    if (fresh) {
      limit_.is_over(kWaysWork * (sets_.size(stage.outer) - sets_.size(stage.inner)));
      const CheapestWays ways = ways_for(stage, counted, kept);
      exact_ = exact_ && ways.exact;
      known->second = ways.fits ? ways.cost : kInfinity;
    }
    return degree.alike ? spread(known->second + stage.cut / devices_.bandwidth, stage.parameters, copies)
                        : known->second + stage.cut / devices_.bandwidth / copies;
  }

  // The costs are seconds for each micro-batch, without the transfers that all ways have.
  CheapestWays ways_for(const Stage& stage, int copies, int kept) const {
    const Degree& degree = degrees_[at(stage.degree)];
    std::vector<std::vector<Way>> nodes;
    for (const int node : sets_.difference(stage.inner, stage.outer)) {
      nodes.emplace_back();
      for (const int way : degree.ways[at(node)]) {
        const NodeCost& cost = graph_.nodes[at(node)].costs[at(way)];
        const double seconds = (cost.forward + cost.backward) / devices_.speed + extra_sync(stage, node, cost) / devices_.bandwidth;
        nodes.back().push_back(
            {spread(seconds, degree.alike ? 0 : cost.parameter_bytes, copies), cost.live_bytes * kept + cost.resident_bytes});
      }
    }
    return cheapest_ways(nodes, devices_.memory);
  }

  // The bytes that this way transfers more than the way that transfers least, in both directions.
  double extra_sync(const Stage& stage, int node, const NodeCost& cost) const {
    const Degree& degree = degrees_[at(stage.degree)];
    double bytes = 0;
    for (std::size_t e = 0; !degree.alike && e < graph_.edges.size(); ++e) {
      const PlanEdge& edge = graph_.edges[e];
      const auto outside = [&](int other) { return sets_.holds(stage.inner, other) || !sets_.holds(stage.outer, other); };
      if (edge.to == node && outside(edge.from)) bytes += edge.bytes + sync_bytes(cost.forward_sync, edge.from) - degree.into[e];
      if (edge.from == node && outside(edge.to)) bytes += edge.bytes + sync_bytes(cost.backward_sync, edge.to) - degree.out_of[e];
    }
    return 2 * bytes;
  }

  double value(int number, int copies, int kept) {
    const Stage& stage = stages_[at(number)];
    const Degree& degree = degrees_[at(stage.degree)];
    const auto memory = [&](const std::vector<double>& live, const std::vector<double>& resident) {
      return value_of(live, stage.inner, stage.outer) * kept + value_of(resident, stage.inner, stage.outer);
    };
    if (memory(degree.least_live, degree.least_resident) > devices_.memory) return kInfinity;
    if (degree.alike && memory(degree.live, degree.resident) <= devices_.memory) return spread(stage.seconds, stage.parameters, copies);
    return slow_value(number, copies, kept);
  }

  // Continues the states of stage.outer by the stage, each with the fewest replicas that keep to the bound: more would cost more devices
  // here and, for the stages before this one, more memory. A number that one state needs is needed by the next, of more degrees, too.
  void extend(int number, double bound, std::vector<State>& out) {
    const Stage& stage = stages_[at(number)];
    const int degree = degrees_[at(stage.degree)].degree;
    const double left = work_[at(stage.inner)] / bound * (1 - 1e-9);  // least number of devices that the rest needs
    std::size_t copies = 0;
    const auto& states = states_[at(stage.outer)];
    for (std::size_t s = 0; s < states.size() && !limit_.is_over(kPairWork); ++s) {
      const State& state = states[s];
      const auto needed = [&] { return state.devices + copies_[copies] * degree + left; };
      for (; copies < copies_.size(); ++copies) {
        const int d = copies_[copies];
        if (spread(stage.seconds, degrees_[at(stage.degree)].alike ? stage.parameters : 0, d) > bound) continue;
        // So many are too many for this state, but they may do for the next.
        if (needed() > devices_.count || value(number, d, (state.degrees + d - 1) / d + 1) <= bound) break;
      }
      if (copies == copies_.size()) return;
      const int degrees = state.degrees + copies_[copies];
      if (degrees > most_degrees_) return;
      if (needed() > devices_.count) continue;
      State& best = out[at(degrees)];
      if (const int used = state.devices + copies_[copies] * degree; used < best.devices)
        best = {used, degrees, stage.outer, static_cast<int>(s), number, copies_[copies]};
    }
  }

  // The value of a plan that keeps to the bound; infinite where there is none.
  double attempt(double bound) {
    states_.assign(at(sets_.count()), {});
    states_.back() = {{0, 0}};
    std::vector<State> found(at(most_degrees_) + 1);
    for (int inner = full() - 1; inner >= 0; --inner) {
      if (limit_.is_over(most_degrees_)) return kInfinity;
      found.assign(found.size(), {std::numeric_limits<int>::max(), 0});
      for (std::size_t number = first_[at(inner)]; number < first_[at(inner) + 1]; ++number) extend(static_cast<int>(number), bound, found);
      int devices = std::numeric_limits<int>::max();
      for (const State& state : found)
        if (state.devices < devices) {
          devices = state.devices;
          states_[at(inner)].push_back(state);
        }
    }
    return states_[0].empty() || limit_.is_over(0) ? kInfinity : take_plan();
  }

  // Makes the first plan of all nodes the result, and returns its value.
  double take_plan() {
    plan_.clear();
    double largest = 0;
    int device = 0;
    for (const State* state = &states_[0][0]; state->stage >= 0; state = &states_[at(state->outer)][at(state->state)]) {
      const Stage& from = stages_[at(state->stage)];
      const Degree& degree = degrees_[at(from.degree)];
      PlanStage& stage = plan_.emplace_back();
      stage.nodes = sets_.difference(from.inner, from.outer);
      stage.degree = degree.degree;
      stage.ahead = (state->degrees - 1) / state->copies + 1;
      for (int i = 0; i < stage.degree * state->copies; ++i) stage.devices.push_back(device++);
      largest = std::max(largest, value(state->stage, state->copies, stage.ahead));
      chosen_.resize(plan_.size());
      chosen_.back() = state->stage;
    }
    return largest;
  }

 public:
  // Chooses the way in which each node of the plan runs.
  void choose_ways(std::vector<PlanStage>& plan) const {
    for (std::size_t s = 0; s < plan.size(); ++s) {
      const Stage& stage = stages_[at(chosen_[s])];
      const CheapestWays ways = ways_for(stage, plan[s].replicas(), plan[s].ahead);
      for (std::size_t i = 0; i < plan[s].nodes.size(); ++i)
        plan[s].choices.push_back(degrees_[at(stage.degree)].ways[at(plan[s].nodes[i])][at(ways.choices[i])]);
    }
  }

 private:
  static constexpr std::int64_t kWaysWork = 1000;  // elementary steps of choosing a node's way

  TimeLimit& limit_;
  const PlanGraph& graph_;
  Downsets sets_;
  bool exact_;
  EqualDevices devices_;
  int batches_, most_degrees_;
  std::vector<int> copies_;  // data-parallel degrees, ascending
  std::vector<Degree> degrees_;
  std::vector<double> work_;        // by downset
  std::vector<Stage> stages_;       // by `inner`
  std::vector<std::size_t> first_;  // by downset: its first stage
  std::unordered_map<std::uint64_t, double> known_;
  std::vector<std::vector<State>> states_;  // by downset, for the current attempt: ascending in degrees, descending in devices
  std::vector<PlanStage> plan_;
  std::vector<int> chosen_;  // for each stage of the plan: its number in stages_
};

}  // namespace

Plan plan_by_piper(const PlanProblem& problem, const PlanOptions& options) {
  TimeLimit limit(options.seconds, options.clock);
  const int measured = measured_samples(problem.graph);
  const EqualDevices devices = equal_devices(problem.cluster);
  ChosenSets sets = choose_sets(problem.graph, static_cast<int>(degrees_of(problem.graph, devices.count).size()), limit);
  Search search(problem.graph, std::move(sets), devices, std::max(step_samples(problem) / measured, 1), problem.replicas, limit);
  Plan plan;
  plan.bottleneck = search.solve();
  if (plan.bottleneck == kInfinity)
    fail_memory("piper", problem.graph.name, devices.memory, limit, [&](double bytes) { return search.fits(bytes); });
  plan.stages = search.stages();
  search.choose_ways(plan.stages);
  // Every replica takes micro-batches of its own; where some nodes need equal ones, the replicas share each micro-batch.
  const auto& nodes = problem.graph.nodes;
  const bool equal = std::any_of(nodes.begin(), nodes.end(), [](const PlanNode& node) { return node.equal_batches; });
  for (PlanStage& stage : plan.stages) stage.samples = equal ? measured : measured * stage.replicas();
  plan.optimal = search.exact();
  return plan;
}

}  // namespace penstock
