// SPDX-License-Identifier: Apache-2.0
// DynaPipe's cyclic order of micro-batches that differ in time and size (Jiang et al., 2311.10418).
#pragma once

#include <vector>

#include "base/numbers.h"
#include "penstock/schedule.h"

namespace penstock {

// The table of micro-batches of these sizes, actor s with stage s of a chain. In every cycle an actor runs the B, and then the F, that has
// waited longest of those that were ready when the cycle began, and what it made is ready in the next. So actor i holds 2 (actors - i) - 1
// micro-batches, times do not matter (so this is no policy of the engine, which goes by times), and one slow micro-batch does not stop the
// others. An F waits while its micro-batch would take an actor above the cap. Throws Error where a micro-batch alone is larger than the
// cap: there the order stalls, or (the first one) passes the cap.
Schedule cyclic_schedule(int actors, const std::vector<double>& sizes, double cap = kInfinity);

}  // namespace penstock
