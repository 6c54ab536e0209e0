// What all drawings of a timeline share: how activities look, the time axis, what fits where, and numbers as text.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "simulate/timeline.h"

namespace penstock {

// How activities of one kind are told apart: by colour (of Okabe & Ito's palette, which people with colour blindness can tell apart), by
// pattern and by letter.
struct Look {
  std::string_view name;  // as an identifier
  char letter;            // in text
  std::string_view colour;
  std::string_view pattern;  // an SVG path, stroked over each tile of kPatternTile units; empty: none
  std::string_view meaning;
};
inline constexpr int kPatternTile = 8;
inline constexpr std::size_t kLooks = 8;
extern const std::array<Look, kLooks> looks;  // in the legend's order
inline constexpr std::size_t kTransferLook = 6, kHostLook = 7;
std::size_t look_of(Kind kind);  // of an action
std::size_t look_of(const Activity& activity);
std::array<bool, kLooks> looks_in(const Timeline& timeline);  // which there are

// For each device, the stages of its actions in order: its chunks.
std::vector<std::vector<std::int32_t>> stages_by_device(const Timeline& timeline);
std::size_t most_chunks(const std::vector<std::vector<std::int32_t>>& stages);  // of a device; at least 1
// Which of its device's chunks an activity computes for; 0 for others.
std::size_t chunk_of(const std::vector<std::vector<std::int32_t>>& stages, const Activity& activity);
// How much white is mixed into the colours of each chunk, so that the chunks of a device look different.
std::vector<double> chunk_shades(std::size_t chunks);

// Of the memory classes, from dark to light.
extern const std::array<std::string_view, kMemoryClasses> memory_colours;

// The makespan, or what ends later; 1 for an empty timeline, so that something can be divided by it.
double end_of(const Timeline& timeline);

// The activities of each device on one lane, by begin.
std::vector<std::vector<const Activity*>> by_device(const Timeline& timeline, Lane lane);

// Time is cut into `columns`, `per_column` each: the look that takes most of each; -1: nothing does.
std::vector<int> dominant_looks(const std::vector<const Activity*>& activities, double per_column, std::size_t columns);

// The largest point of memory in each of `columns`; null before the first.
std::vector<const MemoryPoint*> memory_by_column(const std::vector<MemoryPoint>& memory, double per_column, std::size_t columns);
const MemoryPoint* peak_of(const std::vector<MemoryPoint>& memory);  // the first largest; null if there is none

// "1.5 GiB"; without seconds "12 micro-batches".
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

// For HTML and SVG.
std::string escape_markup(std::string_view text);

}  // namespace penstock
