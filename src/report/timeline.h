// What the devices did when: as text and as a page.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/cluster.h"

namespace penstock {

// A box on a device's row.
struct TimelineBox {
  std::string kind;                 // "F", "B", "I", "W", "update", "wait": its colour and its place in the legend
  std::string label;                // "F3": shown where there is room
  std::string detail;               // "F3 of stage 1": shown on hover
  std::int64_t begin = 0, end = 0;  // ns since the step's begin
};
struct Timeline {
  std::string title;
  std::vector<std::vector<TimelineBox>> devices;
};

// A measured step of a program: `result` with its spans.
Timeline timeline_of(const Program& program, const StepResult& result, const std::string& title);

// A row per device, `columns` characters of time, each showing the kind that took most of it ('.': nothing).
std::string timeline_text(const Timeline& timeline, int columns = 100);
// A page that needs nothing else.
std::string timeline_html(const Timeline& timeline);

}  // namespace penstock
