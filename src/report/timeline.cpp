#include "report/timeline.h"

#include <algorithm>
#include <array>

#include "base/text.h"
#include "report/table.h"

namespace penstock {
namespace {

// Okabe & Ito's palette, which people with colour blindness can tell apart; in the legend's order.
struct Look {
  const char* kind;
  const char* colour;
  const char* meaning;
  char letter;
};
constexpr std::array kLooks = {
    Look{"F", "#56b4e9", "forward", 'F'},
    Look{"B", "#e69f00", "backward", 'B'},
    Look{"I", "#f0e442", "input gradients", 'I'},
    Look{"W", "#009e73", "weight gradients", 'W'},
    Look{"R", "#d55e00", "recomputation", 'R'},
    Look{"update", "#cc79a7", "before and after the loop", 'U'},
    Look{"transfer", "#999999", "transfers and data", '-'},
};

const Look& look_of(const std::string& kind) {
  const auto* it = std::find_if(kLooks.begin(), kLooks.end(), [&](const Look& look) { return kind == look.kind; });
  return it == kLooks.end() ? kLooks.back() : *it;
}

std::string escape(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

std::int64_t end_of(const Timeline& timeline) {
  std::int64_t end = 1;
  for (const auto& boxes : timeline.devices)
    for (const TimelineBox& box : boxes) end = std::max(end, box.end);
  return end;
}

std::string kind_of(const Instruction& instruction) {
  if (instruction.opcode != Opcode::run) return "transfer";
  return instruction.action ? std::string(name(instruction.kind)) : "update";
}

std::string duration_text(std::int64_t ns) {
  const double us = static_cast<double>(ns) / 1e3;
  return us < 1000 ? fixed(us, 1) + " us" : fixed(us / 1000, 2) + " ms";
}

// SVG units; the page scales them to its width.
constexpr double kWidth = 1600, kLeft = 90, kRow = 44, kTop = 10, kAxis = 30;

std::string box_svg(const TimelineBox& box, double y, double scale) {
  const double x = kLeft + static_cast<double>(box.begin) * scale, width = std::max(0.4, static_cast<double>(box.end - box.begin) * scale);
  std::string out = concat("<g><title>", escape(box.detail), "\n", duration_text(box.end - box.begin), ", from ", duration_text(box.begin),
                           "</title><rect x=\"", fixed(x, 2), "\" y=\"", fixed(y + 4, 0), "\" width=\"", fixed(width, 2), "\" height=\"",
                           fixed(kRow - 8, 0), "\" fill=\"", look_of(box.kind).colour, "\"/>");
  const double needed = 8.0 * static_cast<double>(box.label.size());
  if (width > needed)
    out += concat("<text x=\"", fixed(x + width / 2, 2), "\" y=\"", fixed(y + kRow / 2 + 5, 0), "\" text-anchor=\"middle\">",
                  escape(box.label), "</text>");
  return out + "</g>\n";
}

std::string axis_svg(std::int64_t end, double y, double scale) {
  std::string out;
  constexpr int kTicks = 8;
  for (int i = 0; i <= kTicks; ++i) {
    const std::int64_t at = end * i / kTicks;
    const double x = kLeft + static_cast<double>(at) * scale;
    out += concat("<line x1=\"", fixed(x, 1), "\" x2=\"", fixed(x, 1), "\" y1=\"", fixed(kTop, 0), "\" y2=\"", fixed(y, 0),
                  "\" stroke=\"#8884\"/><text x=\"", fixed(x, 1), "\" y=\"", fixed(y + 18, 0), "\" text-anchor=\"middle\">",
                  duration_text(at), "</text>\n");
  }
  return out;
}

}  // namespace

Timeline timeline_of(const Program& program, const StepResult& result, const std::string& title) {
  Timeline timeline{title, std::vector<std::vector<TimelineBox>>(program.devices.size())};
  for (const DeviceReport& report : result.devices) {
    for (const Span& span : report.spans) {
      if (span.waited) continue;
      const auto device = static_cast<std::size_t>(span.device);
      const Instruction& instruction = program.devices[device].instructions[span.instruction];
      const std::string kind = kind_of(instruction);
      const std::string label = instruction.action ? concat(name(instruction.kind), instruction.microbatch) : std::string();
      timeline.devices[device].push_back({kind, label, describe(program, span.device, span.instruction), span.begin, span.end});
    }
  }
  return timeline;
}

std::string timeline_text(const Timeline& timeline, int columns) {
  const double scale = columns / static_cast<double>(end_of(timeline));
  std::string out = timeline.title + "\n";
  for (std::size_t device = 0; device < timeline.devices.size(); ++device) {
    std::string row(static_cast<std::size_t>(columns), '.');
    std::vector<double> most(row.size(), 0);
    for (const TimelineBox& box : timeline.devices[device]) {
      const double begin = static_cast<double>(box.begin) * scale, end = static_cast<double>(box.end) * scale;
      for (auto column = static_cast<std::size_t>(begin); column < row.size() && static_cast<double>(column) < end; ++column) {
        const double share = std::min(end, static_cast<double>(column + 1)) - std::max(begin, static_cast<double>(column));
        if (share <= most[column]) continue;
        most[column] = share;
        row[column] = look_of(box.kind).letter;
      }
    }
    out += concat("device ", device, " ", row, "\n");
  }
  return out;
}

std::string timeline_html(const Timeline& timeline) {
  const std::int64_t end = end_of(timeline);
  const double scale = (kWidth - kLeft - 40) / static_cast<double>(end);
  std::string rows, legend;
  double y = kTop;
  for (std::size_t device = 0; device < timeline.devices.size(); ++device, y += kRow) {
    rows += concat("<text x=\"8\" y=\"", fixed(y + kRow / 2 + 5, 0), "\">device ", device, "</text>\n");
    for (const TimelineBox& box : timeline.devices[device]) rows += box_svg(box, y, scale);
  }
  for (const Look& look : kLooks)
    legend += concat("<span><i style=\"background:", look.colour, "\"></i>", look.letter, " ", look.meaning, "</span>\n");
  return concat("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>", escape(timeline.title),
                "</title>\n<style>\n"
                "body { font: 15px system-ui, sans-serif; margin: 1.5em; color-scheme: light dark; }\n"
                "svg { width: 100%; height: auto; } svg text { font-size: 14px; fill: currentColor; } svg g text { fill: #000; }\n"
                "rect:hover { stroke: currentColor; stroke-width: 2; }\n"
                "span { margin-right: 1.5em; white-space: nowrap; }\n"
                "i { display: inline-block; width: 1em; height: 1em; margin-right: .4em; vertical-align: -.1em; }\n"
                "</style></head><body>\n<h1>",
                escape(timeline.title), "</h1>\n<p>", legend, "</p>\n<svg viewBox=\"0 0 ", fixed(kWidth, 0), " ", fixed(y + kAxis, 0),
                "\">\n", axis_svg(end, y, scale), rows, "</svg>\n<p>Point at a box for its task and duration.</p>\n</body></html>\n");
}

}  // namespace penstock
