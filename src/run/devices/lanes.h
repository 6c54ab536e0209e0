// SPDX-License-Identifier: Apache-2.0
// The work of an asynchronous device while its host goes on: lanes of work, and events that lanes and the host can wait for.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "program/interpreter.h"

namespace penstock {

using Deadline = std::chrono::steady_clock::time_point;

enum class DeviceLane : std::uint8_t { compute, host_copy, transfer };  // runs and copies; copies to the host's memory and back; all else
inline constexpr std::size_t kLanes = 3;

// The lanes of one device, which its executor and its transport share. Each lane begins what it is given in that order, and lanes wait for
// each other only where after() says so. All calls come from the device's own thread; none but after(), wait() and stop() blocks. What
// fails on a lane stops all lanes.
class DeviceLanes {
 public:
  // Does a piece of work, or begins it: false where it is not complete yet. The lane then goes on with what follows and asks again.
  using Work = std::function<bool()>;

  virtual ~DeviceLanes() = default;
  // The event is done when the work is complete; no two have the same number.
  virtual Event enqueue(DeviceLane lane, Work work) = 0;
  // Done when the lane has come this far: what was complete as it began is.
  virtual Event record(DeviceLane lane) = 0;
  // Makes all that `lane` is given from now on begin when `event` is done, whichever lane it is of. False, and nothing is ordered, where
  // another device of this process makes it happen and did not begin to before the deadline.
  virtual bool after(DeviceLane lane, Event event, Deadline deadline) = 0;
  virtual bool done(Event event) = 0;
  // Blocks the host until the event is done; false when the deadline passed. Throws what the work on any lane threw.
  virtual bool wait(Event event, Deadline deadline) = 0;
  // While times are kept, what time_of() says of events that are done: how long after that began. They are forgotten when it ends.
  virtual void keep_times(bool keep) = 0;
  virtual std::chrono::nanoseconds time_of(Event event) = 0;
  // Gives up what has not begun and returns when nothing runs; nothing is enqueued after it, unless they go on.
  virtual void stop() = 0;
  virtual bool goes_on() const { return false; }
};

}  // namespace penstock
