// SPDX-License-Identifier: Apache-2.0
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

// Sums over downsets for one tensor-parallel degree.
struct Degree {
  int degree = 1;
  std::vector<std::vector<int>> ways;  // of each node; empty: it cannot run at this degree
  // Sums by downset, of each node's fastest way, and (least_...) of the least that any of its ways has.
  std::vector<double> seconds, parameters, live, resident, least_live, least_resident, missing;
  std::vector<double> into, out_of;  // of each edge: bytes, the least of all ways
  bool alike = true;                 // whether ways of one node differ in time and memory only
};

double value_of(const std::vector<double>& sums, int inner, int outer) {
  return sums[at(outer)] - sums[at(inner)];
}

// `work`: the least device seconds of each node, of all degrees that were read.
Degree read_degree(const PlanGraph& graph, const Downsets& sets, int degree, double speed, std::vector<double>& work) {
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
  for (std::size_t i = 0; i < work.size(); ++i)
    if (!out.ways[i].empty()) work[i] = std::min(work[i], degree * out.seconds[i]);
  for (auto* values : {&out.seconds, &out.parameters, &out.live, &out.resident, &out.least_live, &out.least_resident, &out.missing})
    *values = sets.sums(*values);
  return out;
}

// Whether the sets make few enough stages, as far as the time goes.
bool few_stages(const Downsets& sets, int degrees, TimeLimit& limit) {
  int stages = 0;
  for (int outer = 0; outer < sets.count(); ++outer)
    for (int inner = 0; inner < outer; ++inner)
      if (limit.is_over(kPairWork) || (sets.nested(inner, outer) && (stages += degrees) > kMostStages)) return false;
  return true;
}

// By downset: the least device seconds of its nodes, and what leaves it.
CutCosts work_cut_costs(const PlanGraph& graph, const Downsets& sets, const EqualDevices& devices) {
  std::vector<double> work, outputs;
  for (const PlanNode& node : graph.nodes) {
    double least = kInfinity;
    for (const NodeCost& cost : node.costs)
      if (cost.degree <= devices.count) least = std::min(least, cost.degree * (cost.forward + cost.backward) / devices.speed);
    work.push_back(least < kInfinity ? least : 0);  // a node that fits nowhere is refused below
    outputs.push_back(node.output_bytes);
  }
  return {sets.sums(work), sets.cut_sums(graph, outputs)};
}

// A stage at tensor degree t, before its data-parallel degree is chosen: its nodes are those of `outer` without `inner`.
struct PiperStage {
  int inner, outer;
  int degree;         // index into the degrees
  double cut;         // bytes over its border, in both directions
  double seconds;     // of one micro-batch on one replica, with transfers; no way is faster
  double parameters;  // bytes
};

// The problem that is searched.
struct PiperProblem {
  const PlanGraph& graph;
  Downsets sets;
  EqualDevices devices;
  int batches, most_degrees;
  std::vector<int> copies;  // data-parallel degrees, ascending
  std::vector<Degree> degrees;
  std::vector<double> work;             // by downset: the least device seconds of its nodes
  std::vector<PiperStage> stages = {};  // by `inner`
  std::vector<std::size_t> first = {};  // by downset: its first stage
};

void add_stages(PiperProblem& in, TimeLimit& limit, int inner, int outer, const std::vector<std::vector<int>>& leaving) {
  for (std::size_t t = 0; t < in.degrees.size(); ++t) {
    const Degree& degree = in.degrees[t];
    if (value_of(degree.missing, inner, outer) > 0) continue;
    limit.is_over(static_cast<std::int64_t>(leaving[at(inner)].size() + leaving[at(outer)].size()));
    double cut = 0;
    for (const int e : leaving[at(inner)])
      if (in.sets.holds(outer, in.graph.edges[at(e)].to)) cut += degree.into[at(e)];
    for (const int e : leaving[at(outer)])
      if (!in.sets.holds(inner, in.graph.edges[at(e)].from)) cut += degree.out_of[at(e)];
    in.stages.push_back({inner, outer, static_cast<int>(t), 2 * cut,
                         value_of(degree.seconds, inner, outer) + 2 * cut / in.devices.bandwidth,
                         value_of(degree.parameters, inner, outer)});
  }
}

