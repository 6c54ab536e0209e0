// SPDX-License-Identifier: Apache-2.0
// Downsets of a graph: sets of nodes that hold, with each node, all that it reads. Stages in order are differences of nested ones.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cost/time_limit.h"
#include "penstock/plan.h"

namespace penstock {

// The most downsets for planners that look at pairs, as many as Piper takes; there are exponentially many in a graph's width.
constexpr int kMostDownsets = 40'000;
// The most that are listed, which takes a second or two, where stages are then searched between some of them (likely_cuts.h).
constexpr int kMostListed = 500'000;
// Limit that makes a graph one row, as planners of chains see it: its sets are the first nodes of the order.
constexpr int kOnePath = 0;
constexpr int kMostOnPath = 1000;
// The cost of a pair of sets that makes no stage, in elementary steps of a time limit.
constexpr std::int64_t kPairWork = 16;
// The number of downsets of a graph that are looked at: sums over the nodes of all of them take a few seconds at most.
int most_downsets(const PlanGraph& graph, int most = kMostDownsets);

class Downsets {
 public:
  // All downsets, smaller ones first: the empty set is the first, the whole graph the last. Where there are more than `most`, or the time
  // is over, only those of one path: the first nodes in the graph's order, in kMostOnPath steps of equally many nodes.
  explicit Downsets(const PlanGraph& graph, int most = kMostDownsets, TimeLimit limit = {});

  // Only these of them: `sets` ascend and include the first and the last.
  Downsets only(const std::vector<int>& sets) const;
  std::vector<int> all() const;   // the numbers of all sets
  std::vector<int> path() const;  // sets from the first to the last of which each has one node more; of a single path, all of them

  bool complete() const { return complete_; }
  int count() const { return count_; }
  int size(int set) const { return sizes_[set]; }  // number of its nodes
  bool holds(int set, int node) const { return (bits(set)[node / 64] >> (node % 64) & 1) != 0; }
  bool nested(int inner, int outer) const {
    const std::uint64_t *a = bits(inner), *b = bits(outer);
    std::uint64_t rest = 0;
    for (int i = 0; i < words_; ++i) rest |= a[i] & ~b[i];
    return rest == 0;
  }
  std::vector<int> difference(int inner, int outer) const;  // the nodes of `outer` that are not in `inner`, ascending
  // For each set, the sum of `values` over its nodes.
  std::vector<double> sums(std::span<const double> values) const;

  // For each set, the sum of `values` over its nodes that are read by a node outside.
  std::vector<double> cut_sums(const PlanGraph& graph, std::span<const double> values) const;

 private:
  bool find_all(const PlanGraph& graph, int most, TimeLimit& limit);  // false: there are more than `most`, or the time is over
  void find_path();
  const std::uint64_t* bits(int set) const { return &bits_[static_cast<std::size_t>(set) * words_]; }

  int nodes_ = 0, words_ = 0, count_ = 0;
  bool complete_ = false;
  std::vector<std::uint64_t> bits_;  // `words_` words for each set
  std::vector<int> sizes_;
};

}  // namespace penstock
