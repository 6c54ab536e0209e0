// SPDX-License-Identifier: Apache-2.0
// Tables as Python's lists, what they take on a machine that numbers describe, and the search for them.
#include "schedules.h"

#include <pybind11/stl.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "json_objects.h"
#include "penstock/error.h"
#include "penstock/schedule.h"
#include "penstock/search.h"
#include "penstock/table.h"
#include "report/figures_json.h"
#include "report/schedule_text.h"
#include "rules/load_schedule.h"
#include "schedule/options.h"
#include "search/relieve.h"
#include "simulate/explain.h"
#include "simulate/table_machine.h"

namespace py = pybind11;

namespace penstock {
namespace {

ScheduleOptions options_from(const std::map<std::string, OptionValue>& given) {
  ScheduleOptions out;
  for (const auto& [name, value] : given) set_option(out, name, value);
  return out;
}

// By row: (stage, kind, micro-batch, slice, block, count, version, ahead, fused with the next), numbers below 0 where there is none.
py::list actions_of(const Schedule& schedule) {
  py::list rows;
  for (const std::vector<Action>& row : schedule.actors) {
    py::list actions;
    for (const Action& action : row) {
      const StagePart part = part_of(action.stage, schedule.slices, schedule.blocks);
      actions.append(py::make_tuple(part.stage, std::string(name(action.kind)), action.microbatch, part.slice, part.block, action.count,
                                    action.version, action.ahead, action.fused_with_next));
    }
    rows.append(actions);
  }
  return rows;
}

// (the table, figures by the names of `penstock schedule search --json`)
py::tuple search_table(const std::map<std::string, OptionValue>& shape, const SearchNumbers& search, const TableNumbers& numbers,
                       double seconds, std::uint64_t seed) {
  SearchResult found;
  {
    const py::gil_scoped_release release;
    found = search_schedule(problem_of(options_from(shape), search, numbers), {.seed = seed, .seconds = seconds});
  }
  return py::make_tuple(found.schedule, object_of(figures_json(found)));
}

std::optional<Schedule> relieved(const Schedule& given, const SearchNumbers& search, const TableNumbers& numbers) {
  Schedule schedule = sharded_by(numbers, given);
  const SearchProblem problem = problem_of(schedule, search, numbers);
  return relieve(problem, std::move(schedule));
}

Schedule by_rules_and_costs(const std::string& text, const std::string& file, const std::map<std::string, OptionValue>& given,
                            const TableNumbers& numbers) {
  return table_by(parse_rules(text, file), options_from(given), numbers);
}

// (name, title with its options, table, why there is none or ""), each schedule with the options that a search tries it with.
py::list tables_of_names(const std::map<std::string, OptionValue>& options) {
  std::vector<RegisteredTable> tables;
  {
    const py::gil_scoped_release release;
    tables = registered_tables(options_from(options));
  }
  py::list out;
  for (RegisteredTable& table : tables) {
    const std::string title = table.title();
    out.append(py::make_tuple(table.name, title, std::move(table.schedule), table.refused));
  }
  return out;
}

void bind_numbers(py::module_& module) {
  py::class_<NumberedLink>(module, "NumberedLink")
      .def(py::init([](int a, int b, std::optional<double> latency, std::optional<double> bandwidth) {
        return NumberedLink{a, b, latency, bandwidth};
      }));
  py::class_<TableNumbers>(module, "TableNumbers")
      .def(py::init<>())
      .def_readwrite("forward", &TableNumbers::forward)
      .def_readwrite("backward", &TableNumbers::backward)
      .def_readwrite("input", &TableNumbers::input)
      .def_readwrite("weight", &TableNumbers::weight)
      .def_readwrite("recompute", &TableNumbers::recompute)
      .def_readwrite("offload", &TableNumbers::offload)
      .def_readwrite("kept", &TableNumbers::kept)
      .def_readwrite("gather", &TableNumbers::gather)
      .def_readwrite("reduce", &TableNumbers::reduce)
      .def_readwrite("parameters", &TableNumbers::parameters)
      .def_readwrite("per_stage", &TableNumbers::per_stage)
      .def_readwrite("latency", &TableNumbers::latency)
      .def_readwrite("bandwidth", &TableNumbers::bandwidth)
      .def_readwrite("bytes", &TableNumbers::bytes)
      .def_readwrite("links", &TableNumbers::links)
      .def_readwrite("stage_times", &TableNumbers::stage_times)
      .def_readwrite("slice_times", &TableNumbers::slice_times)
      .def_readwrite("jitter", &TableNumbers::jitter)
      .def_readwrite("seed", &TableNumbers::seed)
      .def_readwrite("slowdown", &TableNumbers::slowdown)
      .def_readwrite("atomic_pairs", &TableNumbers::atomic_pairs)
      .def_readwrite("backend", &TableNumbers::backend)
      .def("measure", [](TableNumbers& numbers, const std::string& json, const std::string& file) {
        numbers.measured = parse_costs(json, file);
        numbers.file = file;
      });
  py::class_<SearchNumbers>(module, "SearchNumbers")
      .def(py::init<>())
      .def_readwrite("activation_limit", &SearchNumbers::activation_limit)
      .def_readwrite("copies", &SearchNumbers::copies)
      .def_readwrite("staleness", &SearchNumbers::staleness)
      .def_readwrite("recompute", &SearchNumbers::recompute)
      .def_readwrite("offload", &SearchNumbers::offload)
      .def_readwrite("order_transfers", &SearchNumbers::order_transfers);
}

}  // namespace

void bind_schedules(py::module_& module) {
  bind_numbers(module);
  module.def("schedule_facts", [](const Schedule& schedule) {
    return std::tuple(schedule.name, schedule.actors.size(), schedule.whole_stages(), schedule.slices, schedule.microbatches(),
                      schedule.steps);
  });
  module.def("schedule_actions", &actions_of);
  module.def("named_schedule", [](Schedule schedule, const std::string& name) {
    schedule.name = name;
    return schedule;
  });
  module.def("validate_schedule", [](const Schedule& schedule) { validate(schedule, shape_of(schedule)); });
  module.def("draw_schedule", [](const Schedule& schedule) { return draw(schedule, shape_of(schedule)); });
  // (name, summary, whether it takes chunks, other options that it takes, whether it orders slices)
  module.def("schedule_infos", [] {
    py::list out;
    for (const ScheduleInfo& info : schedules())
      out.append(py::make_tuple(info.name, info.summary, info.chunked, info.takes, info.orders_slices));
    return out;
  });
  // Each option's name, and whether it is a list of numbers.
  module.def("schedule_option_names", [] {
    std::map<std::string, bool> out;
    for (const ScheduleOption& option : schedule_options())
      out.emplace(option.name, std::holds_alternative<std::vector<double> ScheduleOptions::*>(option.member));
    return out;
  });
  module.def("schedule_by_rules_and_costs", &by_rules_and_costs, py::call_guard<py::gil_scoped_release>());
  module.def("registered_tables", &tables_of_names);
  py::class_<SimulatedTable>(module, "SimulatedTable")
      .def_readonly("schedule", &SimulatedTable::schedule)
      .def_readonly("timeline", &SimulatedTable::timeline)
      .def_property_readonly("transfers", [](const SimulatedTable& table) { return table.time.transfers.size(); })
      .def_property_readonly("figures", [](const SimulatedTable& table) { return object_of(figures_json(table)); })
      .def("explain", [](const SimulatedTable& table) { return explain(table.timeline, table.dependencies, better_machines(table)); });
  module.def(
      "simulate_table",
      [](const Schedule& schedule, const TableNumbers& numbers) { return simulated_table(schedule, numbers, /*record=*/true); },
      py::call_guard<py::gil_scoped_release>());
  module.def("search_table", &search_table);
  // The schedule as it keeps a limit of activations by recomputing or offloading; None where it cannot.
  module.def("relieved", &relieved, py::call_guard<py::gil_scoped_release>());
}

}  // namespace penstock
