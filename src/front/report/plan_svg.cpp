// SPDX-License-Identifier: Apache-2.0
#include "report/plan_svg.h"

#include <algorithm>
#include <numeric>

#include "base/numbers.h"
#include "base/text.h"
#include "base/words.h"
#include "report/table.h"
#include "report/timeline_json.h"
#include "report/timeline_parts.h"
#include "report/timeline_svg.h"

namespace penstock {
namespace {

// All lengths are pixels of the picture at its natural size.
constexpr double kBoxWidth = 240, kAcross = 78, kDown = 22, kEdgeRoom = 26, kMargin = 40, kTop = 64;
constexpr double kMostWidth = 1320;              // a picture this wide is full; further layers go on in a row below
constexpr double kRowGap = 34, kBesideGap = 15;  // room between two rows, and more for each edge that goes from one row to the next
// Inside a box; kBar: height of the share's bar below the last line.
constexpr double kPadding = 10, kFirstLine = 20, kLine = 16, kBar = 20;
constexpr double kLetter = 7.25;  // width of a character: the font is monospaced
constexpr double kTitleLetter = 10;
constexpr int kSweeps = 8;

// The place of a stage, or the point at which an edge crosses a layer between its ends.
struct Place {
  int stage = -1;  // -1: a point of an edge
  int layer = 0;
  double y = 0;  // of the middle
  std::vector<int> left = {}, right = {};
};

// Breaks the text into lines of at most so many characters: after a space or a sign between words where there is one in the second half of
// a line.
std::vector<std::string> wrapped(const std::string& text, std::size_t letters) {
  // Whether byte i continues a character (UTF-8).
  const auto continues = [&](std::size_t i) { return (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80; };
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = begin, count = 0, last_break = 0;
    for (; end < text.size() && (continues(end) || count < letters); ++end) {
      if (!continues(end)) ++count;
      if (std::string_view(" ,._-/:+").find(text[end]) != std::string_view::npos && count > letters / 2) last_break = end + 1;
    }
    if (end < text.size() && last_break > 0) end = last_break;
    lines.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return lines;
}

std::string place_of(const PlanFile::Stage& stage) {
  return concat(stage.devices.size() == 1 ? "device " : "devices ", devices_text(stage));
}

// The text in a stage's box: the lines of the name, then those of the figures.
struct StageText {
  std::vector<std::string> name, figures;
  std::size_t lines() const { return name.size() + figures.size(); }
};

StageText text_of(const PlanFile& plan, std::size_t number) {
  const PlanFile::Stage& stage = plan.stages[number];
  constexpr auto kLetters = static_cast<std::size_t>((kBoxWidth - 2 * kPadding) / kLetter);
  StageText out{wrapped(printable(concat(number, "  ", stage.name)), kLetters), {}};
  for (const std::string& figure :
       {place_of(stage), concat("micro-batch ", stage.micro_batch, stage.micro_batch == 1 ? " sample" : " samples"),
        concat("F ", time_text(stage.forward, true), ", B ", time_text(stage.backward, true)),
        concat(bytes_text(stage.bytes), ", ", stage.nodes.size(), stage.nodes.size() == 1 ? " node" : " nodes")})
    for (const std::string& line : wrapped(figure, kLetters)) out.figures.push_back(line);
  return out;
}

class PlanPicture {
 public:
  explicit PlanPicture(const PlanFile& plan) {
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      places.push_back({.stage = static_cast<int>(s)});
      texts.push_back(text_of(plan, s));
      box_height = std::max(box_height, kFirstLine + kLine * static_cast<double>(texts.back().lines() - 1) + kBar + 4);
    }
    std::vector<PlanFile::Link> links = plan.links;
    std::sort(links.begin(), links.end(), [](const auto& a, const auto& b) { return std::pair(a.to, a.from) < std::pair(b.to, b.from); });
    for (const PlanFile::Link& link : links) places[link.to].layer = std::max(places[link.to].layer, places[link.from].layer + 1);
    for (const PlanFile::Link& link : plan.links) paths.push_back(path_of(link));
    layers.resize(1);  // also where there is no stage
    for (std::size_t p = 0; p < places.size(); ++p) {
      layers.resize(std::max(layers.size(), at(places[p].layer) + 1));
      layers[places[p].layer].push_back(static_cast<int>(p));
    }
    for (int sweep = 0; sweep < kSweeps; ++sweep) order(sweep % 2 == 0);
    for (const std::vector<int>& layer : layers) place(layer);
    make_rows();
  }

  double x(int layer) const { return kMargin + layer % per_row_ * (kBoxWidth + kAcross); }
  double y(const Place& place) const { return rows_[row(place.layer)].middle + place.y; }
  int row(int layer) const { return layer / per_row_; }
  double width() const { return x(std::min(per_row_, static_cast<int>(layers.size())) - 1) + kBoxWidth + kMargin; }
  double row_bottom(int layer) const { return rows_[row(layer)].bottom; }
  double bottom() const { return rows_.back().bottom; }  // without the room for edges to a next row

  double box_height = 0;
  std::vector<StageText> texts;  // by stage
  std::vector<Place> places;
  std::vector<std::vector<int>> paths;   // by link: the link's places from left to right
  std::vector<std::vector<int>> layers;  // by layer: its places from top to bottom

 private:
  struct Row {
    double middle = 0, bottom = 0;
  };

  double height(const Place& place) const { return place.stage >= 0 ? box_height : kEdgeRoom; }

  // Deals the layers out to rows: each row gets as many as the others, or one less.
  void make_rows() {
    const auto count = static_cast<int>(layers.size());
    const int most = static_cast<int>((kMostWidth - 2 * kMargin + kAcross) / (kBoxWidth + kAcross)), rows = (count + most - 1) / most;
    per_row_ = (count + rows - 1) / rows;
    double top = kTop;
    for (int first = 0; first < count; first += per_row_) {
      double half = 0;
      for (int layer = first; layer < std::min(count, first + per_row_); ++layer)
        for (const int p : layers[layer]) half = std::max(half, places[p].y + height(places[p]) / 2);
      rows_.push_back({top + half, top + 2 * half});
      top = rows_.back().bottom + kRowGap + kBesideGap * static_cast<double>(edges_after(first + per_row_ - 1));
    }
  }

  std::size_t edges_after(int layer) const {
    std::size_t count = 0;
    if (at(layer) < layers.size())
      for (const int p : layers[layer]) count += places[p].right.size();
    return count;
  }

  std::vector<int> path_of(const PlanFile::Link& link) {
    std::vector<int> path = {link.from};
    for (int layer = places[link.from].layer + 1; layer < places[link.to].layer; ++layer) {
      path.push_back(static_cast<int>(places.size()));
      places.push_back({.layer = layer});
    }
    path.push_back(link.to);
    for (std::size_t i = 1; i < path.size(); ++i) {
      places[path[i - 1]].right.push_back(path[i]);
      places[path[i]].left.push_back(path[i - 1]);
    }
    return path;
  }

  // Orders each layer by the mean height of its neighbours on one side: few edges cross then (Sugiyama et al. 1981).
  void order(bool rightwards) {
    for (const std::vector<int>& layer : layers) place(layer);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      std::vector<int>& layer = layers[rightwards ? i : layers.size() - 1 - i];
      const auto wanted = [&](int p) {
        const std::vector<int>& side = rightwards ? places[p].left : places[p].right;
        double sum = 0;
        for (const int neighbour : side) sum += places[neighbour].y;
        return side.empty() ? places[p].y : sum / static_cast<double>(side.size());
      };
      std::stable_sort(layer.begin(), layer.end(), [&](int a, int b) { return wanted(a) < wanted(b); });
      place(layer);
    }
  }

