// SPDX-License-Identifier: Apache-2.0
// Transfers and collectives between devices of one process whose work is on streams (torch/stream_lanes.h): the member that comes last
// gives its own stream the copies and sums, behind what the others' streams have done so far, and the others' streams wait for that. No
// host waits but for a member that has not issued its part yet.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "devices/hub.h"

namespace penstock {

// Its executors are of `device`, and their lanes are StreamLanes.
std::unique_ptr<Hub> make_stream_hub(c10::Device device);

}  // namespace penstock
