// SPDX-License-Identifier: Apache-2.0
// A transport of the host's memory for devices whose memory is their own: what is sent goes through the host, and what is received too.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "devices/executor.h"

namespace penstock {

// The host waits for the copies, and before it starts a transfer for what the slot holds, so its executor is not asynchronous.
std::unique_ptr<Transport> make_staged_transport(std::unique_ptr<Transport> host, c10::Device device);

}  // namespace penstock
