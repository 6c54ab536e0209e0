// SPDX-License-Identifier: Apache-2.0
#include "report/timeline_json.h"

#include "fuzz/fixpoint.h"
#include "report/timeline_html.h"
#include "report/timeline_svg.h"
#include "report/timeline_text.h"

using namespace penstock;

// What is read can be drawn.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto timeline = fuzz::read_back(
      fuzz::as_text(data, size), [](std::string_view text) { return parse_timeline(text, "fuzz.json"); },
      [](const Timeline& t) { return timeline_json(t); });
  if (!timeline) return 0;
  timeline_text({*timeline}, {20, true});
  timeline_svg(*timeline);
  timeline_html({"fuzz", {*timeline}, {}});
  return 0;
}
