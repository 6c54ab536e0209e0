// Devices that issue every step instead of replaying a recorded one, to see what that changes.
#pragma once

#include "devices/executor.h"

namespace penstock {

ExecutorFactory issued_each_time(ExecutorFactory executors);

}  // namespace penstock