void find_stages(PiperProblem& in, TimeLimit& limit) {
  const std::vector<PlanEdge>& edges = in.graph.edges;
  const int count = in.sets.count();
  std::vector<std::vector<int>> leaving(at(count));  // by downset: the edges that leave it
  for (int set = 0; set < count && !limit.is_over(std::ssize(edges)); ++set)
    for (std::size_t e = 0; e < edges.size(); ++e)
      if (in.sets.holds(set, edges[e].from) && !in.sets.holds(set, edges[e].to)) leaving[at(set)].push_back(static_cast<int>(e));
  for (int inner = 0; inner < count; ++inner) {
    in.first.push_back(in.stages.size());
    for (int outer = inner + 1; outer < count && !limit.is_over(kPairWork); ++outer)
      if (in.sets.nested(inner, outer)) add_stages(in, limit, inner, outer, leaving);
  }
  in.first.push_back(in.stages.size());
}

PiperProblem searched(const PlanProblem& problem, Downsets sets, const EqualDevices& devices, TimeLimit& limit) {
  const PlanGraph& graph = problem.graph;
  const int batches = std::max(step_samples(problem) / measured_samples(graph), 1);
  const int most_degrees = std::min(batches, devices.count);
  std::vector<int> copies;
  for (int d = 1; d <= (problem.replicas ? most_degrees : 1); ++d)
    if (batches % d == 0) copies.push_back(d);
  std::vector<Degree> degrees;
  std::vector<double> work(graph.nodes.size(), kInfinity);
  for (const int degree : degrees_of(graph, devices.count)) degrees.push_back(read_degree(graph, sets, degree, devices.speed, work));
  for (std::size_t i = 0; i < work.size(); ++i)
    if (work[i] == kInfinity)
      throw Error(concat("node ", quote(graph.nodes[i].name), " of ", graph.name, " fits nowhere"),
                  {concat("its costs are for more than the ", devices.count, " devices that there are")});
  work = sets.sums(work);
  PiperProblem in{graph, std::move(sets), devices, batches, most_degrees, std::move(copies), std::move(degrees), std::move(work)};
  find_stages(in, limit);
  return in;
}

// Seconds on `copies` replicas, whose parameters are summed once for all micro-batches.
double spread(const PiperProblem& in, double seconds, double parameters, int copies) {
  return (seconds + 4.0 * (copies - 1) * parameters / in.batches / in.devices.bandwidth) / copies;
}

// The bytes that this way transfers more than the way that transfers least, in both directions.
double extra_sync(const PiperProblem& in, const PiperStage& stage, int node, const NodeCost& cost) {
  const Degree& degree = in.degrees[at(stage.degree)];
  double bytes = 0;
  for (std::size_t e = 0; !degree.alike && e < in.graph.edges.size(); ++e) {
    const PlanEdge& edge = in.graph.edges[e];
    const auto outside = [&](int other) { return in.sets.holds(stage.inner, other) || !in.sets.holds(stage.outer, other); };
    if (edge.to == node && outside(edge.from)) bytes += edge.bytes + sync_bytes(cost.forward_sync, edge.from) - degree.into[e];
    if (edge.from == node && outside(edge.to)) bytes += edge.bytes + sync_bytes(cost.backward_sync, edge.to) - degree.out_of[e];
  }
  return 2 * bytes;
}

