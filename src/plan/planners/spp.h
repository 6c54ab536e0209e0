// SPDX-License-Identifier: Apache-2.0
// The two parts of SPP's planner (2204.10562).
#pragma once

#include "planners/chain_view.h"

namespace penstock {

// Puts the devices into a line whose neighbours have fast links. The set is halved by its minimum cut, weighed by how many messages of
// `bytes` a link moves in a second; each part is ordered in turn, and the smaller part is put where it adds most. O(n^4); where the time is
// over devices stay in the cluster's order.
std::vector<int> device_order(const ClusterSpec& cluster, double bytes, TimeLimit& limit);

struct SppCut {
  std::vector<PlanStage> stages;  // empty: there is no way into so many
  double bottleneck = 0;
};
// For each number of stages, from one on, the cut with the smallest bottleneck: the largest of stages (forward and backward of a
// micro-batch, and its part of the sum of gradients) and of transfers between them. Stages take consecutive devices of the order: all of
// them where replicas are allowed, else the first ones. As many numbers of stages are tried as the time and some 300 MB of tables allow.
std::vector<SppCut> spp_cuts(const ChainView& view, const std::vector<int>& order, TimeLimit& limit);

}  // namespace penstock
