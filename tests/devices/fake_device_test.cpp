// SPDX-License-Identifier: Apache-2.0
#include "support/fake_device.h"

#include <gtest/gtest.h>

#include "devices/executor_conformance.h"
#include "support/thread_lanes.h"

namespace penstock {
namespace {

using namespace test;
using std::chrono::microseconds;

INSTANTIATE_TEST_SUITE_P(
    Fakes, ExecutorConformance,
    testing::Values(ExecutorCase{"Fake", [] { return make_fake_executor({}); }},
                    ExecutorCase{"Delayed", [] { return make_fake_executor({1, microseconds(500)}); }},
                    ExecutorCase{"Asynchronous",
                                 [] { return make_lane_executor(make_fake_executor({}), make_thread_lanes(1, microseconds(300))); }}),
    executor_case_name);

}  // namespace
}  // namespace penstock
