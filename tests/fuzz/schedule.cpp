// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "fuzz/fixpoint.h"
#include "penstock/schedule.h"

using namespace penstock;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto schedule = fuzz::read_back(
      fuzz::as_text(data, size), [](std::string_view text) { return parse_schedule(text, "fuzz.csv"); },
      [](const Schedule& s) { return print(s); });
  // A stage number may be anything; a model's chain is as long as the model.
  if (!schedule || schedule->stages() > 64 || schedule->microbatches() > 1024) return 0;
  try {
    validate(*schedule, chain(std::max(schedule->stages(), 1)));
  } catch (const Error&) {
  }
  return 0;
}
