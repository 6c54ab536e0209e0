// SPDX-License-Identifier: Apache-2.0
// A timeline as a file: Chrome's trace event format, which Perfetto and chrome://tracing open, with Penstock's own exact data beside it.
#pragma once

#include <string>
#include <string_view>

#include "penstock/timeline.h"

namespace penstock {

// A JSON object {"displayTimeUnit", "traceEvents", "penstock"}. The trace events have a process per device, a thread per lane (more where
// activities of one lane overlap), flow arrows from each transfer's producer over the transfer to its consumer, and memory as a counter.
// Times are whole nanoseconds; a unit of a timeline without seconds counts as a second. "penstock" is timeline_data.
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
std::string timeline_json(const Timeline& timeline);

// Everything that a timeline holds, as one JSON object: {"timeline": 1 (the version), "title", "seconds", "makespan", "devices", "tasks",
// "lanes", "kinds", "activities", "memory"}. Activities are columns of equal length. "lane" and "kind" are indices into "lanes" and
// "kinds"; kind is -1 outside of actions. The column "frozen" is left out where it is false for all. Memory has an object of columns for
// each device, or none at all.
std::string timeline_data(const Timeline& timeline);

// Reads the timeline of a file that timeline_json wrote (only its "penstock"); it equals the one written. Throws Error with the file and
// what is wrong.
Timeline parse_timeline(std::string_view json, const std::string& file);

// The file in a run's folder that has its measured step. Throws Error for a folder that is none.
std::string timeline_of_run(const std::string& folder);

}  // namespace penstock
