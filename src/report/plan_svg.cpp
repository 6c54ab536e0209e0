#include "report/plan_svg.h"

#include <algorithm>
#include <numeric>

#include "base/numbers.h"
#include "base/text.h"
#include "report/table.h"
#include "report/timeline_parts.h"
#include "report/timeline_svg.h"

namespace penstock {
namespace {

// Units are pixels of the picture at its natural size.
constexpr double kBoxWidth = 210, kBoxHeight = 92, kAcross = 90, kDown = 22, kEdgeRoom = 26, kMargin = 24, kTop = 64;
constexpr double kMostWidth = 1600;  // as a timeline's: wider ones are scaled
constexpr double kLetter = 6.6;      // width of a character
constexpr double kTitleLetter = 10;
constexpr int kSweeps = 8;

// A stage's place, or where an edge crosses a layer between its ends.
struct Place {
  int stage = -1;  // -1: of an edge
  int layer = 0;
  double y = 0;  // middle
  std::vector<int> left = {}, right = {};

  double height() const { return stage >= 0 ? kBoxHeight : kEdgeRoom; }
};

class Layout {
 public:
  explicit Layout(const PlanFile& plan) {
    for (std::size_t s = 0; s < plan.stages.size(); ++s) places.push_back({.stage = static_cast<int>(s)});
    std::vector<PlanFile::Link> links = plan.links;
    std::sort(links.begin(), links.end(), [](const auto& a, const auto& b) { return std::pair(a.to, a.from) < std::pair(b.to, b.from); });
    for (const PlanFile::Link& link : links)
      places[at(link.to)].layer = std::max(places[at(link.to)].layer, places[at(link.from)].layer + 1);
    for (const PlanFile::Link& link : plan.links) paths.push_back(path_of(link));
    for (std::size_t p = 0; p < places.size(); ++p) {
      layers.resize(std::max(layers.size(), at(places[p].layer) + 1));
      layers[at(places[p].layer)].push_back(static_cast<int>(p));
    }
    for (int sweep = 0; sweep < kSweeps; ++sweep) order(sweep % 2 == 0);
    settle();
  }

  double x(int layer) const { return kMargin + layer * (kBoxWidth + kAcross); }
  double width() const { return x(static_cast<int>(layers.size())) - kAcross + kMargin; }
  double height() const { return kTop + bottom_ + kMargin; }

  std::vector<Place> places;
  std::vector<std::vector<int>> paths;   // of each link: its places from left to right
  std::vector<std::vector<int>> layers;  // places from top to bottom

 private:
  std::vector<int> path_of(const PlanFile::Link& link) {
    std::vector<int> path = {link.from};
    for (int layer = places[at(link.from)].layer + 1; layer < places[at(link.to)].layer; ++layer) {
      path.push_back(static_cast<int>(places.size()));
      places.push_back({.layer = layer});
    }
    path.push_back(link.to);
    for (std::size_t i = 1; i < path.size(); ++i) {
      places[at(path[i - 1])].right.push_back(path[i]);
      places[at(path[i])].left.push_back(path[i - 1]);
    }
    return path;
  }

  // Each layer by the mean height of its neighbours on one side: few edges cross then (Sugiyama et al. 1981).
  void order(bool rightwards) {
    settle();
    for (std::size_t i = 0; i < layers.size(); ++i) {
      std::vector<int>& layer = layers[rightwards ? i : layers.size() - 1 - i];
      const auto wanted = [&](int p) {
        const std::vector<int>& side = rightwards ? places[at(p)].left : places[at(p)].right;
        double sum = 0;
        for (const int neighbour : side) sum += places[at(neighbour)].y;
        return side.empty() ? places[at(p)].y : sum / static_cast<double>(side.size());
      };
      std::stable_sort(layer.begin(), layer.end(), [&](int a, int b) { return wanted(a) < wanted(b); });
      place(layer);
    }
  }

  void place(const std::vector<int>& layer) {
    double y = 0;
    for (const int p : layer) {
      places[at(p)].y = y + places[at(p)].height() / 2;
      y += places[at(p)].height() + kDown;
    }
    for (const int p : layer) places[at(p)].y -= (y - kDown) / 2;  // around 0
  }

  void settle() {
    double most = 0;
    for (const std::vector<int>& layer : layers) {
      place(layer);
      most = std::max(most, places[at(layer.back())].y + places[at(layer.back())].height() / 2);
    }
    bottom_ = 2 * most;
  }

