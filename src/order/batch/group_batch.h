// SPDX-License-Identifier: Apache-2.0
// Which sequences of a micro-batch are computed together on how many devices: FlexSP (Wang et al., 2412.01523, section 4). A group of
// degree d splits each of its sequences over d devices, with all-to-alls between them; groups work side by side.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/numbers.h"

namespace penstock {

struct SequenceGroup {
  int degree = 1;
  std::vector<std::int64_t> lengths;  // descending

  auto operator<=>(const SequenceGroup&) const = default;
};

// A sequence of s tokens takes (a1 s^2 + a2 s) / d + a3 s / (d v_d) ms in a group of degree d, whose links carry v_d bytes per ms (degree 1
// sends nothing); a group takes beta besides, and, which is ours, `start` where its devices have to wait for each other.
struct GroupCosts {
  double a1 = 0, a2 = 0, a3 = 0, beta = 0, start = 0;
  std::map<int, double> bandwidth;  // v_d
  double capacity = kInfinity;      // tokens per device

  double time(std::int64_t tokens, int degree) const;
  double time(const SequenceGroup& group) const;
  double besides(int degree) const { return beta + (degree > 1 ? start : 0); }
};

struct GroupOptions {
  int devices = 1;
  int least_degree = 1, most_degree = 0;  // powers of two; most_degree 0: devices
  bool all_devices = false;               // no device may be without a group
  std::int64_t nodes = 500'000;           // of the search; beyond them the best so far counts
};

struct Grouping {
  double milliseconds = 0;            // of the slowest group
  std::vector<SequenceGroup> groups;  // descending
  bool proven = false;                // nothing is faster
};

// The groups, of powers of two devices, whose slowest is fastest. Throws Error for a degree that is no power of two or above the number of
// devices, for a degree without a bandwidth, and where the sequences do not fit.
// The authors solve an integer programme for seconds; here every sequence, the longest first, goes to each group that differs, or to a new
// one, while the devices' work and the longest sequence that is left allow a better end.
Grouping group_batch(std::vector<std::int64_t> lengths, const GroupCosts& costs, const GroupOptions& options);

}  // namespace penstock
