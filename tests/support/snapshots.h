// SPDX-License-Identifier: Apache-2.0
// Steps that keep snapshots, on devices of any kind.
#pragma once

#include <functional>
#include <memory>

#include "devices/cluster.h"
#include "devices/executor.h"
#include "penstock/program.h"

namespace penstock::test {

// Connects as many devices as a program has, with these executors, all of this process.
using Connect = std::function<std::unique_ptr<Cluster>(const ExecutorFactory&)>;

// Makes steps of the program without a snapshot and with one of either generation, in turn, and the same steps all without. Expects their
// outputs and states to be the same bits, and each snapshot to be the state as it was before the last step that wrote its generation, on
// every device that has it: two for each part, where there are two devices.
void expect_snapshots(const Program& program, const ExecutorFactory& executor, const Connect& connect, const StateSource& state = {});

}  // namespace penstock::test
