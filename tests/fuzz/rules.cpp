// SPDX-License-Identifier: Apache-2.0
#include "penstock/rules.h"

#include <algorithm>

#include "fuzz/fixpoint.h"

using namespace penstock;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto rules = fuzz::read_back(
      fuzz::as_text(data, size), [](std::string_view text) { return parse_rules(text, "fuzz.rules"); },
      [](const Rules& r) { return print(r); });
  // Numbers of stages may be anything; tables are made of few.
  if (!rules || rules->placement.chunks > 16 || rules->placement.actors.size() > 64) return 0;
  const ScheduleOptions options{.actors = 3, .microbatches = 5};
  try {
    const Schedule schedule = make_schedule(*rules, options);
    validate(schedule, shape_of(schedule), options.microbatches);
  } catch (const Error& error) {
    // What rules can say wrong is said before there is a table.
    invariant(std::string_view(error.what()).starts_with("fuzz.rules: ") ||
                  std::string_view(error.what()).find("where p = 3") != std::string_view::npos,
              error.what());
  }
  return 0;
}
