#include "devices/executor_conformance.h"

#include "torch/executor.h"

namespace penstock::test {

INSTANTIATE_TEST_SUITE_P(Torch, ExecutorConformance, testing::Values(ExecutorCase{"Torch", [] { return make_torch_executor(); }}),
                         executor_case_name);

}  // namespace penstock::test
