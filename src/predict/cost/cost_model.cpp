// SPDX-License-Identifier: Apache-2.0
#include "cost/cost_model.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

#include "base/invariant.h"
#include "base/numbers.h"
#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// The value at x of the line through two measured points, or through one and zero where both are the same.
double on_line(double x, double x0, double y0, double x1, double y1) {
  if (x1 == x0) return x0 > 0 ? y0 * x / x0 : y0;
  return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

// `value` at any number of samples, from the costs [first, last), which are of one way and ascending in samples.
template <class Value>
double interpolate(std::span<const NodeCost> costs, double samples, Value&& value) {
  const NodeCost& lowest = costs.front();
  if (costs.size() == 1) return on_line(samples, lowest.samples, value(lowest), lowest.samples, value(lowest));
  std::size_t upper = 1;
  while (upper + 1 < costs.size() && costs[upper].samples < samples) ++upper;
  const NodeCost &a = costs[upper - 1], &b = costs[upper];
  const double line = on_line(samples, a.samples, value(a), b.samples, value(b));
  // Fewer samples than were measured take no less than half of their share.
  return samples < lowest.samples ? std::max(line, value(lowest) * samples / lowest.samples / 2) : line;
}

}  // namespace

SetCost& SetCost::operator+=(const SetCost& other) {
  forward += other.forward;
  backward += other.backward;
  weight += other.weight;
  live_bytes += other.live_bytes;
  swap_bytes += other.swap_bytes;
  resident_bytes += other.resident_bytes;
  parameter_bytes += other.parameter_bytes;
  update += other.update;
  return *this;
}

double bytes_of(const SetCost& cost, double in_flight) {
  return cost.resident_bytes + cost.live_bytes * in_flight + cost.swap_bytes * std::min<double>(in_flight, kSwappedThere);
}

void check_nothing_swaps(const PlanGraph& graph, const std::string& planner) {
  for (const PlanNode& node : graph.nodes)
    for (const NodeCost& cost : node.costs)
      if (cost.swap_bytes > 0)
        throw Error(concat("node ", quote(node.name), " of ", graph.name, " has a way that swaps ", number(cost.swap_bytes), " bytes"),
                    {concat("planner ", planner, " counts no copies to the host's memory")},
                    "take planner dawnpiper, or leave out the way");
}

SetCost cost_of(const PlanNode& node, int choice, double samples) {
  const NodeCost& first = node.costs[choice];
  std::size_t end = at(choice);
  while (end < node.costs.size() && node.costs[end].name == first.name && node.costs[end].degree == first.degree) ++end;
  const std::span<const NodeCost> way(&first, end - at(choice));
  return {.forward = interpolate(way, samples, [](const NodeCost& c) { return c.forward; }),
          .backward = interpolate(way, samples, [](const NodeCost& c) { return c.backward; }),
          .weight = interpolate(way, samples, [](const NodeCost& c) { return c.weight < 0 ? c.backward / 2 : c.weight; }),
          .live_bytes = interpolate(way, samples, [](const NodeCost& c) { return c.live_bytes; }),
          .swap_bytes = interpolate(way, samples, [](const NodeCost& c) { return c.swap_bytes; }),
          .resident_bytes = first.resident_bytes,
          .parameter_bytes = first.parameter_bytes,
          .update = first.update};
}

SetCost cost_of(const PlanGraph& graph, std::span<const int> nodes, std::span<const int> choices, double samples) {
  SetCost sum;
  for (std::size_t i = 0; i < nodes.size(); ++i) sum += cost_of(graph.nodes[nodes[i]], choices.empty() ? 0 : choices[i], samples);
  return sum;
}

void scale_times(PlanGraph& graph, const PlanStage& stage, double samples, double forward, double backward) {
  const SetCost now = cost_of(graph, stage.nodes, stage.choices, samples);
  const double ahead = now.forward > 0 ? forward / now.forward : 1, back = now.backward > 0 ? backward / now.backward : 1;
  for (const int node : stage.nodes)
    for (NodeCost& cost : graph.nodes[node].costs) {
      cost.forward *= ahead;
      cost.backward *= back;
      cost.weight *= back;
    }
}

int choice_of(const PlanNode& node, int degree, std::string_view name) {
  for (std::size_t i = 0; i < node.costs.size(); ++i)
    if (node.costs[i].degree == degree && node.costs[i].name == name) return static_cast<int>(i);
  return -1;
}

