// Tasks run by libtorch's CPU kernels and by our own where those are faster.
#pragma once

#include <memory>
#include <string>

#include "devices/executor.h"

namespace penstock {

// Makes executors; each is called on the thread of its device only, with `threads` intra-op threads.
ExecutorFactory torch_executor_factory(int threads = 1);
std::unique_ptr<Executor> make_torch_executor(int threads = 1);

std::string libtorch_version();

}  // namespace penstock
