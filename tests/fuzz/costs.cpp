// SPDX-License-Identifier: Apache-2.0
#include "penstock/costs.h"

#include "fuzz/fixpoint.h"

using namespace penstock;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::read_back(
      fuzz::as_text(data, size), [](std::string_view text) { return parse_costs(text, "fuzz.json"); },
      [](const Costs& costs) { return print(costs); });
  return 0;
}