  double bottom_ = 0;
};

std::string decimal(double value) {
  return short_decimal(value, 6);
}

std::string fitting(const std::string& text, double width) {
  const auto letters = static_cast<std::size_t>(width / kLetter);
  if (text.size() <= letters) return text;
  const std::size_t half = (letters - 2) / 2;
  return concat(text.substr(0, half), "..", text.substr(text.size() - half));
}

std::string place_of(const PlanFile& plan, const PlanFile::Stage& stage) {
  const std::string devices = devices_text(plan, stage);
  return devices.starts_with("cpu") ? devices : concat(stage.devices.size() == 1 ? "device " : "devices ", devices);
}

double seconds_per_sample(const PlanFile::Stage& stage) {
  return (stage.forward + stage.backward) / stage.micro_batch;
}

std::string box(const PlanFile& plan, std::size_t number, double x, double middle, double most) {
  const PlanFile::Stage& stage = plan.stages[number];
  const double y = middle - kBoxHeight / 2, share = most > 0 ? seconds_per_sample(stage) / most : 0;
  const std::string lines[] = {concat(place_of(plan, stage), ", micro-batch ", stage.micro_batch),
                               concat("F ", time_text(stage.forward, true), ", B ", time_text(stage.backward, true)),
                               concat(bytes_text(stage.bytes), ", ", stage.nodes.size(), stage.nodes.size() == 1 ? " node" : " nodes")};
  std::string out =
      concat("<g><title>", escape_markup(concat("stage ", number, ": ", join(stage.nodes, ", "))), "</title><rect class=\"box\" x=\"",
             decimal(x), "\" y=\"", decimal(y), "\" width=\"", kBoxWidth, "\" height=\"", kBoxHeight, "\" rx=\"5\"/>");
  out += concat("<text class=\"name\" x=\"", decimal(x + 10), "\" y=\"", decimal(y + 20), "\">",
                escape_markup(fitting(concat(number, "  ", stage.name), kBoxWidth - 24)), "</text>");
  for (int i = 0; i < 3; ++i)
    out += concat("<text class=\"figure\" x=\"", decimal(x + 10), "\" y=\"", decimal(y + 38 + 16 * i), "\">",
                  escape_markup(fitting(lines[i], kBoxWidth - 16)), "</text>");
  return out + concat("<rect class=\"load\" x=\"", decimal(x + 10), "\" y=\"", decimal(y + kBoxHeight - 13), "\" width=\"",
                      decimal(share * (kBoxWidth - 20)), "\" height=\"5\"/></g>\n");
}

// Through the middle of each place, level at its sides. `label`: how many bytes, to be drawn over all edges.
std::string edge(const Layout& layout, const PlanFile::Link& link, const std::vector<int>& path, double down, std::string& label) {
  std::string d;
  double label_x = 0, label_y = 0;
  for (std::size_t i = 1; i < path.size(); ++i) {
    const Place &a = layout.places[at(path[i - 1])], &b = layout.places[at(path[i])];
    const double x0 = layout.x(a.layer) + kBoxWidth, x1 = layout.x(b.layer), y0 = a.y + down, y1 = b.y + down, middle = (x0 + x1) / 2;
    if (i == 1) {
      d = concat("M", decimal(x0), " ", decimal(y0));
      label_x = middle;
      label_y = (y0 + y1) / 2;
    } else {
      d += concat("H", decimal(x0));
    }
    d += concat("C", decimal(middle), " ", decimal(y0), " ", decimal(middle), " ", decimal(y1), " ", decimal(x1), " ", decimal(y1));
  }
  label = concat("<text class=\"bytes\" x=\"", decimal(label_x), "\" y=\"", decimal(label_y - 5), "\"><title>",
                 time_text(link.seconds, true), " for one micro-batch</title>", bytes_text(link.bytes), "</text>\n");
  return concat("<path class=\"edge\" d=\"", d, "\"/>\n");
}

std::string summary(const PlanFile& plan) {
  return concat("a step of ", plan.samples, " samples in ", plan.microbatches, " micro-batches: ", time_text(plan.predicted_time, true));
}

struct Drawing {
  std::string body;
  double width = 0, height = 0;
};

constexpr const char* kStyle =
    "<style>\n.plan text { font: 12px system-ui, sans-serif; fill: #1a1a1a; }\n.plan .title { font-size: 17px; font-weight: 600; }\n"
    ".plan .name { font-weight: 600; }\n.plan .figure, .plan .bytes, .plan .small { font-size: 11px; fill: #444; }\n"
    ".plan .bytes { text-anchor: middle; paint-order: stroke; stroke: #fff; stroke-width: 3px; }\n"
    ".plan .box { fill: #f4f5f7; stroke: #0006; }\n.plan .load { fill: #0072b2; stroke: none; }\n"
    ".plan .edge { fill: none; stroke: #555; stroke-width: 1.2; marker-end: url(#tip); }\n.plan .ground { fill: #fff; stroke: none; "
    "}\n</style>\n"
    "<defs><marker id=\"tip\" markerWidth=\"7\" markerHeight=\"8\" refX=\"6\" refY=\"4\" orient=\"auto\"><path d=\"M0 0L7 4L0 8z\" "
    "fill=\"#555\"/></marker></defs>\n";

Drawing drawing_of(const PlanFile& plan) {
  const Layout layout(plan);
  const double down = kTop + (layout.height() - kTop - kMargin) / 2;
  Drawing out{"", layout.width(), layout.height()};
  std::string labels;
  for (std::size_t l = 0; l < plan.links.size(); ++l) {
    std::string label;
    out.body += edge(layout, plan.links[l], layout.paths[l], down, label);
    labels += label;
  }
  out.body += labels;
  double most = 0;
  for (const PlanFile::Stage& stage : plan.stages) most = std::max(most, seconds_per_sample(stage));
  for (std::size_t s = 0; s < plan.stages.size(); ++s)
    out.body += box(plan, s, layout.x(layout.places[s].layer), layout.places[s].y + down, most);
  return out;
}

std::string picture(const PlanFile& plan, const std::string& below, double below_height) {
  const Drawing drawing = drawing_of(plan);
  const double scale = std::min(1.0, kMostWidth / drawing.width);
  const std::string heading = concat(plan.model, " on ", plan.cluster, ", by ", plan.planner);
  const double least = below.empty() ? kTitleLetter * static_cast<double>(heading.size()) + 2 * kMargin : kMostWidth;
  const double width = std::max(least, scale * drawing.width), height = scale * (drawing.height - kTop) + kTop;
  const std::string title = escape_markup(heading);
  const std::string size = concat("width=\"", decimal(width), "\" height=\"", decimal(height + below_height), "\"");
  return concat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", decimal(width), " ", decimal(height + below_height), "\" ",
                size, ">\n<title>", title, "</title>\n", kStyle, "<g class=\"plan\">\n<rect class=\"ground\" ", size,
                "/>\n<text class=\"title\" x=\"8\" y=\"24\">", title, "</text><text class=\"small\" x=\"8\" y=\"42\">", summary(plan),
                "</text>\n<g transform=\"translate(0 ", decimal(kTop * (1 - scale)), ") scale(", decimal(scale), ")\">\n", drawing.body,
                "</g>\n</g>\n", below, "</svg>\n");
}

// The number of an attribute of the first element.
double attribute_of(const std::string& svg, const std::string& name) {
  const std::size_t begin = svg.find(concat(" ", name, "=\"")) + name.size() + 3;
  return std::stod(svg.substr(begin, svg.find('"', begin) - begin));
}

}  // namespace

