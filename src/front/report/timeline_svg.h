// SPDX-License-Identifier: Apache-2.0
// A timeline as a standalone picture.
#pragma once

#include <string>
#include <vector>

#include "penstock/timeline.h"

namespace penstock {

// Standalone SVG: rows of boxes, labelled where there is room, under a time axis; transfers in a strip under their sender's boxes, with a
// line to their receiver's row; memory by class below all devices, on one scale; a legend. Boxes thinner than a pixel are merged, so that
// the file's size is bounded by the picture's, not by the number of activities.
std::string timeline_svg(const Timeline& timeline);
// The same of several, at least one, below each other on one scale of time. All are in seconds, or none.
std::string timelines_svg(const std::vector<Timeline>& timelines);

}  // namespace penstock
