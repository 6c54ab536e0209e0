// SPDX-License-Identifier: Apache-2.0
// The order in which a timeline holds its activities.
#pragma once

#include <vector>

#include "penstock/timeline.h"

namespace penstock {

// By begin. Stable, so that what begins together stays in the order of causes; causes count in the new order.
void sort_by_begin(std::vector<Activity>& activities);

}  // namespace penstock
