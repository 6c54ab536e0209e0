// SPDX-License-Identifier: Apache-2.0
// Copies to the host's memory and back, for all that stages leave to their backwards.
#pragma once

#include <vector>

#include "penstock/schedule.h"

namespace penstock {

// The table with an OFFLOAD behind each F of such a stage (`stages[s]`: stage s) and a RELOAD ahead of its B or I. The RELOAD stands one
// action earlier, so that it goes beside that action, where what an F leaves is not still on its way to the host then. Where a stage does
// a backward and a forward in turn, no more than two micro-batches' are on the device at a time.
Schedule with_host_copies(Schedule schedule, const std::vector<bool>& stages);

}  // namespace penstock
