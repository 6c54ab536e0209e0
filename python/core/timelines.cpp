// SPDX-License-Identifier: Apache-2.0
// Timelines as Python's rows, and as pictures.
#include <pybind11/stl.h>

#include <nlohmann/json.hpp>

#include "json_objects.h"
#include "penstock/timeline.h"
#include "report/figures_json.h"
#include "report/timeline_json.h"
#include "report/timeline_parts.h"
#include "report/timeline_svg.h"
#include "report/timeline_text.h"
#include "schedules.h"

namespace py = pybind11;

namespace penstock {
namespace {

constexpr const char* kLaneNames[] = {"compute", "transfer", "host"};

py::object number_or_none(std::int32_t number) {
  return number < 0 ? py::object(py::none()) : py::object(py::int_(number));
}

// One dict for each activity; None where a column says nothing of it.
py::list rows_of(const Timeline& timeline) {
  py::list out;
  for (const Activity& activity : timeline.activities) {
    const bool staged = activity.stage >= 0;
    const StagePart part = staged ? part_of(activity.stage, timeline.slices, timeline.blocks) : StagePart();
    py::dict row;
    row["device"] = activity.device;
    row["lane"] = kLaneNames[static_cast<std::size_t>(activity.lane)];
    row["kind"] = activity.action ? py::object(py::str(std::string(name(activity.kind)))) : py::object(py::none());
    row["stage"] = number_or_none(staged ? part.stage : -1);
    row["slice"] = number_or_none(staged && timeline.slices > 1 ? part.slice : -1);
    row["microbatch"] = number_or_none(activity.microbatch);
    row["begin"] = activity.begin;
    row["end"] = activity.end;
    row["duration"] = activity.end - activity.begin;
    row["peer"] = number_or_none(activity.peer);
    row["bytes"] = activity.bytes;
    row["task"] = activity.task < 0 ? py::object(py::none()) : py::object(py::str(timeline.tasks[static_cast<std::size_t>(activity.task)]));
    row["label"] = label(timeline, activity);
    out.append(row);
  }
  return out;
}

py::list memory_of(const Timeline& timeline) {
  py::list out;
  for (std::size_t device = 0; device < timeline.memory.size(); ++device)
    for (const MemoryPoint& point : timeline.memory[device]) {
      py::dict row;
      row["device"] = device;
      row["time"] = point.time;
      row["total"] = point.total();
      for (std::size_t c = 0; c < kMemoryClasses; ++c) row[py::str(std::string(name(static_cast<MemoryClass>(c))))] = point.amount[c];
      out.append(row);
    }
  return out;
}

// For drawings: (device, lane, look, chunk of its device, begin, end, micro-batch, slice), -1 where there is none.
py::list boxes_of(const Timeline& timeline) {
  const auto stages = stages_by_device(timeline);
  py::list out;
  for (const Activity& activity : timeline.activities) {
    const bool sliced = timeline.slices > 1 && activity.stage >= 0;
    const std::int32_t slice = sliced ? part_of(activity.stage, timeline.slices, timeline.blocks).slice : -1;
    out.append(py::make_tuple(activity.device, static_cast<int>(activity.lane), look_of(activity), chunk_of(stages, activity),
                              activity.begin, activity.end, activity.microbatch, slice));
  }
  return out;
}

}  // namespace

void bind_timelines(py::module_& module) {
  py::class_<Explanation>(module, "Explanation")
      .def("text", [](const Explanation& explanation, const Timeline& timeline) { return explanation_text(timeline, explanation); })
      .def("figures", [](const Explanation& explanation) { return object_of(figures_json(explanation)); });
  module.def("explain_timeline", [](const Timeline& timeline) { return explain(timeline); });
  module.def("parse_timeline", [](const std::string& json, const std::string& file) { return parse_timeline(json, file); });
  module.def("titled_timeline", [](Timeline timeline, const std::string& title) {
    timeline.title = title;
    return timeline;
  });
  // (title, names of devices, whether times are seconds, makespan, the most chunks of a device)
  module.def("timeline_facts", [](const Timeline& timeline) {
    return std::tuple(timeline.title, timeline.devices, timeline.seconds, timeline.makespan, most_chunks(stages_by_device(timeline)));
  });
  module.def("timelines_alike", [](const Timeline& a, const Timeline& b) { return a == b; });
  module.def("timeline_figures", [](const Timeline& timeline) { return object_of(figures_json(timeline)); });
  module.def("timeline_rows", &rows_of);
  module.def("timeline_memory", &memory_of);
  module.def("timeline_boxes", &boxes_of);
  module.def("timeline_svg", &timeline_svg);
  module.def("timeline_json", &timeline_json);
  module.def("timeline_text", [](const Timeline& timeline, int columns) { return timeline_text({timeline}, {columns, false}); });
  // (name, letter, colour, meaning) of each look, in the legend's order
  module.def("timeline_looks", [] {
    std::vector<std::tuple<std::string, std::string, std::string, std::string>> out;
    for (const Look& look : looks) out.emplace_back(look.name, std::string(1, look.letter), look.colour, look.meaning);
    return out;
  });
  module.def("chunk_shades", &chunk_shades);
  // (size, suffix) of the unit in which a time of about this size reads well
  module.def("time_unit", [](double time, bool seconds) {
    const TimeUnit unit = time_unit(time, seconds);
    return std::pair(unit.size, std::string(unit.suffix));
  });
}

}  // namespace penstock
