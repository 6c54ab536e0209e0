// SPDX-License-Identifier: Apache-2.0
// A device on the host's memory that waits by itself: its lanes are threads. What asynchronous execution is tested with.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "devices/executor.h"

namespace penstock {

// Each lane is a thread that begins each work, and reports it done, after random times up to `longest`: what the device does not wait for
// comes in any order.
std::shared_ptr<DeviceLanes> make_thread_lanes(std::uint64_t seed, std::chrono::microseconds longest);

// `inner`, a synchronous one, at work on the lanes: runs are issued to it on one thread, host copies on another. Asynchronous, unless
// `host_waits`: then the host sees completion at random times. Stops the lanes at its end.
std::unique_ptr<Executor> make_lane_executor(std::unique_ptr<Executor> inner, std::shared_ptr<DeviceLanes> lanes, bool host_waits = false);
// The same of a transport that can be asked at any time whether a transfer is done: all are begun on one thread, and complete in any order.
std::unique_ptr<Transport> make_lane_transport(std::unique_ptr<Transport> inner, std::shared_ptr<DeviceLanes> lanes);

}  // namespace penstock