// The costs are seconds for each micro-batch, without the transfers that all ways have.
CheapestWays ways_for(const PiperProblem& in, const PiperStage& stage, int copies, int kept, double memory) {
  const Degree& degree = in.degrees[at(stage.degree)];
  std::vector<std::vector<Way>> nodes;
  for (const int node : in.sets.difference(stage.inner, stage.outer)) {
    nodes.emplace_back();
    for (const int way : degree.ways[at(node)]) {
      const NodeCost& cost = in.graph.nodes[at(node)].costs[at(way)];
      const double seconds = (cost.forward + cost.backward) / in.devices.speed + extra_sync(in, stage, node, cost) / in.devices.bandwidth;
      nodes.back().push_back(
          {spread(in, seconds, degree.alike ? 0 : cost.parameter_bytes, copies), cost.live_bytes * kept + cost.resident_bytes});
    }
  }
  return cheapest_ways(nodes, memory);
}

// The values of stages on devices with so much memory. The best ways of each are chosen once.
class Values {
 public:
  Values(const PiperProblem& in, double memory, TimeLimit& limit) : in_(in), memory_(memory), limit_(limit) {}

  bool exact() const { return exact_; }  // whether it is proven of all ways so far that none are better

  // The value of a stage of which each replica keeps so many micro-batches; infinite where no ways fit.
  double value(int number, int copies, int kept) {
    const PiperStage& stage = in_.stages[at(number)];
    const Degree& degree = in_.degrees[at(stage.degree)];
    const auto memory = [&](const std::vector<double>& live, const std::vector<double>& resident) {
      return value_of(live, stage.inner, stage.outer) * kept + value_of(resident, stage.inner, stage.outer);
    };
    if (memory(degree.least_live, degree.least_resident) > memory_) return kInfinity;
    if (degree.alike && memory(degree.live, degree.resident) <= memory_) return spread(in_, stage.seconds, stage.parameters, copies);
    return slow_value(number, copies, kept);
  }

 private:
  static constexpr std::int64_t kWaysWork = 1000;  // elementary steps of choosing a node's way

  // When the fastest ways do not fit.
  double slow_value(int number, int copies, int kept) {
    const PiperStage& stage = in_.stages[at(number)];
    const Degree& degree = in_.degrees[at(stage.degree)];
    // Where ways differ in time and memory only, the best ones do not depend on the number of replicas.
    const int counted = degree.alike ? 1 : copies;
    const auto bits = [](int value) { return static_cast<std::uint64_t>(value); };
    const std::uint64_t key = bits(number) << 40 ^ bits(counted) << 20 ^ bits(kept);
    const auto [known, fresh] = known_.try_emplace(key, 0);
    if (fresh) {
      limit_.is_over(kWaysWork * (in_.sets.size(stage.outer) - in_.sets.size(stage.inner)));
      const CheapestWays ways = ways_for(in_, stage, counted, kept, memory_);
      exact_ = exact_ && ways.exact;
      known->second = ways.fits ? ways.cost : kInfinity;
    }
    return degree.alike ? spread(in_, known->second + stage.cut / in_.devices.bandwidth, stage.parameters, copies)
                        : known->second + stage.cut / in_.devices.bandwidth / copies;
  }

  const PiperProblem& in_;
  double memory_;
  TimeLimit& limit_;
  bool exact_ = true;
  std::unordered_map<std::uint64_t, double> known_;
};

// The end of a plan, from some stage to its last: all nodes outside of a downset have stages.
struct PlanEnd {
  int devices, degrees;        // devices used; sum of data-parallel degrees
  int outer = -1, state = -1;  // the state that it continues: its downset and its index there
  int stage = -1, copies = 0;  // the stage that it adds, and its replicas
};

// The search for a plan that keeps to the bound.
struct Attempt {
  const PiperProblem& in;
  Values& values;
  TimeLimit& limit;
  double bound;
};

