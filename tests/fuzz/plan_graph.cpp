// SPDX-License-Identifier: Apache-2.0
#include "fuzz/fixpoint.h"
#include "penstock/plan.h"

using namespace penstock;

// Every form of a model's graph; the corpus says which.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::read_back(
      fuzz::as_text(data, size), [](std::string_view text) { return parse_plan_graph(text, "fuzz.graph"); },
      [](const PlanGraph& graph) { return print(graph); });
  return 0;
}