int nearest_choice(const PlanNode& node, int degree, std::string_view name) {
  if (const int same = choice_of(node, degree, name); same >= 0) return same;
  const std::vector<int> ways = ways_of(node, degree);
  return ways.empty() ? -1 : ways[0];
}

std::vector<int> ways_of(const PlanNode& node, int degree) {
  std::vector<int> ways;
  for (int i = 0; i < std::ssize(node.costs); ++i) {
    const NodeCost& cost = node.costs[i];
    if ((degree == 0 || cost.degree == degree) && choice_of(node, cost.degree, cost.name) == i) ways.push_back(i);
  }
  return ways;
}

std::vector<int> degrees_of(const PlanGraph& graph, int devices) {
  std::set<int> degrees;
  for (const PlanNode& node : graph.nodes)
    for (const NodeCost& cost : node.costs)
      if (cost.degree <= devices) degrees.insert(cost.degree);
  return {degrees.begin(), degrees.end()};
}

void fail_one_device(const PlanNode& node, std::string_view planner) {
  throw Error(concat("node ", quote(node.name), " has no costs on one device"), {}, concat(planner, " has no tensor parallelism"));
}

void check_one_device(const PlanGraph& graph, std::string_view planner) {
  for (const PlanNode& node : graph.nodes) {
    invariant(!node.costs.empty(), "a graph is checked before it is planned (check_problem)");
    if (node.costs[0].degree != 1) fail_one_device(node, planner);
  }
}

int measured_samples(const PlanGraph& graph) {
  if (graph.nodes.empty()) throw Error(concat(graph.name, " has no nodes"), {}, "give a graph with one node at least");
  const PlanNode& first = graph.nodes[0];
  for (const PlanNode& node : graph.nodes) invariant(!node.costs.empty(), "a graph is checked before it is planned (check_problem)");
  for (const PlanNode& node : graph.nodes)
    if (node.costs[0].samples != first.costs[0].samples)
      throw Error(
          concat("nodes of ", graph.name, " were measured with micro-batches of different sizes"),
          {concat(quote(first.name), ": ", first.costs[0].samples, " samples"), concat(quote(node.name), ": ", node.costs[0].samples)});
  return first.costs[0].samples;
}

NodePlaces places_of(const PlanGraph& graph, const std::vector<PlanStage>& stages) {
  NodePlaces places{std::vector<int>(graph.nodes.size(), -1), std::vector<int>(graph.nodes.size(), 0)};
  for (std::size_t s = 0; s < stages.size(); ++s)
    for (std::size_t i = 0; i < stages[s].nodes.size(); ++i) {
      const std::size_t node = at(stages[s].nodes[i]);
      places.stage[node] = static_cast<int>(s);
      if (!stages[s].choices.empty()) places.choice[node] = stages[s].choices[i];
    }
  return places;
}

std::vector<int> idle_devices(const ClusterSpec& cluster, const std::vector<PlanStage>& stages) {
  std::vector<char> used(cluster.devices.size(), 0);
  for (const PlanStage& stage : stages)
    for (const int device : stage.devices) used[device] = 1;
  std::vector<int> idle;
  for (std::size_t d = 0; d < used.size(); ++d)
    if (!used[d]) idle.push_back(static_cast<int>(d));
  return idle;
}

double sync_bytes(const std::map<int, double>& sync, int node) {
  const auto found = sync.find(node);
  return found == sync.end() ? 0 : found->second;
}

namespace {

// The node's cost in its stage.
const NodeCost& cost_at(const PlanGraph& graph, const NodePlaces& places, int node) {
  return graph.nodes[node].costs[places.choice[node]];
}

// Adds each measured output once for each stage that reads it. A gradient of the file belongs to the link's way back: it goes back, or
// forward where the file's backward half repeats the edges of the forward one. Between two stages of which neither feeds the other nothing
// waits for a transfer.
void add_measured(const PlanGraph& graph, const NodePlaces& places, double samples, std::vector<StageTransfer>& transfers) {
  const auto link = [&](int from, int to) {
    const auto found = std::lower_bound(transfers.begin(), transfers.end(), std::pair(from, to),
                                        [](const StageTransfer& t, std::pair<int, int> key) { return std::pair(t.from, t.to) < key; });
    return found != transfers.end() && found->from == from && found->to == to ? &*found : nullptr;
  };
  for (std::size_t node = 0; node < graph.nodes.size(); ++node)
    for (const PlanOutput& output : graph.nodes[node].outputs) {
      const int own = places.stage[node];
      std::vector<int> stages;
      for (const int reader : output.readers)
        if (const int stage = places.stage[reader]; stage >= 0 && own >= 0 && stage != own) stages.push_back(stage);
      std::sort(stages.begin(), stages.end());
      stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
      for (const int stage : stages) {
        StageTransfer *there = link(own, stage), *back = link(stage, own);
        if (there && !output.backward) there->forward_seconds += output.seconds / samples;
        if (StageTransfer* way = back ? back : there; way && (output.backward || !there)) way->backward_seconds += output.seconds / samples;
      }
    }
}

}  // namespace