std::string plan_svg(const PlanFile& plan) {
  return picture(plan, "", 0);
}

std::string plan_svg(const PlanFile& plan, const Timeline& timeline) {
  const std::string below = timeline_svg(timeline);
  const Drawing drawing = drawing_of(plan);
  const double top = std::min(1.0, kMostWidth / drawing.width) * (drawing.height - kTop) + kTop;
  return picture(plan, concat("<g transform=\"translate(0 ", decimal(top), ")\">", below, "</g>"), attribute_of(below, "height"));
}

std::string plan_text(const PlanFile& plan) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const PlanFile::Stage& stage = plan.stages[s];
    std::vector<std::string> before;
    for (const PlanFile::Link& link : plan.links)
      if (link.to == static_cast<int>(s)) before.push_back(std::to_string(link.from));
    rows.push_back({concat(s, " ", stage.name), before.empty() ? "-" : join(before, ","), std::to_string(stage.nodes.size()),
                    place_of(plan, stage), std::to_string(stage.micro_batch), time_text(stage.forward, true),
                    time_text(stage.backward, true), bytes_text(stage.bytes)});
  }
  return concat(plan.model, " on ", plan.cluster, ", by ", plan.planner, "; ", summary(plan), "\n\n",
                table({"stage", "after", "nodes", "devices", "micro-batch", "forward", "backward", "memory"}, rows));
}

}  // namespace penstock
