#include "devices/fake_device.h"

#include <gtest/gtest.h>

#include "devices/executor_conformance.h"

namespace penstock {
namespace {

using namespace test;
using std::chrono::microseconds;

INSTANTIATE_TEST_SUITE_P(Fakes, ExecutorConformance,
                         testing::Values(ExecutorCase{"Fake", [] { return make_fake_executor({}); }},
                                         ExecutorCase{"Delayed", [] { return make_fake_executor({1, microseconds(500)}); }}),
                         executor_case_name);

}  // namespace
}  // namespace penstock
