// SPDX-License-Identifier: Apache-2.0
// Timelines as an interactive HTML page.
#pragma once

#include <string>
#include <vector>

#include "penstock/timeline.h"

namespace penstock {

struct PageSection {
  std::string heading;
  std::string text;  // shown as it is, in a fixed-width font; or, if it begins with "<svg", as a picture
};

struct Page {
  std::string title;
  std::vector<Timeline> timelines;  // drawn one under the other, or grouped by device, on one scale of time; none: there is no chart
  std::vector<PageSection> sections;
  std::string picture = {};        // SVG that stands above the timelines; "": none
  std::vector<double> peaks = {};  // bytes, by row of the first timeline, which has no memory over time; empty: unknown
  std::string warning = {};        // a line above all; "": none
};

// A page that needs nothing else: no other files, no network. It contains the activities as columns of numbers (timeline_data); its script
// (src/front/report/page) draws the visible part.
std::string timeline_html(const Page& page);

}  // namespace penstock
