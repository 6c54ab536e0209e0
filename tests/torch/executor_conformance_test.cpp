// SPDX-License-Identifier: Apache-2.0
#include "devices/executor_conformance.h"
#include "support/thread_lanes.h"

#include "torch/device.h"
#include "torch/executor.h"

namespace penstock::test {

INSTANTIATE_TEST_SUITE_P(Torch, ExecutorConformance,
                         testing::Values(ExecutorCase{"Torch", [] { return make_torch_executor(); }},
                                         ExecutorCase{"TorchOnTheStandin", [] { return make_torch_executor(1, open_device("standin")); }},
                                         ExecutorCase{"TorchOnLanes",
                                                      [] {
                                                        return make_lane_executor(make_torch_executor(),
                                                                                  make_thread_lanes(1, std::chrono::microseconds(300)));
                                                      }}),
                         executor_case_name);

}  // namespace penstock::test