std::vector<StageTransfer> transfers_between(const PlanGraph& graph, const std::vector<PlanStage>& stages) {
  const NodePlaces places = places_of(graph, stages);
  struct Crossing {
    int from, to, node;  // the two stages, and the node whose output crosses
    double bytes, forward_sync, backward_sync;
  };
  std::vector<Crossing> crossings;
  for (const PlanEdge& edge : graph.edges) {
    const std::size_t from = at(edge.from), to = at(edge.to);
    const int a = places.stage[from], b = places.stage[to];
    if (a == b || a < 0 || b < 0) continue;
    crossings.push_back({a, b, edge.from, edge.bytes, sync_bytes(cost_at(graph, places, edge.to).forward_sync, edge.from),
                         sync_bytes(cost_at(graph, places, edge.from).backward_sync, edge.to)});
  }
  // The largest of equal outputs comes first.
  std::sort(crossings.begin(), crossings.end(), [](const Crossing& a, const Crossing& b) {
    return std::tie(a.from, a.to, a.node, b.bytes) < std::tie(b.from, b.to, b.node, a.bytes);
  });
  const double samples = crossings.empty() ? 1 : measured_samples(graph);
  std::vector<StageTransfer> transfers;
  for (std::size_t i = 0; i < crossings.size(); ++i) {
    const Crossing& c = crossings[i];
    if (transfers.empty() || transfers.back().from != c.from || transfers.back().to != c.to)
      transfers.push_back({.from = c.from, .to = c.to});
    StageTransfer& transfer = transfers.back();
    transfer.forward_bytes += c.forward_sync / samples;
    transfer.backward_bytes += c.backward_sync / samples;
    if (i > 0 && crossings[i - 1].from == c.from && crossings[i - 1].to == c.to && crossings[i - 1].node == c.node) continue;
    if (!graph.nodes[c.node].outputs.empty()) continue;
    transfer.forward_bytes += c.bytes / samples;
    transfer.backward_bytes += c.bytes / samples;
  }
  add_measured(graph, places, samples, transfers);
  return transfers;
}

double bytes_between(const PlanGraph& graph, const PlanStage& from, const PlanStage& to, double samples) {
  const std::vector<StageTransfer> transfers = transfers_between(graph, {from, to});
  const auto there = std::find_if(transfers.begin(), transfers.end(), [](const StageTransfer& t) { return t.from == 0; });
  return there == transfers.end() ? 0 : there->forward_bytes * samples;
}

ClusterDevice weakest(const ClusterSpec& cluster, std::span<const int> devices) {
  ClusterDevice weakest{kInfinity, kInfinity, ClusterLink()};
  for (const int device : devices) {
    const ClusterDevice& one = cluster.devices[device];
    const bool has_host = weakest.host && one.host;
    weakest = {std::min(weakest.speed, one.speed), std::min(weakest.memory, one.memory),
               has_host ? std::optional(slower(*weakest.host, *one.host)) : std::nullopt};
  }
  return weakest;
}

ClusterDevice weakest(const ClusterSpec& cluster) {
  std::vector<int> all(cluster.devices.size());
  std::iota(all.begin(), all.end(), 0);
  return weakest(cluster, all);
}

ClusterLink slower(const ClusterLink& a, const ClusterLink& b) {
  return {std::max(a.latency, b.latency), std::min(a.bandwidth, b.bandwidth)};
}

namespace {

// Which groups of the level below hold the devices: none, one (`first`), or several.
struct Groups {
  bool some = false, several = false;
  int first = 0;

