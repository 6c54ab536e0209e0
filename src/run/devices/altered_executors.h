// SPDX-License-Identifier: Apache-2.0
// Executors that do one thing otherwise, to see what that changes.
#pragma once

#include <vector>

#include "devices/executor.h"

namespace penstock {

// These are held back, so that a cluster of unequal devices can be tried on equal ones: their runs take this many times as long, by device
// (1 or more; those that are not there: 1): the thread computes nothing for the rest of the time, but keeps its core. For executors whose
// runs are complete when they are issued.
ExecutorFactory held_back(ExecutorFactory executors, std::vector<double> factors);

// These issue every step instead of replaying a recorded one.
ExecutorFactory issued_each_time(ExecutorFactory executors);

}  // namespace penstock
