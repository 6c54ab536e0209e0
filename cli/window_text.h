// SPDX-License-Identifier: Apache-2.0
// Words for a table of several steps.
#pragma once

#include <string>

#include "penstock/schedule.h"

namespace penstock {

// The versions of parameters that actors keep, and by how many updates what they read is late; "" for a table of one step.
std::string window_text(const Schedule& schedule);

}  // namespace penstock
