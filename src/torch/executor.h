// Tasks run by libtorch's kernels and by our own where those are faster.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "devices/executor.h"

namespace penstock {

// Makes executors; each is called on the thread of its device only. On the host they have `threads` intra-op threads; on another device
// (open_device) their lanes are StreamLanes, and they are asynchronous, unless `host_waits` for each instruction, as a transport of the
// host's memory wants it.
ExecutorFactory torch_executor_factory(int threads = 1, c10::Device device = c10::DeviceType::CPU, bool host_waits = false);
std::unique_ptr<Executor> make_torch_executor(int threads = 1, c10::Device device = c10::DeviceType::CPU, bool host_waits = false);

std::string libtorch_version();

}  // namespace penstock
