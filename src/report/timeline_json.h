// A timeline as a file: Chrome's trace event format, which Perfetto and chrome://tracing open, with Penstock's own exact data beside it.
#pragma once

#include <string>
#include <string_view>

#include "simulate/timeline.h"

namespace penstock {

// {"displayTimeUnit", "traceEvents", "penstock"}. The trace events have a process per device, a thread per lane (more where activities
// of one lane overlap), flow arrows from each transfer's producer over the transfer to its consumer, and memory as a counter; in whole
// nanoseconds, a unit of a timeline without seconds being a second. "penstock" is timeline_data.
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
std::string timeline_json(const Timeline& timeline);

// All that a timeline holds, as one JSON object: {"timeline": 1 (the version), "title", "seconds", "makespan", "devices", "tasks",
// "lanes", "kinds", "activities", "memory"}. Activities are columns of equal length; "lane" and "kind" count in "lanes" and "kinds", and
// kind is -1 outside of actions. Memory has an object of columns for each device, or none at all.
std::string timeline_data(const Timeline& timeline);

// The timeline of a file that timeline_json wrote (of which only "penstock" is read), equal to the one written. Throws Error with the
// file and what is wrong.
Timeline parse_timeline(std::string_view json, const std::string& file);

}  // namespace penstock