  void place(const std::vector<int>& layer) {
    double y = 0;
    for (const int p : layer) {
      places[p].y = y + height(places[p]) / 2;
      y += height(places[p]) + kDown;
    }
    for (const int p : layer) places[p].y -= (y - kDown) / 2;  // centres the layer around 0
  }

  int per_row_ = 1;
  std::vector<Row> rows_;
};

std::string decimal(double value) {
  return short_decimal(value, 6);
}

double seconds_per_sample(const PlanFile::Stage& stage) {
  return (stage.forward + stage.backward) / stage.micro_batch;
}

std::string line_at(const char* style, double x, double y, const std::string& text) {
  return concat("<text class=\"", style, "\" x=\"", decimal(x), "\" y=\"", decimal(y), "\">", escape_markup(text), "</text>");
}

std::string box(const PlanFile& plan, const PlanPicture& picture, std::size_t number, double most) {
  const PlanFile::Stage& stage = plan.stages[number];
  const StageText& text = picture.texts[number];
  const double x = picture.x(picture.places[number].layer), y = picture.y(picture.places[number]) - picture.box_height / 2;
  const double share = most > 0 ? seconds_per_sample(stage) / most : 0;
  std::string out = concat("<g class=\"stage\"><title>", escape_markup(concat("stage ", number, ": ", join(stage.nodes, ", "))),
                           "</title><rect class=\"box\" x=\"", decimal(x), "\" y=\"", decimal(y), "\" width=\"", kBoxWidth, "\" height=\"",
                           decimal(picture.box_height), "\" rx=\"5\"/>");
  double line = y + kFirstLine;
  for (const std::string& part : text.name) out += line_at("name", x + kPadding, line, part), line += kLine;
  for (const std::string& part : text.figures) out += line_at("figure", x + kPadding, line, part), line += kLine;
  return out + concat("<rect class=\"load\" x=\"", decimal(x + kPadding), "\" y=\"", decimal(y + picture.box_height - 13), "\" width=\"",
                      decimal(share * (kBoxWidth - 2 * kPadding)), "\" height=\"5\"/></g>\n");
}

// Draws the edges. One from a row to the next goes beside the boxes, through the gap, at a height of its own.
class Edges {
 public:
  explicit Edges(const PlanPicture& picture) : picture_(picture), taken_(picture.layers.size(), 0) {}

