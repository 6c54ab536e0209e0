// SPDX-License-Identifier: Apache-2.0
#include "planners/cheapest_ways.h"

#include <algorithm>

#include "base/numbers.h"

namespace penstock {
namespace {

constexpr std::size_t kMostStates = 1000;

// One choice of ways for the first nodes. Of the states kept none is both cheaper and smaller than another.
struct State {
  double memory, cost;
  int before, choice;  // the state of the nodes before the last one, and the last one's way
};

double total(const std::vector<std::vector<Way>>& nodes, const std::vector<int>& choices, double Way::* what) {
  double sum = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) sum += nodes[i][choices[i]].*what;
  return sum;
}

// Takes the cheapest way of each node; then, while they do not fit, makes the change that costs least for each byte saved.
CheapestWays by_ratio(const std::vector<std::vector<Way>>& nodes, double memory) {
  CheapestWays out;
  for (const auto& ways : nodes)
    out.choices.push_back(
        static_cast<int>(std::min_element(ways.begin(), ways.end(), [](Way a, Way b) { return a.cost < b.cost; }) - ways.begin()));
  while (total(nodes, out.choices, &Way::memory) > memory) {
    double best = kInfinity;
    std::size_t node = nodes.size();
    int choice = 0;
    for (std::size_t i = 0; i < nodes.size(); ++i)
      for (std::size_t way = 0; way < nodes[i].size(); ++way) {
        const Way &now = nodes[i][out.choices[i]], &then = nodes[i][way];
        if (then.memory >= now.memory || (then.cost - now.cost) / (now.memory - then.memory) >= best) continue;
        best = (then.cost - now.cost) / (now.memory - then.memory);
        node = i;
        choice = static_cast<int>(way);
      }
    if (node == nodes.size()) return out;
    out.choices[node] = choice;
  }
  out.fits = true;
  out.cost = total(nodes, out.choices, &Way::cost);
  return out;
}

void keep_best(std::vector<State>& states) {
  std::sort(states.begin(), states.end(),
            [](const State& a, const State& b) { return a.memory != b.memory ? a.memory < b.memory : a.cost < b.cost; });
  std::size_t kept = 0;
  for (const State& state : states)
    if (kept == 0 || state.cost < states[kept - 1].cost) states[kept++] = state;
  states.resize(kept);
}

}  // namespace

CheapestWays cheapest_ways(const std::vector<std::vector<Way>>& nodes, double memory) {
  CheapestWays out;
  std::vector<double> rest(nodes.size() + 1, 0);  // by node: the least memory of the nodes from there on
  for (std::size_t i = nodes.size(); i-- > 0;)
    rest[i] = rest[i + 1] + std::min_element(nodes[i].begin(), nodes[i].end(), [](Way a, Way b) { return a.memory < b.memory; })->memory;
  if (rest[0] > memory) return out;
  std::vector<std::vector<State>> states = {{{0, 0, -1, -1}}};
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    std::vector<State> next;
    for (std::size_t s = 0; s < states[i].size(); ++s)
      for (std::size_t way = 0; way < nodes[i].size(); ++way) {
        const State& state = states[i][s];
        const State more{state.memory + nodes[i][way].memory, state.cost + nodes[i][way].cost, static_cast<int>(s), static_cast<int>(way)};
        if (more.memory + rest[i + 1] <= memory) next.push_back(more);
      }
    keep_best(next);
    if (next.size() > kMostStates) {  // keep every so many, and the smallest
      out.exact = false;
      const std::size_t step = next.size() / kMostStates + 1;
      for (std::size_t s = 0; s * step < next.size(); ++s) next[s] = next[s * step];
      next.resize((next.size() + step - 1) / step);
    }
    states.push_back(std::move(next));
  }
  if (states.back().empty()) return out;  // lost by rounding
  out.fits = true;
  out.cost = states.back().back().cost;  // the largest is the cheapest
  out.choices.resize(nodes.size());
  int state = static_cast<int>(states.back().size()) - 1;
  for (std::size_t i = nodes.size(); i > 0; --i) {
    out.choices[i - 1] = states[i][state].choice;
    state = states[i][state].before;
  }
  if (out.exact) return out;
  CheapestWays other = by_ratio(nodes, memory);
  other.exact = false;
  return other.fits && other.cost < out.cost ? other : out;
}

}  // namespace penstock
