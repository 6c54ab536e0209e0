// SPDX-License-Identifier: Apache-2.0
#include "planners/degrees_atoms.h"

#include <algorithm>

#include "base/invariant.h"
#include "base/numbers.h"
#include "base/text.h"
#include "cost/cost_model.h"
#include "penstock/error.h"
#include "planners/improve_plan.h"

namespace penstock {
namespace {

// An output that more nodes read goes on behind many atoms: positions, a mask, an encoder's output.
constexpr int kFewReaders = 4;

// Crossings of a place between nodes of the order: the number of outputs that move bytes to few readers, and the bytes for one sample of
// all outputs, and of gradients that go back beside them, each counted once.
struct Crossing {
  int outputs = 0;
  double bytes = 0;
};

std::vector<Crossing> output_crossings(const PlanGraph& graph, const std::vector<int>& order) {
  const std::size_t count = order.size();
  std::vector<int> place(count), last(count, -1), first(count, static_cast<int>(count)), readers(count);
  std::vector<double> largest(count, 0), largest_back(count, 0);
  for (std::size_t i = 0; i < count; ++i) place[order[i]] = static_cast<int>(i);
  for (const PlanEdge& edge : graph.edges) {
    if (edge.bytes == 0) continue;  // the edge only orders
    if (edge.back) {
      first[edge.to] = std::min(first[edge.to], place[edge.from]);
      largest_back[edge.to] = std::max(largest_back[edge.to], edge.bytes);
      continue;
    }
    ++readers[edge.from];
    last[edge.from] = std::max(last[edge.from], place[edge.to]);
    largest[edge.from] = std::max(largest[edge.from], edge.bytes);
  }
  const double samples = measured_samples(graph);
  std::vector<Crossing> crossings(count);
  for (std::size_t node = 0; node < count; ++node)
    for (int behind = place[node]; behind < last[node]; ++behind) {
      crossings[behind].outputs += readers[node] <= kFewReaders;
      crossings[behind].bytes += largest[node] / samples;
    }
  for (std::size_t node = 0; node < count; ++node)
    for (int behind = first[node]; behind < place[node]; ++behind) crossings[behind].bytes += largest_back[node] / samples;
  return crossings;
}

void check_node(const PlanNode& node) {
  if (node.costs[0].degree != 1) fail_one_device(node, "degrees");
  if (!node.outputs.empty())
    throw Error(concat("what node ", quote(node.name), " sends was measured as a time, not as bytes"),
                {"planner degrees counts with the links between each two devices"}, "use another planner");
}

// The costs of the largest size that is not above `samples`, else of the smallest.
const NodeCost& nearest_size(const PlanNode& node, double samples) {
  const NodeCost* out = &node.costs[0];
  for (const NodeCost& cost : node.costs)
    if (cost.name == out->name && cost.degree == out->degree && cost.samples <= samples) out = &cost;
  return *out;
}

// By how much the node's steps of a kind take longer than their work: a device computes in order, and does one collective after the other.
double waiting(const PlanNode& node, Kind kind, double samples, const StepSeconds& seconds) {
  const NodeCost& cost = nearest_size(node, samples);
  const double scale = samples / cost.samples;
  double computed = 0, lane = 0, work = 0;  // when each is done; the sum of what is computed
  std::vector<double> end(cost.steps.size(), 0);
  for (std::size_t i = 0; i < cost.steps.size(); ++i) {
    NodeStep step = cost.steps[i];
    if (step.kind != kind) continue;
    const double ready = std::max(computed, step.after >= 0 ? end[step.after] : 0.0);
    step.bytes *= scale;
    if (step.opcode == Opcode::run) {
      end[i] = computed = ready + step.seconds * scale;
      work += step.seconds * scale;
    } else {
      end[i] = lane = std::max(lane, ready) + seconds(step);
    }
  }
  return std::max(computed, lane) - work;
}

void add_waits(const PlanNode& node, double samples, const StepSeconds& seconds, Atom& atom) {
  atom.wait_forward += waiting(node, Kind::F, samples, seconds);
  atom.wait_backward += waiting(node, Kind::B, samples, seconds);
  atom.wait_input += waiting(node, Kind::I, samples, seconds);
  atom.wait_weight += waiting(node, Kind::W, samples, seconds);
  atom.wait_update += waiting(node, Kind::U, node.costs[0].samples, seconds);  // of gradients, whatever the micro-batches
}

}  // namespace

std::vector<Atom> atoms_of(const PlanGraph& graph, double samples, double parameter_bytes, const StepSeconds& seconds) {
  for (const PlanNode& node : graph.nodes) check_node(node);
  const std::vector<int> order = branch_order(graph);
  const std::vector<Crossing> crossings = output_crossings(graph, order);
  std::vector<Atom> atoms;
  bool begins = true;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (begins) atoms.emplace_back();
    Atom& atom = atoms.back();
    const SetCost cost = cost_of(graph.nodes[order[i]], 0, samples);
    atom.nodes.push_back(order[i]);
    atom.forward += cost.forward;
    atom.backward += cost.backward;
    atom.weight += cost.weight;
    atom.live_bytes += cost.live_bytes;
    atom.parameters += cost.parameter_bytes / parameter_bytes;
    atom.update += cost.update;
    atom.bytes = crossings[i].bytes * samples;
    if (seconds) add_waits(graph.nodes[order[i]], samples, seconds, atom);
    begins = crossings[i].outputs <= 1;
  }
  for (Atom& atom : atoms) std::sort(atom.nodes.begin(), atom.nodes.end());
  return atoms;
}

