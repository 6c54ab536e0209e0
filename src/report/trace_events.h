// The drawing part of a timeline's file: see timeline_json.h.
#pragma once

#include <string>

#include "simulate/timeline.h"

namespace penstock {

// A JSON list of Chrome's trace events.
std::string trace_events(const Timeline& timeline);

}  // namespace penstock
