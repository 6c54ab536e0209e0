// SPDX-License-Identifier: Apache-2.0
#include "penstock/plan_file.h"

#include "fuzz/fixpoint.h"
#include "report/plan_svg.h"

using namespace penstock;

// What is read can be drawn.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto plan = fuzz::read_back(
      fuzz::as_text(data, size), [](std::string_view text) { return parse_plan(text, "fuzz.json"); },
      [](const PlanFile& file) { return print(file); });
  if (!plan) return 0;
  plan_text(*plan);
  plan_svg(*plan);
  return 0;
}
