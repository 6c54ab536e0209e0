// SPDX-License-Identifier: Apache-2.0
#include "report/timeline_html.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "report/page/parts.h"
#include "report/timeline_json.h"
#include "report/timeline_parts.h"
#include "simulate/explain.h"

namespace penstock {
namespace {

using nlohmann::ordered_json;

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const bool here = text.substr(at, from.size()) == from;
    out += here ? to : text.substr(at, 1);
    at += here ? from.size() : 1;
  }
  return out;
}

// The looks by which the script tells activities and memory classes apart.
ordered_json appearance(const std::vector<Timeline>& timelines) {
  ordered_json out = {{"transferLook", kTransferLook},
                      {"hostLook", kHostLook},
                      {"frozenLook", kFrozenLook},
                      {"updateLook", look_of(Kind::U)},
                      {"tile", kPatternTile}};
  for (const Look& look : looks)
    out["looks"].push_back({{"letter", std::string(1, look.letter)},
                            {"colour", look.colour},
                            {"edge", look.edge},
                            {"pattern", look.pattern},
                            {"meaning", look.meaning}});
  for (int kind = 0; kind <= static_cast<int>(Kind::RECV_B); ++kind) {
    out["lookOfKind"].push_back(look_of(static_cast<Kind>(kind)));
    out["words"][name(static_cast<Kind>(kind))] = words(static_cast<Kind>(kind));
  }
  std::size_t chunks = 1;
  for (const Timeline& timeline : timelines) chunks = std::max(chunks, most_chunks(stages_by_device(timeline)));
  out["shades"] = chunk_shades(chunks);
  for (std::size_t i = 0; i < kMemoryClasses; ++i)
    out["memory"].push_back(
        {{"name", name(static_cast<MemoryClass>(i))}, {"light", memory_colours[i].light}, {"dark", memory_colours[i].dark}});
  return out;
}

// The figures that the page shows of a timeline: those of `penstock simulate --explain`.
ordered_json figures_of(const Timeline& timeline) {
  const Explanation explanation = explain(timeline);
  ordered_json idle = ordered_json::array();
  for (const Idle& device : explanation.idle)
    idle.push_back({{"warm_up", device.warm_up},
                    {"dependency", device.dependency},
                    {"communication", device.communication},
                    {"host", device.host},
                    {"drain", device.drain}});
  const CriticalPath& path = explanation.path;
  return {{"bubble", explanation.bubble},
          {"busy", compute_times(timeline)},
          {"idle", idle},
          {"stages", stages_by_device(timeline)},
          {"path",
           {{"activities", path.activities},
            {"compute", path.compute},
            {"transfer", path.transfer},
            {"host", path.host},
            {"waiting", path.waiting}}}};
}

// One JSON object: appearance(), the timelines and their figures. It contains no "<", which could end the script element.
std::string data_of(const Page& page) {
  ordered_json look = appearance(page.timelines);
  for (const Timeline& timeline : page.timelines) look["figures"].push_back(figures_of(timeline));
  if (!page.peaks.empty() && !page.timelines.empty()) look["figures"][0]["peaks"] = page.peaks;
  std::string out = look.dump();
  out.pop_back();
  out += concat(",\"timelines\":[", join(page.timelines, ",\n", timeline_data), "]}");
  return replace_all(out, "<", "\\u003c");
}

std::string framed(const std::string& svg, std::string_view name) {
  return concat("<div class=\"picture\" tabindex=\"0\" role=\"group\" aria-label=\"", escape_markup(name), "\">", svg, "</div>");
}

// The warning and the picture between the title and the chart.
std::string head_of(const Page& page) {
  return concat(page.warning.empty() ? "" : concat("<p class=\"warning\">", escape_markup(page.warning), "</p>\n"),
                page.picture.empty() ? "" : framed(page.picture, "plan"));
}

// The chart and its script.
std::string chart_of(const Page& page, const std::string& title, const std::string& sections) {
  return concat(replace_all(replace_all(page_parts::body, "[[title]]", title), "[[head]]", head_of(page)), sections,
                "<script type=\"application/json\" id=\"data\">", data_of(page), "</script>\n<script>\n", page_parts::script,
                "</script>\n");
}

}  // namespace

std::string timeline_html(const Page& page) {
  const std::string title = escape_markup(page.title);
  std::string sections;
  for (const PageSection& section : page.sections)
    sections += concat(
        "<h2>", escape_markup(section.heading), "</h2>\n",
        section.text.starts_with("<svg") ? framed(section.text, section.heading) : concat("<pre>", escape_markup(section.text), "</pre>"),
        "\n");
  return concat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
      title, "</title>\n<style>\n", page_parts::style, "</style>\n</head>\n<body>\n",
      page.timelines.empty() ? concat("<h1>", title, "</h1>\n", head_of(page), sections) : chart_of(page, title, sections),
      "</body>\n</html>\n");
}

}  // namespace penstock
