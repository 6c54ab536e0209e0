// SPDX-License-Identifier: Apache-2.0
#include "report/timeline_svg.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/text.h"
#include "base/words.h"
#include "report/table.h"
#include "report/timeline_parts.h"

namespace penstock {
namespace {

// All lengths are pixels of the picture at its natural size.
constexpr double kWidth = 1600, kLeft = 130, kRight = 20, kChart = kWidth - kLeft - kRight;
constexpr double kTop = 66, kBox = 26, kStrip = 6, kMemory = 34, kPeak = 7, kMemoryRow = kMemory + kPeak + 4, kGap = 12, kLegend = 24;
constexpr double kThin = 1;      // narrower boxes are merged,
constexpr double kColumn = 0.5;  // into columns of this width
constexpr double kPointed = 4;   // boxes at least this wide show a text when pointed at
constexpr double kLetter = 7;    // width of a character
constexpr double kTip = 4;       // length of an arrow's tip
constexpr std::size_t kMostArrows = 3000;

struct TimelinePicture {
  // `until`: the time at the right edge.
  TimelinePicture(const Timeline& drawn, double until)
      : timeline(drawn), stages(stages_by_device(drawn)), chunks(most_chunks(stages)), end(until) {
    transfers = looks_in(drawn)[kTransferLook];
    for (const auto& memory : drawn.memory)
      if (const MemoryPoint* peak = peak_of(memory)) most_memory = std::max(most_memory, peak->total());
    row = kBox + (transfers ? kStrip + 2 : 0) + kGap;
  }
  double x(double time) const { return kLeft + time / end * kChart; }
  double y(std::size_t device) const { return kTop + static_cast<double>(device) * row; }
  double strip(std::size_t device) const { return y(device) + kBox + 2; }
  // Memory stands below all boxes, so that no transfer crosses it.
  double floor_of_memory(std::size_t device) const { return y(timeline.devices.size()) + static_cast<double>(device + 1) * kMemoryRow; }
  double bottom() const { return y(timeline.devices.size()) + static_cast<double>(timeline.memory.size()) * kMemoryRow; }
  double legend_bottom() const { return bottom() + (1 + (timeline.memory.empty() ? 0 : 1) + (chunks > 1 ? 1 : 0)) * kLegend + 8; }
  // The class of an activity's box: its look and, where devices have several chunks, its chunk.
  std::string style(const Activity& activity) const {
    const std::string_view look = looks[look_of(activity)].name;
    const std::size_t chunk = chunk_of(stages, activity);
    return chunk == 0 ? std::string(look) : concat(look, " c", chunk);
  }