// Continues the states of stage.outer by the stage, each with the fewest replicas that keep to the bound: more would cost more devices
// here and, for the stages before this one, more memory. A number that one state needs is needed by the next, of more degrees, too.
void extend(const Attempt& a, int number, const std::vector<PlanEnd>& states, std::vector<PlanEnd>& out) {
  const auto& [in, values, limit, bound] = a;
  const PiperStage& stage = in.stages[at(number)];
  const int degree = in.degrees[at(stage.degree)].degree;
  const double left = in.work[at(stage.inner)] / bound * (1 - 1e-9);  // least number of devices that the rest needs
  std::size_t copies = 0;
  for (std::size_t s = 0; s < states.size() && !limit.is_over(kPairWork); ++s) {
    const PlanEnd& state = states[s];
    const auto needed = [&] { return state.devices + in.copies[copies] * degree + left; };
    for (; copies < in.copies.size(); ++copies) {
      const int d = in.copies[copies];
      if (spread(in, stage.seconds, in.degrees[at(stage.degree)].alike ? stage.parameters : 0, d) > bound) continue;
      // This many copies are too many for this state, but they may do for the next.
      if (needed() > in.devices.count || values.value(number, d, (state.degrees + d - 1) / d + 1) <= bound) break;
    }
    if (copies == in.copies.size()) return;
    const int degrees = state.degrees + in.copies[copies];
    if (degrees > in.most_degrees) return;
    if (needed() > in.devices.count) continue;
    PlanEnd& best = out[at(degrees)];
    if (const int used = state.devices + in.copies[copies] * degree; used < best.devices)
      best = {used, degrees, stage.outer, static_cast<int>(s), number, in.copies[copies]};
  }
}

// A plan, from its first stage.
struct Found {
  struct Part {
    int stage, copies, ahead;
  };
  double value = kInfinity;  // infinite: there is none
  std::vector<Part> parts = {};
  bool late = false;  // whether the time was over before it was proven that there is no better one
};

// A plan that keeps to the bound.
Found attempt(const Attempt& a) {
  const auto& [in, values, limit, bound] = a;
  std::vector<std::vector<PlanEnd>> states(at(in.sets.count()));  // by downset: ascending in degrees, descending in devices
  states.back() = {{0, 0}};
  std::vector<PlanEnd> best(at(in.most_degrees) + 1);
  for (int inner = in.sets.count() - 2; inner >= 0; --inner) {
    if (limit.is_over(in.most_degrees)) return {};
    best.assign(best.size(), {std::numeric_limits<int>::max(), 0});
    for (std::size_t number = in.first[at(inner)]; number < in.first[at(inner) + 1]; ++number)
      extend(a, static_cast<int>(number), states[at(in.stages[number].outer)], best);
    int devices = std::numeric_limits<int>::max();
    for (const PlanEnd& state : best)
      if (state.devices < devices) {
        devices = state.devices;
        states[at(inner)].push_back(state);
      }
  }
  if (states[0].empty() || limit.is_over(0)) return {};
  Found found{0};
  for (const PlanEnd* state = &states[0][0]; state->stage >= 0; state = &states[at(state->outer)][at(state->state)]) {
    const int ahead = (state->degrees - 1) / state->copies + 1;
    found.parts.push_back({state->stage, state->copies, ahead});
    found.value = std::max(found.value, values.value(state->stage, state->copies, ahead));
  }
  return found;
}

// The plan of the least value. When the time is over it is the best so far.
Found solve(const PiperProblem& in, Values& values, TimeLimit& limit) {
  double low = in.work.back() / in.devices.count;
  Found best;
  // Bounds that are too low are refused quickly, so it begins there.
  for (double over = 1e-2; best.value == kInfinity && over < 1e12 && !limit.is_over(0); over *= 2) {
    const double bound = std::max(low, 1e-300) * (1 + over);
    best = attempt({in, values, limit, bound});
    if (best.value == kInfinity) low = bound;
  }
  if (best.value == kInfinity) best = attempt({in, values, limit, 1e300});
  // The last attempt proves that there is no plan below the best.
  while (best.value < kInfinity && best.value > 1e-290) {
    best.late = limit.is_over(0);
    if (best.late) break;
    const double high = best.value;
    const bool close = high - low <= 1e-6 * high;
    const double bound = close ? high * (1 - 1e-12) : (low + high) / 2;
    Found found = attempt({in, values, limit, bound});
    if (found.value < kInfinity)
      best = std::move(found);
    else if (close || limit.is_over(0))
      break;
    else
      low = bound;
  }
  return best;
}

