// SPDX-License-Identifier: Apache-2.0
// Layouts along one axis that nobody named: which dims are split so that the members send the least.
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "lower/layout_classes.h"
#include "transform/layouts.h"

namespace penstock {

// The most that may stay whole on each member of what could be split of state and of sums of gradients, as a share of its bytes. Without a
// limit all would stay whole, as then nothing is sent.
inline constexpr double kMostWhole = 1.0 / 16;

// Bytes of states and sums that could be split, and of those that every member has all of.
struct HeldBytes {
  double all = 0, whole = 0;

  void add(const TensorType& type, bool is_split, std::int64_t members);
  double share() const { return all > 0 ? std::max(whole / all, kMostWhole) : kMostWhole; }
};

// The cost of a choice of layouts; the smaller is the better.
struct LayoutScore {
  double whole = 0;     // the share of state and sums that every member has all of, or kMostWhole where it is less
  double bytes = 0;     // that a member sends in a step, as layouts as text count them
  int conversions = 0;  // of a micro-batch and of what is outside of the loop, slices too
};
bool operator<(const LayoutScore& a, const LayoutScore& b);  // but for the last bits of sums in another order
// Returns the score of a training step whose ops have their stages.
LayoutScore score_of(const Graph& step, const GraphLayouts& layouts, std::int64_t members);
// The same for the layouts that decide_layouts() decides under these wishes, with losses in parts.
LayoutScore score_of(const Graph& step, const AxisWishes& wishes);

struct LayoutChoice {
  std::vector<LayoutClass> classes;  // what is split; a parameter with several of them by the first
  AxisWishes wishes;                 // how each parameter lies, and the names of constraints
  LayoutScore score;
  int tried = 0;  // of how many sets of classes layouts were decided
};

// Which classes of the source are split. `named`: names of classes that are a start of the search beside each class alone, so that what is
// found is never worse than they are. Throws Error where no parameter can be split.
LayoutChoice choose_layouts(const std::string& axis, const ClassSource& source, const std::set<std::string>& named);

}  // namespace penstock
