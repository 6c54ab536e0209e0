// SPDX-License-Identifier: Apache-2.0
// Runs of the fake device (devices/fake_device.h) as work on the stand-in's streams, so that random programs run on what moves its memory.
#pragma once

#include <memory>

#include "devices/executor.h"

namespace penstock::test {

// All but runs is as make_torch_executor has it on the stand-in, asynchronous. `looks`: the host waits for each run, so that no step can be
// recorded.
std::unique_ptr<Executor> make_standin_fake(bool looks = false);

}  // namespace penstock::test
