// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/numbers.h"
#include "base/text.h"
#include "penstock/error.h"
#include "report/mesh_picture.h"
#include "report/timeline_parts.h"

namespace penstock {
namespace {

// All lengths are pixels of the picture at its natural size.
constexpr double kPictureWidth = 1160, kSide = 24, kLetterWidth = 7.25, kTextLine = 17;  // kLetterWidth: the font is monospaced
constexpr double kDevicesLeft = 150, kDevicesWidth = 560, kLevelHeight = 24, kDeviceHeight = 24, kLane = 13, kAxisGap = 16;
constexpr double kSaysLeft = kDevicesLeft + kDevicesWidth + 30;
constexpr double kMatrixLeft = 150, kMatrixWidth = 460, kMostMatrix = 340, kLeastMatrix = 56, kBand = 22,
                 kLegendLeft = kMatrixLeft + kMatrixWidth + 30;
constexpr std::size_t kMostDevicesDrawn = 256, kMostLanes = 64, kMostInLegend = 20;

// Okabe and Ito's palette, light enough to be written on, for parts; and strong, for the levels of a cluster from the innermost on.
constexpr const char* kPartColours[] = {"#9fd3f2", "#f6cf8a", "#a5dcc6", "#eab8d3", "#f4ee9e", "#8fb9d9", "#f0b28e", "#cfd4da"};
constexpr const char* kLevelColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7"};

struct Sketch {
  std::string body;
  double height = 0;
};

std::string px(double value) {
  return short_decimal(value, 6);
}

std::string said(const char* style, double x, double y, const std::string& text) {
  return concat("<text class=\"", style, "\" x=\"", px(x), "\" y=\"", px(y), "\">", escape_markup(text), "</text>\n");
}

std::string field(const std::string& attributes, double x, double y, double width, double height) {
  return concat("<rect ", attributes, " x=\"", px(x), "\" y=\"", px(y), "\" width=\"", px(width), "\" height=\"", px(height), "\"/>");
}

// --- devices, levels and axes

const char* level_colour(std::size_t level) {
  return kLevelColours[std::min(level, std::size(kLevelColours) - 1)];
}

double middle_of(const MeshPicture& picture, std::int32_t device) {
  return kDevicesLeft + (device + 0.5) * kDevicesWidth / static_cast<double>(picture.mesh.devices.size());
}

// Brackets of the units of each level, the outermost first, then the devices by number.
std::string devices_row(const MeshPicture& picture, double& y) {
  std::string out;
  const auto count = static_cast<double>(picture.mesh.devices.size());
  const double each = kDevicesWidth / count;
  const std::vector<int> levels = devices_of_levels(picture.cluster);
  for (std::size_t level = levels.size(); level-- > 0; y += kLevelHeight) {
    const double width = each * levels[level];
    for (double x = kDevicesLeft; x < kDevicesLeft + kDevicesWidth - 1; x += width)
      out += concat("<path class=\"level\" stroke=\"", level_colour(level), "\" d=\"M", px(x + 2), " ", px(y + 16), "v-6h", px(width - 4),
                    "v6\"/>\n");
    out += said("small", kSaysLeft, y + 15, concat("links of ", level_text(picture.cluster, level)));
  }
  out += said("name", kSide, y + 16, "devices");
  for (std::int32_t d = 0; d < std::ssize(picture.mesh.devices); ++d) {
    const std::vector<std::int32_t>& place = picture.mesh.devices[d].place;
    std::vector<std::string> where;
    for (std::size_t a = 0; a < place.size(); ++a) where.push_back(concat(picture.mesh.axes[a].name, " ", place[a]));
    out += concat("<g><title>device ", d, ": ", join(where, ", "), "</title>",
                  field("class=\"box\"", middle_of(picture, d) - each / 2 + 1, y, each - 2, kDeviceHeight - 4), "</g>\n");
    if (kLetterWidth * static_cast<double>(std::to_string(d).size()) < each - 2)
      out += said("middle", middle_of(picture, d), y + 14, std::to_string(d));
  }
  y += kDeviceHeight + kAxisGap;
  return out;
}

// The lane of each group, so that no two in a lane cross.
std::vector<std::size_t> lanes_of(const std::vector<std::vector<std::int32_t>>& groups, std::size_t& count) {
  std::vector<std::int32_t> ends;  // of the last group in each lane
  std::vector<std::size_t> out;
  for (const std::vector<std::int32_t>& group : groups) {
    const auto lane = static_cast<std::size_t>(
        std::find_if(ends.begin(), ends.end(), [&](std::int32_t end) { return end < group.front(); }) - ends.begin());
    if (lane == ends.size()) ends.emplace_back();
    ends[lane] = group.back();
    out.push_back(lane);
  }
  count = ends.size();
  return out;
}

bool sends(const AxisTraffic& axis) {
  return std::any_of(axis.levels.begin(), axis.levels.end(), [](const LevelTraffic& sent) { return !sent.counts.empty(); });
}

// "4 send, 16 all_reduce", in as many lines as fit beside the devices.
std::vector<std::string> kind_lines(const LevelTraffic& sent) {
  constexpr auto kLetters = static_cast<std::size_t>((kPictureWidth - kSaysLeft - 26) / kLetterWidth);
  std::vector<std::string> out;
  for (const auto& [opcode, count] : sent.counts) {
    const std::string kind = concat(count, " ", name(opcode));
    if (out.empty() || out.back().size() + kind.size() + 2 > kLetters)
      out.push_back(kind);
    else
      out.back() += ", " + kind;
  }
  return out;
}

std::string axis_rows(const MeshPicture& picture, const AxisTraffic& axis, double& y) {
  std::size_t lanes = 0;
  const std::vector<std::size_t> lane_of = lanes_of(axis.groups, lanes);
  std::string out = said("name", kSide, y + 10, axis.axis);
  for (std::size_t g = 0; g < axis.groups.size(); ++g) {
    const std::vector<std::int32_t>& group = axis.groups[g];
    if (lane_of[g] >= kMostLanes || group.size() < 2) continue;
    const double middle = y + 6 + kLane * static_cast<double>(lane_of[g]);
    std::string path = concat("M", px(middle_of(picture, group.front())), " ", px(middle), "H", px(middle_of(picture, group.back())));
    for (std::int32_t d : group) path += concat("M", px(middle_of(picture, d) - 3), " ", px(middle), "a3 3 0 1 0 6 0a3 3 0 1 0 -6 0");
    out += concat("<g><title>", escape_markup(axis.axis), " joins devices ", join_devices(group), "</title><path class=\"group\" stroke=\"",
                  level_colour(level_of(picture.cluster, group)), "\" d=\"", path, "\"/></g>\n");
  }
  double says = y + 10;
  for (std::size_t level = 0; level < axis.levels.size(); ++level) {
    const LevelTraffic& sent = axis.levels[level];
    if (sent.counts.empty()) continue;
    out +=
        concat(field(concat("fill=\"", level_colour(level), "\""), kSaysLeft, says - 9, 10, 10),
               said("plain", kSaysLeft + 16, says, concat(bytes_text(sent.most), " from a device, ", bytes_text(sent.all), " from all")));
    for (const std::string& line : kind_lines(sent)) out += said("small", kSaysLeft + 16, says += kTextLine - 2, line);
    says += kTextLine + 4;
  }
  if (!sends(axis)) out += said("small", kSaysLeft, says, "sends nothing"), says += kTextLine;
  y = std::max(y + kLane * static_cast<double>(std::clamp<std::size_t>(lanes, 1, kMostLanes)) + 4, says - 10) + kAxisGap;
  return out;
}

Sketch mesh_sketch(const MeshPicture& picture) {
  double y = 0;
  std::string out = devices_row(picture, y);
  for (const AxisTraffic& axis : picture.traffic)
    if (axis.groups.empty() || axis.groups[0].size() > 1 || sends(axis)) out += axis_rows(picture, axis, y);
  return {out, y};
}

// --- who holds what

std::string fill_of(const HeldPart& part, std::size_t number) {
  return concat("fill=\"", kPartColours[number % std::size(kPartColours)], "\" class=\"", part.terms.size() > 1 ? "part term" : "part",
                "\"");
}

struct Matrix {
  double x, y, width, height;  // on the picture
  const HeldValue& value;