namespace {

// Cuts the atoms into even pieces. `before`: seconds of all atoms before each atom, and of all.
std::vector<int> even_pieces(const std::vector<double>& before, std::size_t pieces) {
  const std::size_t n = before.size() - 1;
  // The best cut of the atoms [0, i) into k pieces: the least largest piece, then the least sum of squares; `begin` is where the last
  // piece begins.
  struct Best {
    double largest = kInfinity, squares = kInfinity;
    std::size_t begin = 0;
  };
  std::vector<std::vector<Best>> best(pieces + 1, std::vector<Best>(n + 1));
  best[0][0] = {0, 0, 0};
  for (std::size_t k = 1; k <= pieces; ++k)
    for (std::size_t i = k; i <= n; ++i)
      for (std::size_t begin = i; begin-- >= k;) {
        const double size = before[i] - before[begin];
        Best& here = best[k][i];
        if (size > here.largest) break;  // earlier begins make it larger still
        const Best& rest = best[k - 1][begin];
        const Best found{std::max(size, rest.largest), rest.squares + size * size, begin};
        if (std::pair(found.largest, found.squares) < std::pair(here.largest, here.squares)) here = found;
      }
  std::vector<int> cuts(pieces + 1, static_cast<int>(n));
  for (std::size_t k = pieces; k > 0; --k) cuts[k - 1] = static_cast<int>(best[k][cuts[k]].begin);
  return cuts;
}

// Pieces in the making. `before`: seconds of all atoms before each atom, and of all; `load`: of each actor.
struct Pieces {
  const std::vector<double>& before;
  std::vector<int> cuts;
  double largest = 0;
  std::vector<double> load;

  double seconds(int from, int to) const { return before[to] - before[from]; }
};

// Moves the border before piece s by one atom, forward or back, if that lowers the sum of squares of the two actors' loads and makes no
// piece larger than the largest. Returns whether it did.
bool improve(Pieces& p, std::size_t s, int by) {
  const int to = p.cuts[s] + by;
  if (to <= p.cuts[s - 1] || to >= p.cuts[s + 1]) return false;
  if (p.seconds(p.cuts[s - 1], to) > p.largest || p.seconds(to, p.cuts[s + 1]) > p.largest) return false;
  double &first = p.load[(s - 1) % p.load.size()], &second = p.load[s % p.load.size()];
  const double moved = p.seconds(p.cuts[s], to);  // from the second to the first
  const double gain = moved * (second - first - moved);
  if (gain <= 1e-12 * first * second) return false;
  first += moved;
  second -= moved;
  p.cuts[s] = to;
  return true;
}

}  // namespace

std::vector<int> even_cuts(const std::vector<Atom>& atoms, int actors, int chunks) {
  const std::size_t pieces = at(actors) * at(chunks);
  invariant(pieces >= 1 && pieces <= atoms.size(), "an atom for each piece");
  std::vector<double> before = {0};
  for (const Atom& atom : atoms) before.push_back(before.back() + atom.forward + atom.backward + atom.wait_forward + atom.wait_backward);
  Pieces p{before, even_pieces(before, pieces), 0, std::vector<double>(at(actors), 0)};
  if (actors == 1 || chunks == 1) return p.cuts;  // they are as even as possible
  for (std::size_t s = 0; s < pieces; ++s) {
    const double piece = p.seconds(p.cuts[s], p.cuts[s + 1]);
    p.load[s % p.load.size()] += piece;
    p.largest = std::max(p.largest, piece);
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t s = 1; s < pieces; ++s) moved = improve(p, s, 1) || improve(p, s, -1) || moved;
  }
  return p.cuts;
}

}  // namespace penstock
