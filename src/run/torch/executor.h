// SPDX-License-Identifier: Apache-2.0
// Tasks run by libtorch's kernels and by our own where those are faster.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "devices/executor.h"
#include "torch/kernel_compiler.h"

namespace penstock {

// Makes executors; each is called on the thread of its device only. On the host they have `threads` intra-op threads; on another device
// (open_device) their lanes are StreamLanes, and they are asynchronous, unless `host_waits` for each instruction, as a transport of the
// host's memory wants it. Where it `fuses`, or has a compiler, chains of ops are one kernel each (docs/gpu.md).
ExecutorFactory torch_executor_factory(int threads = 1, c10::Device device = c10::DeviceType::CPU, bool host_waits = false,
                                       bool fuses = false);
std::unique_ptr<Executor> make_torch_executor(int threads = 1, c10::Device device = c10::DeviceType::CPU, bool host_waits = false,
                                              std::shared_ptr<KernelCompiler> compiler = {});

std::string libtorch_version();

}  // namespace penstock