  const Timeline& timeline;
  std::vector<std::vector<std::int32_t>> stages;  // by device
  std::size_t chunks = 1;
  double end;
  double most_memory = 0;
  bool transfers = false;
  double row = 0;  // height of a device's row
};

std::string decimal(double value) {
  std::string out = fixed(value, 2);
  out.erase(out.find_last_not_of('0') + 1);
  if (out.back() == '.') out.pop_back();
  return out == "-0" ? "0" : out;
}

std::string rect_path(double x, double y, double width, double height) {
  return concat("M", decimal(x), " ", decimal(y), "h", decimal(width), "v", decimal(height), "h", decimal(-width), "z");
}

// One box. Browsers show <title> for the box that is pointed at.
std::string box(const TimelinePicture& picture, const Activity& activity, double y, double height) {
  const double x = picture.x(activity.begin), width = picture.x(activity.end) - x;
  std::string out =
      concat("<g><title>", escape_markup(detail(picture.timeline, activity)), "\n",
             time_text(activity.end - activity.begin, picture.timeline.seconds), ", from ",
             time_text(activity.begin, picture.timeline.seconds), "</title><rect class=\"", picture.style(activity), "\" x=\"", decimal(x),
             "\" y=\"", decimal(y), "\" width=\"", decimal(width), "\" height=\"", decimal(height), "\"/>");
  const bool chunked = picture.chunks > 1 && activity.action && activity.stage >= 0;
  const std::string whole =
      chunked ? text({activity.stage, activity.kind, activity.microbatch}, picture.timeline.slices, picture.timeline.blocks)
              : label(picture.timeline, activity);
  const bool fits = width > kLetter * static_cast<double>(whole.size()) + 5;
  if (activity.lane == Lane::compute && width > kLetter + 4)
    out += concat("<text class=\"label\" x=\"", decimal(x + width / 2), "\" y=\"", decimal(y + height / 2 + 4), "\">",
                  fits ? escape_markup(whole) : std::string(1, looks[look_of(activity)].letter), "</text>");
  return out + "</g>\n";
}

// Draws one lane of one device: wide activities as boxes, the rest merged into a path per look.
std::string lane_boxes(const TimelinePicture& picture, const std::vector<const Activity*>& activities, double y, double height) {
  std::vector<const Activity*> thin;
  std::map<std::string, std::string> paths;  // by class of the boxes
  std::string boxes;
  for (const Activity* activity : activities) {
    const double x = picture.x(activity->begin), width = picture.x(activity->end) - x;
    if (width >= kPointed)
      boxes += box(picture, *activity, y, height);
    else if (width >= kThin)
      paths[picture.style(*activity)] += rect_path(x, y, width, height);
    else
      thin.push_back(activity);
  }
  const auto columns = static_cast<std::size_t>(kChart / kColumn);
  const std::vector<int> merged = dominant_looks(thin, picture.end / static_cast<double>(columns), columns);
  for (std::size_t i = 0, next = 0; i < columns; i = next) {
    for (next = i + 1; next < columns && merged[next] == merged[i];) ++next;
    if (merged[i] >= 0)
      paths[std::string(looks[merged[i]].name)] +=
          rect_path(kLeft + static_cast<double>(i) * kColumn, y, static_cast<double>(next - i) * kColumn, height);
  }
  std::string out;
  for (const auto& [style, path] : paths) out += concat("<path class=\"", style, "\" d=\"", path, "\"/>\n");
  return out + boxes;
}

// Draws memory as stacked areas in steps, from the floor up; columns in which nothing changes are left out.
std::string memory_areas(const TimelinePicture& picture, std::size_t device) {
  const std::vector<MemoryPoint>& memory = picture.timeline.memory[device];
  const auto columns = static_cast<std::size_t>(kChart);
  const std::vector<const MemoryPoint*> points = memory_by_column(memory, picture.end / static_cast<double>(columns), columns);
  const double floor = picture.floor_of_memory(device), scale = picture.most_memory > 0 ? kMemory / picture.most_memory : 0;
  std::string out;
  // Upper classes are drawn first, behind the others, each from the floor to its own top.
  for (std::size_t upper = kMemoryClasses; upper-- > 0;) {
    std::string path = concat("M", decimal(kLeft), " ", decimal(floor));
    double now = floor;
    for (std::size_t i = 0; i < columns; ++i) {
      double amount = 0;
      for (std::size_t c = 0; points[i] != nullptr && c <= upper; ++c) amount += points[i]->amount[c];
      const double top = floor - amount * scale;
      if (decimal(top) == decimal(now)) continue;
      path += concat("H", decimal(kLeft + static_cast<double>(i)), "V", decimal(top));
      now = top;
    }
    if (path.find('H') != std::string::npos)
      out += concat("<path class=\"m", upper, "\" d=\"", path, "H", decimal(kLeft + kChart), "V", decimal(floor), "z\"/>\n");
  }
  const MemoryPoint* peak = peak_of(memory);
  if (peak == nullptr) return out;
  out += concat("<text x=\"8\" y=\"", decimal(floor - 18), "\">", escape_markup(picture.timeline.devices[device]), "</text>\n");
  const double x = picture.x(peak->time), top = floor - peak->total() * scale;
  return concat(out, "<path class=\"peak\" d=\"M", decimal(x - 4), " ", decimal(top - 6),
                "h8l-4 6z\"/>\n<text class=\"small\" x=\"8\" y=\"", decimal(floor - 4), "\">peak ",
                amount_text(peak->total(), picture.timeline.seconds), "</text>\n");
}

// Lines from the sender's row, where a transfer begins, to the receiver's boxes, where it ends. Lines that would lie on each other are
// drawn once; where there are too many, none is drawn.
std::string arrows(const TimelinePicture& picture, bool& too_many) {
  std::set<std::tuple<std::int32_t, std::int32_t, int, int>> drawn;
  std::string path;
  for (const Activity& activity : picture.timeline.activities) {
    if (activity.lane != Lane::transfer || activity.peer == activity.device) continue;
    const double begin = picture.x(activity.begin), end = picture.x(activity.end);
    if (!drawn.emplace(activity.device, activity.peer, static_cast<int>(begin), static_cast<int>(end)).second) continue;
    const auto from = static_cast<std::size_t>(activity.device), to = static_cast<std::size_t>(activity.peer);
    const bool down = to > from;
    const double target = picture.y(to) + (down ? 0 : kBox), tip = down ? target - kTip : target + kTip;
    const double source = down ? picture.strip(from) + kStrip / 2 : picture.y(from);
    path += concat("M", decimal(begin), " ", decimal(source), "L", decimal(end), " ", decimal(target), "M", decimal(end - kTip / 2), " ",
                   decimal(tip), "L", decimal(end), " ", decimal(target), "L", decimal(end + kTip / 2), " ", decimal(tip));
  }
  too_many = drawn.size() > kMostArrows;
  return too_many || path.empty() ? std::string() : concat("<path class=\"arrow\" d=\"", path, "\"/>\n");
}

std::string axis(const TimelinePicture& picture) {
  const TimeAxis ticks = time_axis(picture.end, 12, picture.timeline.seconds);
  std::string out;
  for (int i = 0; i * ticks.step <= picture.end * (1 + 1e-9) && i <= 100; ++i) {
    const std::string x = decimal(picture.x(i * ticks.step));
    out += concat("<line class=\"tick\" x1=\"", x, "\" x2=\"", x, "\" y1=\"", decimal(kTop - 8), "\" y2=\"", decimal(picture.bottom()),
                  "\"/><text class=\"time\" x=\"", x, "\" y=\"", decimal(kTop - 14), "\">", ticks.text(i * ticks.step), "</text>\n");
  }
  return out;
}

bool has_memory(const Timeline& timeline, std::size_t memory_class) {
  return std::any_of(timeline.memory.begin(), timeline.memory.end(), [&](const std::vector<MemoryPoint>& points) {
    return std::any_of(points.begin(), points.end(), [&](const MemoryPoint& point) { return point.amount[memory_class] > 0; });
  });
}

std::string legend(const TimelinePicture& picture, bool arrows_left_out) {
  double x = kLeft, y = picture.bottom() + 8;
  std::string out;
  const auto entry = [&](const std::string& look, const std::string& text) {
    out += concat("<rect class=\"", look, "\" x=\"", decimal(x), "\" y=\"", decimal(y), "\" width=\"16\" height=\"14\"/><text x=\"",
                  decimal(x + 21), "\" y=\"", decimal(y + 12), "\">", text, "</text>\n");
    x += 21 + kLetter * static_cast<double>(text.size()) + 18;
  };
  const std::array<bool, kLooks> there = looks_in(picture.timeline);
  for (std::size_t look = 0; look < kLooks; ++look) {
    const bool lines = look == kTransferLook && !arrows_left_out;
    if (there[look]) entry(std::string(looks[look].name), concat(looks[look].letter, " ", looks[look].meaning, lines ? " (lines)" : ""));
  }
  x = kLeft, y += kLegend;
  for (std::size_t i = 0; i < kMemoryClasses; ++i)
    if (has_memory(picture.timeline, i)) entry(concat("m", i), concat("memory: ", name(static_cast<MemoryClass>(i))));
  if (picture.chunks > 1)
    out +=
        concat("<text class=\"chunks\" x=\"", decimal(kLeft), "\" y=\"", decimal(picture.legend_bottom() - kLegend + 4), "\">",
               picture.timeline.slices > 1 ? "2.1F4: forward of stage 2, slice 1, micro-batch 4; the later a slice of its device, the paler"
                                           : "2F4: forward of stage 2, micro-batch 4; the later a stage of its device, the paler",
               "</text>\n");
  return out;
}

// The classes that boxes have: looks, and looks in the shade of a chunk.
std::set<std::string> styles_in(const std::vector<TimelinePicture>& pictures) {
  std::set<std::string> out;
  for (const TimelinePicture& picture : pictures)
    for (const Activity& activity : picture.timeline.activities) {
      out.insert(picture.style(activity));
      out.emplace(looks[look_of(activity)].name);  // which thin boxes have, and the legend
    }
  return out;
}

constexpr const char* kInk =
    "text { font: 12px system-ui, sans-serif; fill: #1a1a1a; }\n.title { font-size: 17px; font-weight: 600; }\n"
    ".label { fill: #000; }\n.label, .time { text-anchor: middle; pointer-events: none; }\n"
    ".time, .small { font-size: 11px; fill: #555; }\n"
    ".tick { stroke: #000; stroke-opacity: .13; }\n.arrow { fill: none; stroke: #333; stroke-opacity: .45; stroke-width: .8; }\n"
    ".peak { fill: #d55e00; }\n"
    "rect { stroke: #999; }\n.ground { fill: #fff; stroke: none; }\n.idle { fill: #f4f5f7; stroke: none; }\n";
constexpr const char* kDarkInk =
    "text { fill: #e6e9ee; }\n.time, .small { fill: #98a2b0; }\n.tick { stroke: #fff; stroke-opacity: .2; }\n.arrow { stroke: #c3ccd8; }\n"
    ".ground { fill: #14171c; }\n.idle { fill: #22272f; }\n";

std::string style(const std::vector<TimelinePicture>& pictures) {
  std::size_t chunks = 1;
  for (const TimelinePicture& picture : pictures) chunks = std::max(chunks, picture.chunks);
  const std::vector<double> shades = chunk_shades(chunks);
  const std::set<std::string> styles = styles_in(pictures);
  std::string css = kInk, dark = kDarkInk, patterns, halos = ".label { paint-order: stroke; stroke-width: 3px; }\n";
  for (const Look& look : looks) {
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      if (!styles.contains(chunk == 0 ? std::string(look.name) : concat(look.name, " c", chunk))) continue;
      const std::string colour = in_shade(look.colour, shades[chunk]),
                        id = chunk == 0 ? std::string(look.name) : concat(look.name, "-", chunk);
      const std::string selector = chunk == 0 ? concat(".", look.name) : concat(".", look.name, ".c", chunk);
      css += concat("rect", selector, " { stroke: ", look.edge, "; }\n");  // paths are of boxes without room for an edge
      css += concat(selector, " { fill: ", look.pattern.empty() ? colour : concat("url(#", id, ")"), "; }\n");
      if (look.pattern.empty()) continue;
      halos += concat(selector, " + .label { stroke: ", colour, "; }\n");  // keeps the pattern's lines away from the letters
      patterns +=
          concat("<pattern id=\"", id, "\" width=\"", kPatternTile, "\" height=\"", kPatternTile,
                 "\" patternUnits=\"userSpaceOnUse\"><path fill=\"", colour, "\" d=\"M0 0h", kPatternTile, "v", kPatternTile, "h-",
                 kPatternTile, "z\"/><path fill=\"none\" stroke=\"#000\" stroke-opacity=\".4\" d=\"", look.pattern, "\"/></pattern>\n");
    }
  }
  for (std::size_t i = 0; i < kMemoryClasses; ++i) {
    css += concat(".m", i, " { fill: ", memory_colours[i].light, "; }\n");
    dark += concat(".m", i, " { fill: ", memory_colours[i].dark, "; }\n");
  }
  // A program that draws a stroke over the letters all the same, as CairoSVG does, knows no @supports either.
  css += concat("@supports (paint-order: stroke) {\n", halos, "}\n");
  return concat("<style>\n", css, "@media (prefers-color-scheme: dark) {\n", dark, "}\n</style>\n<defs>\n", patterns, "</defs>\n");
}

// The picture in words.
std::string description(const Timeline& timeline) {
  std::vector<std::string> kinds;
  const std::array<bool, kLooks> there = looks_in(timeline);
  for (std::size_t look = 0; look < kLooks; ++look)
    if (there[look]) kinds.emplace_back(looks[look].meaning);
  return concat("A row of boxes for each of ", counted(static_cast<std::int64_t>(timeline.devices.size()), "device"), ", over ",
                time_text(timeline.makespan, timeline.seconds), " from left to right", kinds.empty() ? "" : ": ", join(kinds, ", "),
                timeline.memory.empty() ? "" : "; below them the memory in use on each", ".");
}

// A row's name beside it; what stands in brackets goes below, in smaller letters, where one line has no room for both.
std::string row_name(const std::string& name, double y) {
  constexpr std::size_t kLetters = 18;
  const auto line = [](const char* small, double at, const std::string& text) {
    return concat("<text", small, " x=\"8\" y=\"", decimal(at), "\">", escape_markup(text), "</text>\n");
  };
  const std::size_t bracket = name.find(" (");
  if (name.size() <= kLetters || bracket == std::string::npos) return line("", y + kBox / 2 + 4, name);
  return line("", y + kBox / 2 - 1, name.substr(0, bracket)) + line(" class=\"small\"", y + kBox / 2 + 11, name.substr(bracket + 1));
}

std::string device_rows(const TimelinePicture& picture) {
  const auto compute = by_device(picture.timeline, Lane::compute), host = by_device(picture.timeline, Lane::host),
             transfers = by_device(picture.timeline, Lane::transfer);
  std::string out;
  for (std::size_t device = 0; device < picture.timeline.devices.size(); ++device) {
    const double y = picture.y(device);
    out += row_name(picture.timeline.devices[device], y);
    out += concat("<rect class=\"idle\" x=\"", decimal(kLeft), "\" y=\"", decimal(y), "\" width=\"", decimal(kChart), "\" height=\"",
                  decimal(kBox), "\"/>\n");
    out += lane_boxes(picture, host[device], y + kBox / 4, kBox / 2);  // lower than the boxes of computing, which lie over it
    out += lane_boxes(picture, compute[device], y, kBox);
    out += lane_boxes(picture, transfers[device], picture.strip(device), kStrip);
    if (device < picture.timeline.memory.size()) out += memory_areas(picture, device);
  }
  return out;
}

// A picture's own part: heading, axis, rows and legend.
std::string drawing(const TimelinePicture& picture) {
  const Timeline& timeline = picture.timeline;
  bool arrows_left_out = false;
  const std::string lines = arrows(picture, arrows_left_out);
  return concat("<text class=\"title\" x=\"8\" y=\"24\">", escape_markup(timeline.title), "</text><text class=\"small\" x=\"8\" y=\"42\">",
                time_text(timeline.makespan, timeline.seconds), "</text>\n", axis(picture), device_rows(picture), lines,
                legend(picture, arrows_left_out));
}

// One below the other, on the scale of the longest.
std::string svg_of(const std::vector<const Timeline*>& timelines) {
  double end = 0, height = 0;
  for (const Timeline* timeline : timelines) end = std::max(end, end_of(*timeline));
  std::vector<TimelinePicture> pictures;
  pictures.reserve(timelines.size());
  for (const Timeline* timeline : timelines) pictures.emplace_back(*timeline, end);
  std::string drawn;
  for (const TimelinePicture& picture : pictures) {
    drawn += pictures.size() == 1 ? drawing(picture)
                                  : concat("<g transform=\"translate(0 ", decimal(height), ")\">\n", drawing(picture), "</g>\n");
    height += picture.legend_bottom();
  }
  const auto title = [](const Timeline* timeline) { return timeline->title; };
  const auto words = [](const Timeline* timeline) { return description(*timeline); };
  return concat(open_svg(decimal(kWidth), decimal(height), join(timelines, ", ", title), join(timelines, " ", words)), style(pictures),
                "<rect class=\"ground\" width=\"", decimal(kWidth), "\" height=\"", decimal(height), "\"/>\n", drawn, "</svg>\n");
}

}  // namespace

std::string timeline_svg(const Timeline& timeline) {
  return svg_of({&timeline});
}

std::string timelines_svg(const std::vector<Timeline>& timelines) {
  std::vector<const Timeline*> all;
  for (const Timeline& timeline : timelines) all.push_back(&timeline);
  return svg_of(all);
}

}  // namespace penstock