  // The edge goes through the middle of each place, level at its sides. `label` gets the text with its bytes, to be drawn over all edges.
  std::string draw(const PlanFile::Link& link, const std::vector<int>& path, std::string& label) {
    std::string d;
    double label_x = 0, label_y = 0;
    for (std::size_t i = 1; i < path.size(); ++i) {
      const Place &a = picture_.places[path[i - 1]], &b = picture_.places[path[i]];
      const double x0 = picture_.x(a.layer) + kBoxWidth, x1 = picture_.x(b.layer), y0 = picture_.y(a), y1 = picture_.y(b);
      const bool next_row = picture_.row(a.layer) != picture_.row(b.layer);
      const double middle = (x0 + x1) / 2, beside = kBeside - 4 * std::min(taken_[a.layer], 4), gap = next_row ? gap_after(a.layer) : 0;
      if (i == 1) label_x = middle, label_y = next_row ? gap : (y0 + y1) / 2;
      d += concat(i == 1 ? concat("M", decimal(x0), " ", decimal(y0)) : concat("H", decimal(x0)));
      if (next_row)
        d += concat("h", beside, "V", decimal(gap), "H", decimal(x1 - beside), "V", decimal(y1), "H", decimal(x1));
      else
        d += concat("C", decimal(middle), " ", decimal(y0), " ", decimal(middle), " ", decimal(y1), " ", decimal(x1), " ", decimal(y1));
    }
    label = concat("<text class=\"bytes\" x=\"", decimal(label_x), "\" y=\"", decimal(label_y - 5), "\"><title>",
                   time_text(link.seconds, true), " for one micro-batch</title>", bytes_text(link.bytes), "</text>\n");
    return concat("<path class=\"edge\" d=\"", d, "\"/>\n");
  }

 private:
  static constexpr double kBeside = 26;

  double gap_after(int layer) { return picture_.row_bottom(layer) + kRowGap / 2 + 4 + kBesideGap * taken_[layer]++; }