  double left(std::int64_t column) const { return x + width * static_cast<double>(column) / static_cast<double>(value.columns); }
  double top(std::int64_t row) const { return y + height * static_cast<double>(row) / static_cast<double>(value.all_rows()); }
};

// The boxes of a part, with its devices in the largest if they fit.
std::string drawn_part(const Matrix& matrix, const HeldPart& part, std::size_t number) {
  std::string out = concat("<g><title>devices ", devices_text(part), ": ", escape_markup(boxes_text(matrix.value, part)), "</title>");
  std::string label;
  double most = 0;
  for (const HeldBox& box : part.boxes) {
    const double x = matrix.left(box.column_begin), y = matrix.top(box.row_begin), width = matrix.left(box.column_end) - x,
                 height = matrix.top(box.row_end) - y;
    out += field(fill_of(part, number), x, y, width, height);
    if (part.terms.size() > 1) out += field("class=\"hatched\"", x, y, width, height);
    const double text_width = kLetterWidth * static_cast<double>(devices_text(part).size()) + 6;
    if (text_width > width || height < kTextLine || width * height <= most) continue;
    most = width * height;
    label = said("on", x + width / 2, y + height / 2 + 4, devices_text(part));
  }
  return out + "</g>\n" + label;
}

double matrix_height(const HeldValue& value) {
  const double wanted = kMatrixWidth * static_cast<double>(value.all_rows()) / static_cast<double>(value.columns);
  return std::clamp(wanted, std::clamp(kBand * static_cast<double>(value.bands.size()), kLeastMatrix, kMostMatrix), kMostMatrix);
}

// A line for each part: its colour, its devices and what they have.
std::string legend_of(const HeldValue& value, double& y) {
  constexpr auto kLetters = static_cast<std::size_t>((kPictureWidth - kLegendLeft - 30) / kLetterWidth);
  const auto shortened = [](const std::string& text) {
    return text.size() <= kLetters ? text : concat(text.substr(0, kLetters - 3), "...");
  };
  std::string out;
  for (std::size_t p = 0; p < std::min(value.parts.size(), kMostInLegend); ++p) {
    const HeldPart& part = value.parts[p];
    out += concat(field(fill_of(part, p), kLegendLeft, y - 10, 14, 12),
                  part.terms.size() > 1 ? field("class=\"hatched\"", kLegendLeft, y - 10, 14, 12) : "",
                  said("plain", kLegendLeft + 20, y, shortened(devices_text(part))),
                  said("small", kLegendLeft + 20, y + kTextLine - 3, shortened(boxes_text(value, part))));
    y += 2 * kTextLine;
  }
  if (value.parts.size() > kMostInLegend)
    out += said("small", kLegendLeft, y, concat("and ", value.parts.size() - kMostInLegend, " parts more")), y += kTextLine;
  const bool has_terms = std::any_of(value.parts.begin(), value.parts.end(), [](const HeldPart& part) { return part.terms.size() > 1; });
  if (has_terms) out += said("small", kLegendLeft, y, "hatched: the tensor is the sum of what these have"), y += kTextLine;
  return out;
}

Sketch value_sketch(const HeldValue& value) {
  std::string out = said("name", kSide, 14, value.name) + said("small", kSide, 14 + kTextLine, value.what);
  const Matrix matrix{kMatrixLeft, 62, kMatrixWidth, matrix_height(value), value};
  out += said("middle small", matrix.x + matrix.width / 2, matrix.y - 8, value.column_text);
  for (std::size_t p = 0; p < value.parts.size(); ++p) out += drawn_part(matrix, value.parts[p], p);
  const double beside = matrix.x - 10;  // where texts beside the rows end
  const bool fits = value.bands.empty() && kSide + kLetterWidth * static_cast<double>(value.row_text.size()) < beside;
  if (fits) out += said("end small", beside, matrix.y + matrix.height / 2 + 4, value.row_text);
  for (std::size_t b = 0; b < value.bands.size(); ++b) {
    const double top = matrix.top(static_cast<std::int64_t>(b) * value.rows), height = matrix.top(value.rows) - matrix.y;
    if (height >= kTextLine) out += said("end small", beside, top + height / 2 + 4, value.bands[b]);
    if (b > 0) out += concat("<path class=\"between\" d=\"M", px(matrix.x - 6), " ", px(top), "h", px(matrix.width + 12), "\"/>\n");
  }
  double legend = matrix.y + 10;
  out += legend_of(value, legend);
  double y = std::max(matrix.y + matrix.height + kTextLine + 4, legend);
  std::vector<std::string> notes = value.notes;
  if (!fits && !value.row_text.empty())
    notes.insert(notes.begin(), concat(value.bands.empty() ? "rows: " : "rows of each replica: ", value.row_text));
  for (const std::string& note : notes) out += said("small", kMatrixLeft, y, note), y += kTextLine;
  return {out, y + 12};
}

// On a page the colours are the page's; a picture on its own has them from here, for a bright and a dark ground.
constexpr const char* kMeshStyle =
    "<style>\n.mesh text { font: 12px ui-monospace, 'DejaVu Sans Mono', monospace; fill: #1a1a1a; fill: var(--ink, #1a1a1a); white-space: "
    "pre; "
    "}\n.mesh .title { font: 600 17px system-ui, sans-serif; }\n.mesh .name { font-weight: 600; }\n"
    ".mesh .small { fill: #444; fill: var(--faint, #444); }\n.mesh .middle { text-anchor: middle; }\n.mesh .end { text-anchor: end; }\n"
    ".mesh .on { text-anchor: middle; fill: #1a1a1a; }\n"
    ".mesh .box { fill: #f4f5f7; fill: var(--stripe, #f4f5f7); stroke: #888; stroke-width: .8; }\n"
    ".mesh .part { stroke: #555; stroke-width: .8; }\n.mesh .hatched { fill: url(#mesh-hatch); }\n"
    ".mesh .level, .mesh .group { fill: none; stroke-width: 1.6; }\n.mesh .between { stroke: #1a1a1a; stroke: var(--ink, #1a1a1a); }\n"
    ".mesh .ground { fill: #fff; fill: var(--ground, #fff); stroke: none; }\n"
    "@media (prefers-color-scheme: dark) {\n.mesh text { fill: #e6e9ee; fill: var(--ink, #e6e9ee); }\n"
    ".mesh .small { fill: #98a2b0; fill: var(--faint, #98a2b0); }\n.mesh .on { fill: #1a1a1a; }\n"
    ".mesh .box { fill: #191d23; fill: var(--stripe, #191d23); }\n.mesh .between { stroke: #e6e9ee; stroke: var(--ink, #e6e9ee); }\n"
    ".mesh .ground { fill: #14171c; fill: var(--ground, #14171c); }\n}\n</style>\n"
    "<defs><pattern id=\"mesh-hatch\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\"><path d=\"M0 8L8 0\" stroke=\"#555\" "
    "stroke-width=\".8\"/></pattern></defs>\n";

}  // namespace

std::string mesh_svg(const MeshPicture& picture) {
  if (picture.mesh.devices.size() > kMostDevicesDrawn)
    throw Error(concat("a picture shows up to ", kMostDevicesDrawn, " devices, the mesh is of ", picture.mesh.devices.size()), {},
                "--out FILE.txt, or a smaller mesh of the same axes");
  std::vector<Sketch> sketches = {mesh_sketch(picture)};
  for (const HeldValue& value : picture.values) sketches.push_back(value_sketch(value));
  double y = 66;
  std::string body;
  for (const Sketch& sketch : sketches) {
    body += concat("<g transform=\"translate(0 ", px(y), ")\">\n", sketch.body, "</g>\n");
    y += sketch.height + 14;
  }
  const std::string size = concat("width=\"", px(kPictureWidth), "\" height=\"", px(y), "\"");
  const std::string what = concat(picture.mesh.devices.size(), " devices in groups, as the axes ", text_of(picture.mesh), " make them",
                                  picture.values.empty() ? "" : "; below, which part of each tensor they have", ".");
  return concat(open_svg(px(kPictureWidth), px(y), picture.title, what), kMeshStyle, "<g class=\"mesh\">\n<rect class=\"ground\" ", size,
                "/>\n", said("title", kSide, 26, picture.title),
                said("small", kSide, 46, concat("mesh: ", text_of(picture.mesh), "; beside each axis what it sends in a step")), body,
                "</g>\n</svg>\n");
}

}  // namespace penstock
