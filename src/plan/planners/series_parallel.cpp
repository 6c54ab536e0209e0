// SPDX-License-Identifier: Apache-2.0
// Decomposition. A set of nodes that falls apart into unconnected pieces is a parallel. A connected one is a series if some cut of a
// topological order has every node of the one side before every node of the other. That is so if and only if each sink of the first side
// has an edge to each source of the second: no third node can stand between two such. For all cuts at once this takes sums over three kinds
// of intervals (where a node is a sink of the first side, a source of the second, and where an edge joins the two).
//
// Completion. A connected set without such a cut is no series-parallel order (it holds an N; Valdes, Tarjan & Lawler 1982). It gets a
// barrier: one cut whose first side comes before the second from then on, as level-based synchronisation does for all levels at once
// (González Escribano, van Gemund & Cardeñoso Payo, "Mapping unstructured applications into nested parallelism", 2002). Barriers are added
// one at a time, since each side may then be series-parallel by itself: the one that lengthens the longest path least and, of equal ones,
// that with the fewest new dependencies between sinks and sources. The cuts tried are those of the orders by distance from the sources and
// from the sinks, in nodes and in weight.
#include "planners/series_parallel.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "base/numbers.h"

namespace penstock {
namespace {

using Kind = SeriesParallel::Kind;

struct Decomposer {
  const std::vector<double>& weights;
  std::vector<std::vector<int>> next = {}, before = {};
  SeriesParallel tree = {};
  // The nodes of the set in hand have mark == current; place is their position in the set's order.
  std::vector<int> mark = {}, place = {};
  int current = 0;
};

// Makes `order` the set in hand.
void enter(Decomposer& d, const std::vector<int>& order) {
  ++d.current;
  for (std::size_t i = 0; i < order.size(); ++i) d.mark[order[i]] = d.current, d.place[order[i]] = static_cast<int>(i);
}

// Calls visit(place) for those of `nodes` that are in the set in hand.
template <class Visit>
void for_inside(const Decomposer& d, const std::vector<int>& nodes, Visit&& visit) {
  for (const int node : nodes)
    if (d.mark[node] == d.current) visit(d.place[node]);
}

// For a cut before each place of an order: the sinks of the first side, the sources of the second, and the edges between those.
struct CutCounts {
  std::vector<long> sinks, sources, edges;
};

CutCounts count_cuts(Decomposer& d, const std::vector<int>& order) {
  const int n = static_cast<int>(order.size());
  enter(d, order);
  std::vector<int> first_reader(order.size(), n), last_feeder(order.size(), -1);
  for (int i = 0; i < n; ++i)
    for_inside(d, d.next[order[i]], [&](int reader) {
      first_reader[i] = std::min(first_reader[i], reader);
      last_feeder[reader] = std::max(last_feeder[reader], i);
    });
  CutCounts counts{std::vector<long>(at(n + 2)), std::vector<long>(at(n + 2)), std::vector<long>(at(n + 2))};
  const auto between = [](std::vector<long>& sums, int after, int last) {  // adds one to the cuts after + 1 .. last
    if (after < last) ++sums[after + 1], --sums[last + 1];
  };
  for (int i = 0; i < n; ++i) {
    between(counts.sinks, i, first_reader[i]);
    between(counts.sources, last_feeder[i], i);
    for_inside(d, d.next[order[i]],
               [&](int reader) { between(counts.edges, std::max(i, last_feeder[reader]), std::min(first_reader[i], reader)); });
  }
  for (std::vector<long>* sums : {&counts.sinks, &counts.sources, &counts.edges})
    std::partial_sum(sums->begin(), sums->end(), sums->begin());
  return counts;
}

// The unconnected pieces of a set, sorted by smallest node; `set` ascends, and so does each piece.
std::vector<std::vector<int>> pieces_of(Decomposer& d, const std::vector<int>& set) {
  const int inside = ++d.current, done = ++d.current;
  for (const int node : set) d.mark[node] = inside;
  std::vector<std::vector<int>> pieces;
  for (const int start : set) {
    if (d.mark[start] == done) continue;
    std::vector<int>& piece = pieces.emplace_back(1, start);
    d.mark[start] = done;
    for (std::size_t i = 0; i < piece.size(); ++i) {
      const std::size_t node = at(piece[i]);
      for (const auto* neighbours : {&d.next[node], &d.before[node]})
        for (const int other : *neighbours)
          if (d.mark[other] == inside) d.mark[other] = done, piece.push_back(other);
    }
    std::sort(piece.begin(), piece.end());
  }
  return pieces;
}

// For each node of the set, the longest paths by weight up to it and from it, both including it; and the same counted in nodes.
struct Paths {
  std::vector<double> up, down;
  std::vector<int> level_up, level_down;
};

Paths paths_of(Decomposer& d, const std::vector<int>& set) {
  enter(d, set);
  const std::size_t n = set.size();
  Paths paths{std::vector<double>(n), std::vector<double>(n), std::vector<int>(n), std::vector<int>(n)};
  const auto extend = [&](std::size_t i, const std::vector<int>& neighbours, std::vector<double>& path, std::vector<int>& level) {
    for_inside(d, neighbours, [&](int other) {
      path[i] = std::max(path[i], path[other]);
      level[i] = std::max(level[i], level[other]);
    });
    path[i] += d.weights[set[i]];
    ++level[i];
  };
  for (std::size_t i = 0; i < n; ++i) extend(i, d.before[set[i]], paths.up, paths.level_up);
  for (std::size_t i = n; i-- > 0;) extend(i, d.next[set[i]], paths.down, paths.level_down);
  return paths;
}

struct Barrier {
  double path = kInfinity;  // length of the longest path with the barrier
  long added = 0;           // number of new dependencies
  std::vector<int> order;
  std::size_t cut = 0;  // number of nodes of `order` on the first side
};

// Takes the best cut of an order of the places in `set` if it is better than the best so far.
void try_order(Decomposer& d, const std::vector<int>& set, const Paths& paths, const std::vector<int>& places, Barrier& best) {
  const std::size_t n = places.size();
  std::vector<int> order(n);
  for (std::size_t i = 0; i < n; ++i) order[i] = set[places[i]];
  const CutCounts counts = count_cuts(d, order);
  std::vector<double> second_path(n + 1);
  for (std::size_t i = n; i-- > 0;) second_path[i] = std::max(second_path[i + 1], paths.down[places[i]]);
  double first_path = 0;
  std::size_t cut = 0;
  for (std::size_t i = 1; i < n; ++i) {
    first_path = std::max(first_path, paths.up[places[i - 1]]);
    const double path = first_path + second_path[i];
    const long added = counts.sinks[i] * counts.sources[i] - counts.edges[i];
    if (std::pair(path, added) < std::pair(best.path, best.added)) best.path = path, best.added = added, cut = i;
  }
  if (cut > 0) best.order = std::move(order), best.cut = cut;
}

// Cuts a connected set of at least two nodes into sets whose concatenation is a series that keeps the edges.
std::vector<std::vector<int>> series_of(Decomposer& d, const std::vector<int>& set) {
  const auto split = [](const std::vector<int>& order, const std::vector<std::size_t>& cuts) {
    std::vector<std::vector<int>> sets;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      sets.emplace_back(order.begin() + static_cast<std::ptrdiff_t>(cuts[i]), order.begin() + static_cast<std::ptrdiff_t>(cuts[i + 1]));
      std::sort(sets.back().begin(), sets.back().end());
    }
    return sets;
  };
  const CutCounts counts = count_cuts(d, set);
  std::vector<std::size_t> cuts = {0};
  for (std::size_t i = 1; i < set.size(); ++i)
    if (counts.sinks[i] * counts.sources[i] == counts.edges[i]) cuts.push_back(i);
  cuts.push_back(set.size());
  if (cuts.size() > 2) return split(set, cuts);

