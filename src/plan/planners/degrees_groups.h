// SPDX-License-Identifier: Apache-2.0
// Where a choice of degrees puts its groups of devices, and over which links these speak.
#pragma once

#include <vector>

#include "penstock/degrees.h"
#include "penstock/network.h"
#include "penstock/plan.h"

namespace penstock {

// A ring is as fast as its slowest link.
struct DegreesGroups {
  Network pipes{};                        // between actors that follow each other: each device sends to its own of the next group
  std::vector<Link> between{}, inside{};  // by actor: of the rings among its hosts of Degrees::local replicas, and inside of these
  std::vector<ClusterDevice> weakest{};   // by actor
  Link tensor{}, context{};               // of any ring along these axes
};
DegreesGroups groups_of(const ClusterSpec& cluster, const Degrees& degrees);

}  // namespace penstock
