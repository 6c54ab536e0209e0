// SPDX-License-Identifier: Apache-2.0
// A hub connects the devices of one process.
#pragma once

#include <memory>
#include <optional>

#include "base/machine.h"
#include "devices/executor.h"

namespace penstock {

class Hub {
 public:
  virtual ~Hub() = default;
  // The endpoint of `device`, whose memory `executor` has; the hub and the executor outlive it. One per device, made on the device's own
  // thread.
  virtual std::unique_ptr<Transport> endpoint(int device, Executor& executor) = 0;
  // Ends every wait, now and later, with Aborted. From any thread.
  virtual void abort() = 0;
  // Makes the hub ready for steps after that, while no device is in one: what was under way is forgotten, and what was being recorded.
  virtual void reset() = 0;
  // Room for what its devices plan, where that is no memory of the host; none: it is.
  virtual std::optional<MemoryRoom> room() const { return {}; }
  // Whether the last step failed because it could not be recorded. That is not tried again with its program.
  virtual bool was_not_recorded() { return false; }
};

}  // namespace penstock