  void add(int group) {
    several = several || (some && group != first);
    if (!some) first = group;
    some = true;
  }
};

// The devices of each of two sets that lie in one group of a level.
struct Spread {
  Groups from = {}, to = {};
};

// Whether any two devices of the cluster have the same link between them, that of its only level.
bool has_one_link(const ClusterSpec& cluster) {
  return cluster.levels.size() == 1 && cluster.between.empty();
}

}  // namespace

ClusterLink slowest_link(const ClusterSpec& cluster, std::span<const int> from, std::span<const int> to) {
  if (has_one_link(cluster) && from.size() * to.size() > 1) return cluster.levels[0].link;
  ClusterLink slowest;
  constexpr std::size_t kFewPairs = 256;
  if (from.size() * to.size() <= kFewPairs || !cluster.between.empty()) {
    for (const int a : from)
      for (const int b : to)
        if (a != b) slowest = slower(slowest, cluster.link(a, b));
    return slowest;
  }
  // A level's link counts where one device of each set lies in the same group of this level, but the two lie in different groups of the
  // level below.
  const std::size_t devices = cluster.devices.size();
  std::size_t below = 1, together = 1;
  for (const ClusterSpec::Level& level : cluster.levels) {
    together *= at(level.size);
    std::vector<Spread> spread(devices / together + 1);
    for (const int a : from) spread[at(a) / together].from.add(static_cast<int>(at(a) / below));
    for (const int b : to) spread[at(b) / together].to.add(static_cast<int>(at(b) / below));
    const auto apart = [](const Spread& s) {
      return s.from.some && s.to.some && (s.from.several || s.to.several || s.from.first != s.to.first);
    };
    if (std::any_of(spread.begin(), spread.end(), apart)) slowest = slower(slowest, level.link);
    below = together;
  }
  return slowest;
}

double all_reduce_seconds(const ClusterSpec& cluster, std::span<const int> devices, double bytes) {
  const double n = static_cast<double>(devices.size());
  if (devices.size() < 2) return 0;
  ClusterLink slowest = has_one_link(cluster) ? cluster.levels[0].link : ClusterLink();
  for (std::size_t i = 0; i < devices.size() && !has_one_link(cluster); ++i)
    slowest = slower(slowest, cluster.link(devices[i], devices[(i + 1) % devices.size()]));
  return 2 * (n - 1) / n * bytes / slowest.bandwidth + 2 * (n - 1) * slowest.latency;
}

AllReduceCost all_reduce_cost(const ClusterSpec& cluster, std::span<const int> devices) {
  const double latency = all_reduce_seconds(cluster, devices, 0);
  return {all_reduce_seconds(cluster, devices, 1) - latency, latency};
}

StageShape shape_of(const PlanGraph& graph, const std::vector<PlanStage>& stages) {
  const NodePlaces places = places_of(graph, stages);
  StageShape shape;
  shape.predecessors.resize(stages.size());
  shape.has_backward.assign(stages.size(), true);
  shape.has_parameters.assign(stages.size(), true);
  for (const PlanEdge& edge : graph.edges) {
    const int from = places.stage[edge.from], to = places.stage[edge.to];
    if (from != to) shape.predecessors[to].push_back(from);
  }
  for (auto& list : shape.predecessors) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  return shape;
}

bool order_stages(const PlanGraph& graph, std::vector<PlanStage>& stages) {
  const NodePlaces places = places_of(graph, stages);
  const std::size_t count = stages.size();
  std::vector<char> feeds(count * count, 0);
  for (const PlanEdge& edge : graph.edges) {
    const int from = places.stage[edge.from], to = places.stage[edge.to];
    if (from != to) feeds[at(from) * count + at(to)] = 1;
  }
  std::vector<int> waits(count, 0);
  for (std::size_t a = 0; a < count; ++a)
    for (std::size_t b = 0; b < count; ++b) waits[b] += feeds[a * count + b];
  std::vector<std::size_t> order;
  for (std::size_t s = 0; s < count; ++s)
    if (waits[s] == 0) order.push_back(s);
  for (std::size_t i = 0; i < order.size(); ++i)
    for (std::size_t b = 0; b < count; ++b)
      if (feeds[order[i] * count + b] && --waits[b] == 0) order.push_back(b);
  if (order.size() < count) return false;
  std::vector<PlanStage> ordered;
  for (const std::size_t s : order) ordered.push_back(std::move(stages[s]));
  stages = std::move(ordered);
  return true;
}

}  // namespace penstock