// Every replica takes micro-batches of its own; where some nodes need equal ones, or all of them together would be no size that the problem
// says, the replicas share each micro-batch.
std::vector<PlanStage> stages_of(const PlanProblem& problem, const PiperProblem& in, const Found& found) {
  const auto& nodes = in.graph.nodes;
  const bool equal = std::any_of(nodes.begin(), nodes.end(), [](const PlanNode& node) { return node.equal_batches; });
  const int measured = measured_samples(in.graph);
  std::vector<PlanStage> stages;
  int device = 0;
  for (const Found::Part& part : found.parts) {
    const PiperStage& from = in.stages[at(part.stage)];
    const Degree& degree = in.degrees[at(from.degree)];
    const CheapestWays ways = ways_for(in, from, part.copies, part.ahead, in.devices.memory);
    PlanStage& stage = stages.emplace_back();
    stage.nodes = in.sets.difference(from.inner, from.outer);
    stage.degree = degree.degree;
    stage.ahead = part.ahead;
    const bool own = problem.batches.empty() || std::ranges::count(problem.batches, measured * part.copies) > 0;
    stage.samples = equal || !own ? measured : measured * part.copies;
    for (int i = 0; i < stage.degree * part.copies; ++i) stage.devices.push_back(device++);
    for (std::size_t i = 0; i < stage.nodes.size(); ++i) stage.choices.push_back(degree.ways[at(stage.nodes[i])][at(ways.choices[i])]);
  }
  return stages;
}

}  // namespace

Plan plan_by_piper(const PlanProblem& problem, const PlanOptions& options) {
  constexpr int kRounds = 3;  // of searching among sets that a plan as good as the one that was found may have
  TimeLimit limit(options.seconds, options.clock);
  const EqualDevices devices = equal_devices(problem.cluster);
  const int degrees = static_cast<int>(degrees_of(problem.graph, devices.count).size());
  const Downsets all(problem.graph, most_downsets(problem.graph, kMostListed), limit);
  const CutCosts costs = work_cut_costs(problem.graph, all, devices);
  std::vector<int> sets = all.all();
  Plan plan;
  plan.bottleneck = kInfinity;
  for (int round = 0; round < kRounds && (round == 0 || !limit.is_over(0)); ++round) {
    Downsets chosen = all.only(sets);
    const bool every = chosen.count() <= kMostDownsets && few_stages(chosen, degrees, limit);
    if (!every) chosen = all.only(spread_cuts(costs, sets, static_cast<int>(std::sqrt(2.0 * kMostStages / std::max(degrees, 1)))));
    const PiperProblem in = searched(problem, std::move(chosen), devices, limit);
    Values values(in, devices.memory, limit);
    const Found found = solve(in, values, limit);
    const auto fits = [&](double memory) {
      Values other(in, memory, limit);
      return attempt({in, other, limit, 1e300}).value < kInfinity;
    };
    if (found.value == kInfinity && round == 0) fail_memory("piper", problem.graph.name, devices.memory, limit, fits);
    if (found.value < plan.bottleneck) {
      plan.bottleneck = found.value;
      plan.stages = stages_of(problem, in, found);
    }
    plan.optimal = every && all.complete() && !found.late && !limit.is_over(0) && values.exact();
    if (every) break;
    sets = possible_cuts(costs, devices.count, plan.bottleneck);
  }
  return plan;
}

}  // namespace penstock
