// SPDX-License-Identifier: Apache-2.0
// Helpers that all drawings of a timeline share: how activities look, the time axis, what fits where, and numbers as text.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/timeline.h"

namespace penstock {

// The look of the activities of one kind. Kinds differ by colour (from Okabe & Ito's palette, which people with colour blindness can tell
// apart), by pattern and by letter.
struct Look {
  std::string_view name;  // as an identifier
  char letter;            // in text
  std::string_view colour;
  std::string_view edge;     // a darker tone around a box: bright colours would not stand out from a white ground (3:1 at least)
  std::string_view pattern;  // an SVG path, stroked over each tile of kPatternTile units; empty: none
  std::string_view meaning;
};
inline constexpr int kPatternTile = 8;
inline constexpr std::size_t kLooks = 9;
extern const std::array<Look, kLooks> looks;  // in the legend's order
inline constexpr std::size_t kTransferLook = 6, kHostLook = 7, kFrozenLook = 8;
std::size_t look_of(Kind kind);  // the look of an action's activities
std::size_t look_of(const Activity& activity);
std::array<bool, kLooks> looks_in(const Timeline& timeline);  // which of them the timeline has

// For each device, the stages of its actions in order: its chunks.
std::vector<std::vector<std::int32_t>> stages_by_device(const Timeline& timeline);
std::size_t most_chunks(const std::vector<std::vector<std::int32_t>>& stages);  // the most stages that a device has; at least 1
// The index of the stage that an activity computes for, among its device's stages; 0 for other activities.
std::size_t chunk_of(const std::vector<std::vector<std::int32_t>>& stages, const Activity& activity);
// Returns how much white is mixed into the colours of each chunk, so that the chunks of a device look different.
std::vector<double> chunk_shades(std::size_t chunks);

// Returns the colour ("#rrggbb") with so much white mixed into it: 0 none, 1 white.
std::string in_shade(std::string_view colour, double shade);

// Colours of the memory classes, on a white and on a dark ground. Dark and light ones take turns, so that areas that lie on each other have
// a contrast of 3:1 at least.
struct MemoryColour {
  std::string_view light, dark;
};
extern const std::array<MemoryColour, kMemoryClasses> memory_colours;

// The time at which everything has ended: the makespan, or later; 1 for an empty timeline, so that it can be divided by.
double end_of(const Timeline& timeline);

// The activities of each device on one lane, sorted by begin.
std::vector<std::vector<const Activity*>> by_device(const Timeline& timeline, Lane lane);

// Cuts time into `columns` of `per_column` each and gives the look that takes most of each; -1: nothing happens there.
std::vector<int> dominant_looks(const std::vector<const Activity*>& activities, double per_column, std::size_t columns);

// The largest point of memory in each of `columns` columns; null before the first point.
std::vector<const MemoryPoint*> memory_by_column(const std::vector<MemoryPoint>& memory, double per_column, std::size_t columns);
const MemoryPoint* peak_of(const std::vector<MemoryPoint>& memory);  // the first of the largest points; null if there is none

// An amount of memory: "1.5 GiB", or "12 micro-batches" in a timeline without seconds.
std::string amount_text(double amount, bool seconds);

// Ticks at round times, about `count` of them.
struct TimeAxis {
  double step = 1;  // between ticks
  double unit = 1;
  int digits = 0;
  std::string suffix;
  std::string text(double time) const;
};
TimeAxis time_axis(double end, int count, bool seconds);

// Escapes text for HTML and SVG.
std::string escape_markup(std::string_view text);

// The beginning of a picture as SVG, up to its description for those who do not see it.
std::string open_svg(const std::string& width, const std::string& height, std::string_view title, std::string_view description);

}  // namespace penstock
