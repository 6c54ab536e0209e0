// SPDX-License-Identifier: Apache-2.0
#include "report/metrics_svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"
#include "report/table.h"
#include "report/timeline_parts.h"

namespace penstock {
namespace {

// All lengths are pixels of the picture at its natural size.
constexpr double kCurvesWidth = 1100, kCurvesLeft = 70, kCurvesRight = 24;
constexpr double kLossTop = 34, kLossHeight = 230, kRateTop = 320, kRateHeight = 90, kCurvesHeight = kRateTop + kRateHeight + 50;

struct CurvePoint {
  double x = 0, y = 0;  // a step, and its value
};

// Where a panel draws values from `low` to `high` over the steps from `first` to `last`.
struct Panel {
  double top = 0, height = 0;
  double first = 0, last = 1, low = 0, high = 1;

  double x(double step) const { return kCurvesLeft + (step - first) / (last - first) * (kCurvesWidth - kCurvesLeft - kCurvesRight); }
  double y(double value) const { return top + (high - value) / (high - low) * height; }
};

// The points of each pixel's column that its line needs: first, least, largest and last.
std::vector<CurvePoint> thinned(const Panel& panel, const std::vector<CurvePoint>& points) {
  std::vector<CurvePoint> out;
  const auto column = [&](std::size_t i) { return std::floor(panel.x(points[i].x)); };
  for (std::size_t begin = 0, end = 0; begin < points.size(); begin = end) {
    std::size_t least = begin, largest = begin;
    for (end = begin; end < points.size() && column(end) == column(begin); ++end) {
      if (points[end].y < points[least].y) least = end;
      if (points[end].y > points[largest].y) largest = end;
    }
    for (const std::size_t i : std::set<std::size_t>{begin, least, largest, end - 1}) out.push_back(points[i]);
  }
  return out;
}

std::string line_of(const Panel& panel, const std::vector<CurvePoint>& points, std::string_view look) {
  std::string path;
  for (const CurvePoint& point : thinned(panel, points))
    path += concat(path.empty() ? "M" : "L", fixed(panel.x(point.x), 1), " ", fixed(panel.y(point.y), 1));
  if (points.size() == 1) path += "h.01";  // a line's round end shows it
  return path.empty() ? "" : concat("<path class=\"line ", look, "\" d=\"", path, "\"/>\n");
}

std::string dots_of(const Panel& panel, const std::vector<CurvePoint>& points) {
  std::string out;
  for (const CurvePoint& point : thinned(panel, points))
    out +=
        concat("<circle class=\"validation\" cx=\"", fixed(panel.x(point.x), 1), "\" cy=\"", fixed(panel.y(point.y), 1), "\" r=\"4\"/>\n");
  return out;
}

// Lines across the panel at round values, with their numbers.
std::string value_ticks(const Panel& panel, int count) {
  const TimeAxis axis = time_axis(panel.high - panel.low, count, false);
  std::string out;
  for (double value = std::ceil(panel.low / axis.step) * axis.step; value <= panel.high + 1e-9 * axis.step; value += axis.step) {
    const std::string y = fixed(panel.y(value), 1);
    out += concat("<path class=\"tick\" d=\"M", kCurvesLeft, " ", y, "H", kCurvesWidth - kCurvesRight, "\"/><text class=\"number\" x=\"",
                  kCurvesLeft - 8, "\" y=\"", y, "\" dy=\"4\">", value >= 1000 ? short_number(value) : axis.text(value), "</text>\n");
  }
  return out;
}

// Marks of whole steps below the panel, with their numbers.
std::string step_ticks(const Panel& panel) {
  const double step = std::max(1.0, time_axis(panel.last - panel.first, 10, false).step), bottom = panel.top + panel.height;
  std::string out;
  for (double at = std::ceil(panel.first / step) * step; at <= panel.last; at += step) {
    const std::string x = fixed(panel.x(at), 1);
    out += concat("<path class=\"tick\" d=\"M", x, " ", panel.top, "V", bottom + 4, "\"/><text class=\"step\" x=\"", x, "\" y=\"",
                  bottom + 18, "\">", fixed(at, 0), "</text>\n");
  }
  return out;
}

// The least and the largest value, with a little room; equal ones get room as well.
void fit(Panel& panel, const std::vector<CurvePoint>& points) {
  const auto [least, largest] =
      std::minmax_element(points.begin(), points.end(), [](const CurvePoint& a, const CurvePoint& b) { return a.y < b.y; });
  const double room = largest->y > least->y ? 0.05 * (largest->y - least->y) : std::max(0.5, 0.05 * std::abs(largest->y));
  panel.low = least->y - room;
  panel.high = largest->y + room;
}

// On a page the colours are the page's; a picture on its own has them from here, for a bright and a dark ground.
constexpr const char* kCurvesStyle =
    "<style>\n.curves text { font: 12px system-ui, sans-serif; fill: #1a1a1a; fill: var(--ink, #1a1a1a); }\n"
    ".curves .heading { font-weight: 600; }\n.curves .number, .curves .step { font-size: 11px; fill: #555; fill: var(--faint, #555); }\n"
    ".curves .number { text-anchor: end; }\n.curves .step { text-anchor: middle; }\n"
    ".curves .tick { stroke: #d8dde4; stroke: var(--line, #d8dde4); }\n.curves .ground { fill: #fff; fill: var(--ground, #fff); }\n"
    ".curves .line { fill: none; stroke-width: 1.6; stroke-linejoin: round; stroke-linecap: round; }\n"
    ".curves .loss { stroke: #0072b2; }\n.curves .rate { stroke: #00795a; }\n"
    ".curves .validation { fill: #d55e00; stroke: #fff; stroke: var(--ground, #fff); }\n"
    "@media (prefers-color-scheme: dark) {\n.curves text { fill: #e6e9ee; fill: var(--ink, #e6e9ee); }\n"
    ".curves .number, .curves .step { fill: #98a2b0; fill: var(--faint, #98a2b0); }\n"
    ".curves .tick { stroke: #303742; stroke: var(--line, #303742); }\n.curves .ground { fill: #14171c; fill: var(--ground, #14171c); }\n"
    ".curves .loss { stroke: #56b4e9; }\n.curves .rate { stroke: #2ec49a; }\n.curves .validation { stroke: #14171c; }\n}\n</style>\n";

struct Curves {
  std::vector<CurvePoint> loss, validation, rate;
};

Curves curves_of(const std::vector<StepMetrics>& steps) {
  Curves out;
  for (const StepMetrics& metrics : steps) {
    const auto step = static_cast<double>(metrics.step);
    out.loss.push_back({step, metrics.loss});
    out.rate.push_back({step, metrics.rate});
    if (metrics.validation_loss) out.validation.push_back({step, *metrics.validation_loss});
  }
  return out;
}

// The picture in words.
std::string words_of(const std::vector<StepMetrics>& steps, const Curves& curves) {
  const StepMetrics &first = steps.front(), &last = steps.back();
  return concat("The loss goes from ", short_decimal(first.loss, 4), " at step ", first.step, " to ", short_decimal(last.loss, 4),
                " at step ", last.step,
                curves.validation.empty() ? "" : concat("; the last validation loss is ", short_decimal(curves.validation.back().y, 4)),
                "; half of the steps reach ", short_number(median_of(steps, &StepMetrics::rate)), " ", last.counted, "/s or more.");
}

StepMetrics metrics_of(const nlohmann::json& line) {
  StepMetrics out;
  out.step = line.at("step").get<std::int64_t>();
  out.loss = line.at("loss").get<double>();
  if (line.contains("validation_loss")) out.validation_loss = line["validation_loss"].get<double>();
  out.seconds = line.at("seconds").get<double>();
  out.counted = line.contains("samples_per_second") ? "samples" : "tokens";
  out.rate = line.at(out.counted + "_per_second").get<double>();
  return out;
}

}  // namespace

std::vector<StepMetrics> parse_metrics(std::string_view lines, const std::string& file) {
  std::map<std::int64_t, StepMetrics> steps;
  std::size_t number = 0;
  for (const std::string& line : split(lines, '\n')) {
    ++number;
    if (line.empty()) continue;
    try {
      const StepMetrics metrics = metrics_of(nlohmann::json::parse(line));
      steps[metrics.step] = metrics;
    } catch (const nlohmann::json::exception&) {
      throw Error(concat(file, ":", number, ": the line is no step's metrics"), {printable(line.substr(0, 80))},
                  "each line is a JSON object with step, loss, seconds and tokens_per_second or samples_per_second; a last line that was "
                  "cut off is "
                  "dropped by penstock train --resume");
    }
  }
  std::vector<StepMetrics> out;
  for (const auto& [step, metrics] : steps) out.push_back(metrics);
  return out;
}

double median_of(const std::vector<StepMetrics>& steps, double StepMetrics::* figure) {
  if (steps.empty()) return 0;
  std::vector<double> values;
  for (const StepMetrics& metrics : steps) values.push_back(metrics.*figure);
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string metrics_svg(const std::vector<StepMetrics>& steps) {
  const Curves curves = curves_of(steps);
  const std::string& counted = steps.back().counted;
  const auto first = static_cast<double>(steps.front().step), last = std::max(first + 1, static_cast<double>(steps.back().step));
  Panel loss{kLossTop, kLossHeight, first, last}, rate{kRateTop, kRateHeight, first, last};
  std::vector<CurvePoint> losses = curves.loss;
  losses.insert(losses.end(), curves.validation.begin(), curves.validation.end());
  fit(loss, losses);
  fit(rate, curves.rate);
  rate.low = 0;
  const auto heading = [](double x, double y, const std::string& text) {
    return concat("<text class=\"heading\" x=\"", x, "\" y=\"", y, "\">", text, "</text>\n");
  };
  const std::string validation = curves.validation.empty()
                                     ? ""
                                     : concat("<circle class=\"validation\" cx=\"", kCurvesLeft + 286, "\" cy=\"", kLossTop - 18,
                                              "\" r=\"4\"/>\n", heading(kCurvesLeft + 296, kLossTop - 14, "validation loss"));
  return concat(open_svg(concat(kCurvesWidth), concat(kCurvesHeight), concat("Loss and ", counted, "/s of ", steps.size(), " steps"),
                         words_of(steps, curves)),
                kCurvesStyle, "<g class=\"curves\">\n<rect class=\"ground\" width=\"", kCurvesWidth, "\" height=\"", kCurvesHeight,
                "\"/>\n",
                heading(kCurvesLeft, kLossTop - 14, counted == "tokens" ? "loss (line), nats per token" : "loss (line), mean of the batch"),
                validation, value_ticks(loss, 6), step_ticks(loss), line_of(loss, curves.loss, "loss"), dots_of(loss, curves.validation),
                heading(kCurvesLeft, kRateTop - 14, counted + "/s"), value_ticks(rate, 5), step_ticks(rate),
                line_of(rate, curves.rate, "rate"), "<text class=\"step\" x=\"", (kCurvesLeft + kCurvesWidth - kCurvesRight) / 2, "\" y=\"",
                kCurvesHeight - 12, "\">step</text>\n</g>\n</svg>\n");
}

}  // namespace penstock
