// SPDX-License-Identifier: Apache-2.0
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

// For each node, those that it reads and those that read it.
struct Neighbours {
  std::vector<std::vector<int>> read, readers;
};

Neighbours neighbours(const PlanGraph& graph) {
  Neighbours out{std::vector<std::vector<int>>(graph.nodes.size()), std::vector<std::vector<int>>(graph.nodes.size())};
  for (const PlanEdge& edge : graph.edges) {
    out.read[edge.to].push_back(edge.from);
    out.readers[edge.from].push_back(edge.to);
  }
  for (std::vector<int>& readers : out.readers) {
    std::ranges::sort(readers);
    readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
  }
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
// A set may take each node behind its largest one of which it has all that is read: those its smaller set could take as well, and readers
// of the node that it has beyond that. There are as many of these, over all sets, as sets.
bool Downsets::find_all(const PlanGraph& graph, int most, TimeLimit& limit) {
  const Neighbours near = neighbours(graph);
  Bits found(static_cast<std::size_t>(words_));
  std::vector<int> takes;  // of all sets, one after the other, ascending
  for (int node = 0; node < nodes_; ++node)
    if (near.read[node].empty()) takes.push_back(node);
  std::vector<std::size_t> ends = {takes.size()};  // of each set's in `takes`
  if (static_cast<std::int64_t>(takes.size()) >= most) return false;
  std::vector<int> added;
  for (std::size_t set = 0; set < ends.size(); ++set) {
    if (limit.is_over(words_)) return false;
    for (std::size_t at = set == 0 ? 0 : ends[set - 1]; at < ends[set]; ++at) {
      const int node = takes[at];
      found.resize(found.size() + static_cast<std::size_t>(words_));
      std::uint64_t* larger = &found[found.size() - words_];
      std::copy_n(&found[set * words_], words_, larger);
      put(larger, node);
      const auto is_in = [&](int other) { return (larger[other / 64] >> (other % 64) & 1) != 0; };
      added.clear();
      for (const int reader : near.readers[node])
        if (std::ranges::all_of(near.read[reader], is_in)) added.push_back(reader);
      const std::size_t begin = takes.size();
      takes.insert(takes.end(), ends[set] - at - 1 + added.size(), 0);
      std::merge(takes.begin() + static_cast<std::ptrdiff_t>(at) + 1, takes.begin() + static_cast<std::ptrdiff_t>(ends[set]), added.begin(),
                 added.end(), takes.begin() + static_cast<std::ptrdiff_t>(begin));
      ends.push_back(takes.size());
      if (static_cast<std::int64_t>(takes.size()) >= most) return false;
    }
  }
  count_ = static_cast<int>(ends.size());
  std::vector<int> sizes(ends.size(), 0), order(ends.size());
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

std::vector<int> Downsets::path() const {
  if (!complete_) return all();
  std::vector<int> out = {0};
  for (int set = 1; set < count_; ++set)
    if (size(set) == size(out.back()) + 1 && nested(out.back(), set)) out.push_back(set);
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
