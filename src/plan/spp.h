// What SPP's planner is made of (2204.10562).
#pragma once

#include "plan/chain_view.h"

namespace penstock {

// Devices in a line whose neighbours have fast links: the set is halved by its minimum cut, weighed by how many messages of `bytes` a link
// moves in a second, each part in turn, and the smaller part put where it adds most. O(n^4); what the time does not allow stays in the
// cluster's order.
std::vector<int> device_order(const ClusterSpec& cluster, double bytes, TimeLimit& limit);

struct SppCut {
  std::vector<PlanStage> stages;  // none: there is no way into so many
  double bottleneck = 0;
};
// Of each number of stages, from one on, the cut with the smallest bottleneck: the largest of stages (forward and backward of a
// micro-batch, and its part of the sum of gradients) and of transfers between them. Stages take consecutive devices of the order: all where
// replicas are allowed, else the first ones. As many numbers of stages as the time and some 300 MB of tables allow.
std::vector<SppCut> spp_cuts(const ChainView& view, const std::vector<int>& order, TimeLimit& limit);

}  // namespace penstock