  d.tree.exact = false;
  const Paths paths = paths_of(d, set);
  Barrier barrier;
  std::vector<int> places(set.size());
  std::iota(places.begin(), places.end(), 0);
  const auto try_by = [&](auto&& key) {
    std::stable_sort(places.begin(), places.end(), [&](int a, int b) { return key(at(a)) < key(at(b)); });
    try_order(d, set, paths, places, barrier);
  };
  try_by([&](std::size_t i) { return std::pair<double, int>(paths.level_up[i], 0); });
  try_by([&](std::size_t i) { return std::pair<double, int>(-paths.level_down[i], 0); });
  try_by([&](std::size_t i) { return std::pair(paths.up[i], paths.level_up[i]); });
  try_by([&](std::size_t i) { return std::pair(-paths.down[i], -paths.level_down[i]); });
  return split(barrier.order, {0, barrier.cut, set.size()});
}

int add_component(Decomposer& d, const std::vector<int>& set);

// Makes one component of `kind` out of sets; those that turn out to be of the same kind are dissolved into it.
int join(Decomposer& d, Kind kind, const std::vector<std::vector<int>>& sets) {
  SeriesParallel::Component whole{.kind = kind, .components = {}};
  for (const std::vector<int>& set : sets) {
    const int component = add_component(d, set);
    SeriesParallel::Component& made = d.tree.components[component];
    if (made.kind == kind) {
      whole.components.insert(whole.components.end(), made.components.begin(), made.components.end());
      d.tree.components.pop_back();  // the component that was made last
    } else {
      whole.components.push_back(component);
    }
  }
  d.tree.components.push_back(std::move(whole));
  return static_cast<int>(d.tree.components.size()) - 1;
}

// Adds the component for a set; `set` ascends and is convex.
int add_component(Decomposer& d, const std::vector<int>& set) {
  if (set.size() == 1) {
    d.tree.components.push_back({.kind = Kind::kNode, .node = set[0], .components = {}});
    return static_cast<int>(d.tree.components.size()) - 1;
  }
  const std::vector<std::vector<int>> pieces = pieces_of(d, set);
  return pieces.size() > 1 ? join(d, Kind::kParallel, pieces) : join(d, Kind::kSeries, series_of(d, set));
}

}  // namespace

SeriesParallel series_parallel(const std::vector<double>& weights, const std::vector<std::pair<int, int>>& edges) {
  Decomposer d{.weights = weights};
  d.next.resize(weights.size()), d.before.resize(weights.size());
  d.mark.resize(weights.size()), d.place.resize(weights.size());
  std::vector<std::pair<int, int>> once = edges;
  std::sort(once.begin(), once.end());
  once.erase(std::unique(once.begin(), once.end()), once.end());
  for (const auto& [from, to] : once) d.next[from].push_back(to), d.before[to].push_back(from);
  std::vector<int> all(weights.size());
  std::iota(all.begin(), all.end(), 0);
  if (!all.empty()) add_component(d, all);
  return std::move(d.tree);
}

}  // namespace penstock
