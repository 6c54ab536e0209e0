// SPDX-License-Identifier: Apache-2.0
// The trace events of a timeline's file; see timeline_json.h.
#pragma once

#include <string>

#include "penstock/timeline.h"

namespace penstock {

// The timeline's activities as a JSON list of Chrome's trace events.
std::string trace_events(const Timeline& timeline);

}  // namespace penstock