  const PlanPicture& picture_;
  std::vector<int> taken_;  // by layer: how many heights are taken in the gap after it
};

std::string summary(const PlanFile& plan) {
  return concat("a step of ", counted(plan.samples, "sample"), " in ", counted(plan.microbatches, "micro-batch"), ": ",
                time_text(plan.predicted_time, true));
}

struct Drawing {
  std::string body;
  double width = 0, height = 0;
};

// On a page the colours are the page's; a picture on its own has them from here, for a bright and a dark ground.
constexpr const char* kStyle =
    "<style>\n.plan text { font: 12px ui-monospace, 'DejaVu Sans Mono', monospace; fill: #1a1a1a; fill: var(--ink, #1a1a1a); }\n"
    ".plan .title { font: 600 17px system-ui, sans-serif; }\n.plan .name { font-weight: 600; }\n"
    ".plan .figure, .plan .bytes, .plan .small { fill: #444; fill: var(--faint, #444); }\n"
    ".plan .bytes { text-anchor: middle; }\n"
    "@supports (paint-order: stroke) {\n"
    ".plan .bytes { paint-order: stroke; stroke: #fff; stroke: var(--ground, #fff); stroke-width: 4px; }\n}\n"
    ".plan .box { fill: #f4f5f7; fill: var(--stripe, #f4f5f7); stroke: #888; stroke-width: .8; }\n"
    ".plan .load { fill: #0072b2; stroke: none; }\n"
    ".plan .edge { fill: none; stroke: #777; stroke-width: 1.2; marker-end: url(#plan-tip); }\n"
    ".plan .ground { fill: #fff; fill: var(--ground, #fff); stroke: none; }\n"
    "@media (prefers-color-scheme: dark) {\n.plan text { fill: #e6e9ee; fill: var(--ink, #e6e9ee); }\n"
    ".plan .figure, .plan .bytes, .plan .small { fill: #98a2b0; fill: var(--faint, #98a2b0); }\n"
    ".plan .bytes { stroke: #14171c; stroke: var(--ground, #14171c); }\n"
    ".plan .box { fill: #191d23; fill: var(--stripe, #191d23); }\n.plan .load { fill: #56b4e9; }\n"
    ".plan .ground { fill: #14171c; fill: var(--ground, #14171c); }\n}\n</style>\n"
    "<defs><marker id=\"plan-tip\" markerWidth=\"7\" markerHeight=\"8\" refX=\"6\" refY=\"4\" orient=\"auto\"><path d=\"M0 0L7 4L0 8z\" "
    "fill=\"#777\"/></marker></defs>\n";

Drawing drawing_of(const PlanFile& plan) {
  const PlanPicture picture(plan);
  Edges edges(picture);
  Drawing out{"", picture.width(), picture.bottom() + kMargin / 2};
  std::string labels;
  for (std::size_t l = 0; l < plan.links.size(); ++l) {
    std::string label;
    out.body += edges.draw(plan.links[l], picture.paths[l], label);
    labels += label;
  }
  double most = 0;
  for (const PlanFile::Stage& stage : plan.stages) most = std::max(most, seconds_per_sample(stage));
  for (std::size_t s = 0; s < plan.stages.size(); ++s) out.body += box(plan, picture, s, most);
  out.body += labels;
  return out;
}

// `below` is a picture of this size to stand under the stages.
std::string picture(const PlanFile& plan, const std::string& below = {}, double below_width = 0, double below_height = 0) {
  const Drawing drawing = drawing_of(plan);
  const std::string heading = printable(concat(plan.model, " on ", plan.cluster, ", by ", plan.planner));
  const std::vector<std::string> lines = wrapped(heading, static_cast<std::size_t>(kMostWidth / kTitleLetter));
  const double down = 22 * static_cast<double>(lines.size() - 1);
  const double heading_width = kTitleLetter * static_cast<double>(lines.size() > 1 ? heading.size() : lines.front().size()) + 2 * kMargin;
  const double width = std::max({std::min(heading_width, kMostWidth), drawing.width, below_width}), height = drawing.height + down;
  std::string titles;
  for (std::size_t i = 0; i < lines.size(); ++i) titles += line_at("title", 8, 24 + 22 * static_cast<double>(i), lines[i]);
  const std::string size = concat("width=\"", decimal(width), "\" height=\"", decimal(height + below_height), "\"");
  const std::string what =
      concat(counted(static_cast<std::int64_t>(plan.stages.size()), "stage"), " as boxes, with lines for what one sends to the next",
             below.empty() ? "" : "; the simulated step below", ".");
  return concat(open_svg(decimal(width), decimal(height + below_height), heading, what), kStyle,
                "<g class=\"plan\">\n<rect class=\"ground\" ", size, "/>\n", titles, line_at("small", 8, 42 + down, summary(plan)),
                "\n<g transform=\"translate(0 ", decimal(down), ")\">\n", drawing.body, "</g>\n</g>\n",
                below.empty() ? "" : concat("<g transform=\"translate(0 ", decimal(height), ")\">", below, "</g>"), "</svg>\n");
}

// The number that an attribute of the first element has.
double attribute_of(const std::string& svg, const std::string& name) {
  const std::size_t begin = svg.find(concat(" ", name, "=\"")) + name.size() + 3;
  return std::stod(svg.substr(begin, svg.find('"', begin) - begin));
}

}  // namespace

std::optional<Timeline> timeline_in(const PlanFile& plan) {
  if (plan.timeline.empty()) return std::nullopt;
  return parse_timeline(plan.timeline, plan.file);
}

std::string plan_svg(const PlanFile& plan, const std::optional<Timeline>& timeline) {
  if (!timeline) return picture(plan);
  const std::string below = timeline_svg(*timeline);
  return picture(plan, below, attribute_of(below, "width"), attribute_of(below, "height"));
}

std::string plan_text(const PlanFile& plan) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const PlanFile::Stage& stage = plan.stages[s];
    std::vector<std::string> before;
    for (const PlanFile::Link& link : plan.links)
      if (link.to == static_cast<int>(s)) before.push_back(std::to_string(link.from));
    rows.push_back({concat(s, " ", stage.name), before.empty() ? "-" : join(before, ","), std::to_string(stage.nodes.size()),
                    place_of(stage), std::to_string(stage.micro_batch), time_text(stage.forward, true), time_text(stage.backward, true),
                    bytes_text(stage.bytes)});
  }
  return concat(plan.model, " on ", plan.cluster, ", by ", plan.planner, "; ", summary(plan), "\n\n",
                table({"stage", "after", "nodes", "devices", "micro-batch", "forward", "backward", "memory"}, rows));
}

}  // namespace penstock
