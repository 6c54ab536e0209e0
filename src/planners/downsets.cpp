#include "planners/downsets.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace penstock {
namespace {

using Bits = std::vector<std::uint64_t>;

void put(std::uint64_t* bits, int node) {
  bits[node / 64] |= std::uint64_t{1} << (node % 64);
}

// For each node, the set of nodes that it reads, as `words` words of bits.
Bits predecessors(const PlanGraph& graph, int words) {
  Bits out(graph.nodes.size() * static_cast<std::size_t>(words));
  for (const PlanEdge& edge : graph.edges) put(&out[static_cast<std::size_t>(edge.to) * words], edge.from);
  return out;
}

}  // namespace

int most_downsets(const PlanGraph& graph, int most) {
  constexpr std::size_t kMostWords = 1'500'000'000;  // words of bits, times nodes
  const std::size_t nodes = std::max<std::size_t>(graph.nodes.size(), 1);
  return static_cast<int>(std::min<std::size_t>(most, kMostWords / (nodes * (nodes / 64 + 1))));
}

Downsets::Downsets(const PlanGraph& graph, int most, TimeLimit limit)
    : nodes_(static_cast<int>(graph.nodes.size())), words_((nodes_ + 63) / 64) {
  complete_ = find_all(graph, most, limit);
  if (!complete_) find_path();
}

// Each set is made exactly once, from itself without its largest node: nodes are in topological order, so the smaller set is a downset too.
bool Downsets::find_all(const PlanGraph& graph, int most, TimeLimit& limit) {
  const Bits before = predecessors(graph, words_);
  Bits found(static_cast<std::size_t>(words_));
  std::vector<int> largest = {-1};
  for (std::size_t set = 0; set < largest.size(); ++set) {
    if (limit.is_over(static_cast<std::int64_t>(nodes_) * words_)) return false;
    for (int node = largest[set] + 1; node < nodes_; ++node) {
      std::uint64_t missing = 0;
      for (int i = 0; i < words_; ++i)
        missing |= before[static_cast<std::size_t>(node) * words_ + i] & ~found[set * words_ + static_cast<std::size_t>(i)];
      if (missing != 0) continue;
      if (static_cast<int>(largest.size()) >= most) return false;
      found.resize(found.size() + static_cast<std::size_t>(words_));
      std::copy_n(&found[set * words_], words_, &found[found.size() - words_]);
      put(&found[found.size() - words_], node);
      largest.push_back(node);
    }
  }
  count_ = static_cast<int>(largest.size());
  std::vector<int> sizes(largest.size(), 0), order(largest.size());
  for (std::size_t i = 0; i < found.size(); ++i) sizes[i / words_] += std::popcount(found[i]);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return sizes[a] < sizes[b]; });
  for (const int set : order) {
    bits_.insert(bits_.end(), &found[static_cast<std::size_t>(set) * words_], &found[static_cast<std::size_t>(set) * words_] + words_);
    sizes_.push_back(sizes[set]);
  }
  return true;
}

void Downsets::find_path() {
  count_ = std::min(nodes_, kMostOnPath) + 1;
  bits_.assign(static_cast<std::size_t>(count_) * words_, 0);
  for (int set = 0; set < count_; ++set) {
    sizes_.push_back(static_cast<int>(static_cast<std::int64_t>(nodes_) * set / (count_ - 1)));
    for (int node = 0; node < sizes_.back(); ++node) put(&bits_[static_cast<std::size_t>(set) * words_], node);
  }
}

Downsets Downsets::only(const std::vector<int>& sets) const {
  Downsets out = *this;
  out.count_ = static_cast<int>(sets.size());
  out.bits_.clear();
  out.sizes_.clear();
  for (const int set : sets) {
    out.bits_.insert(out.bits_.end(), bits(set), bits(set) + words_);
    out.sizes_.push_back(size(set));
  }
  return out;
}

std::vector<int> Downsets::all() const {
  std::vector<int> out(count_);
  std::iota(out.begin(), out.end(), 0);
  return out;
}

std::vector<int> Downsets::difference(int inner, int outer) const {
  std::vector<int> out;
  for (int i = 0; i < words_; ++i)
    for (std::uint64_t rest = bits(outer)[i] & ~bits(inner)[i]; rest != 0; rest &= rest - 1) out.push_back(64 * i + std::countr_zero(rest));
  return out;
}

std::vector<double> Downsets::sums(std::span<const double> values) const {
  std::vector<double> out(count_, 0);
  for (int set = 0; set < count_; ++set)
    for (const int node : difference(0, set)) out[set] += values[node];
  return out;
}

std::vector<double> Downsets::cut_sums(const PlanGraph& graph, std::span<const double> values) const {
  std::vector<std::vector<int>> readers(graph.nodes.size());
  for (const PlanEdge& edge : graph.edges) readers[edge.from].push_back(edge.to);
  std::vector<double> out(count_, 0);
  for (int set = 0; set < count_; ++set) {
    const auto is_outside = [&](int node) { return !holds(set, node); };
    for (int node = 0; node < nodes_; ++node)
      if (holds(set, node) && std::any_of(readers[node].begin(), readers[node].end(), is_outside)) out[set] += values[node];
  }
  return out;
}

}  // namespace penstock
