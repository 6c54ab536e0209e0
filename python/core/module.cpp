// SPDX-License-Identifier: Apache-2.0
// The Python module penstock._core: what include/penstock offers, for tensors that Python owns. A tensor crosses as its dtype, shape and
// address, so nothing here depends on PyTorch's own C++ interface.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/philox.h"
#include "base/text.h"
#include "batches.h"
#include "config/chosen_layouts.h"
#include "exported/counting_step.h"
#include "exported/exported_model.h"
#include "exported/rename.h"
#include "lower/lower.h"
#include "penstock/compile.h"
#include "penstock/error.h"
#include "penstock/plan_file.h"
#include "penstock/predict.h"
#include "penstock/rules.h"
#include "penstock/schedule.h"
#include "penstock/session.h"
#include "penstock/step.h"
#include "plan/place_step.h"
#include "plan/plan_steps.h"
#include "plans.h"
#include "report/plan_page.h"
#include "report/plan_svg.h"
#include "report/timeline_html.h"
#include "schedule/options.h"
#include "schedule/sizes.h"
#include "schedule/versions.h"
#include "schedules.h"
#include "simulate/durations.h"
#include "simulate/roofline.h"
#include "torch/measure.h"

namespace py = pybind11;

namespace penstock {
namespace {

// (dtype, shape, address) of a dense tensor in the host's memory, which the caller keeps alive.
using Address = std::tuple<std::string, std::vector<std::int64_t>, std::uintptr_t>;

DType dtype_named(const std::string& name) {
  DType out = DType::f32;
  if (!parse_dtype(name, out)) throw Error("there is no dtype " + name);
  return out;
}

HostTensors tensors_of(const std::map<std::string, Address>& addresses) {
  HostTensors out;
  for (const auto& [name, address] : addresses) {
    const auto& [dtype, shape, data] = address;
    HostTensor& tensor = out[name];
    tensor.type = {dtype_named(dtype), shape};
    tensor.bytes.resize(static_cast<std::size_t>(tensor.type.bytes()));
    std::memcpy(tensor.bytes.data(), reinterpret_cast<const void*>(data), tensor.bytes.size());
  }
  return out;
}

// (dtype, shape, bytes)
py::tuple as_python(const HostTensor& tensor) {
  const py::bytearray bytes(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  return py::make_tuple(std::string(name(tensor.type.dtype)), tensor.type.shape, bytes);
}

py::tuple as_python(const std::string& name_of, const TensorType& type) {
  return py::make_tuple(name_of, std::string(name(type.dtype)), type.shape);
}

// `updates`: graphs in ops of ATen's, by parameter.
OptimiserOptions optimiser_from(const std::string& name, const std::vector<std::map<std::string, double>>& groups,
                                const std::map<std::string, std::string>& updates, double clip) {
  OptimiserOptions out;
  out.name = name;
  out.decay = "given";
  out.clip = clip;
  for (const auto& group : groups)
    out.groups.push_back({group.at("beta1"), group.at("beta2"), group.at("eps"), group.at("weight_decay"), group.at("momentum")});
  for (const auto& [parameter, text] : updates)
    out.updates.emplace(parameter, rename_ops(parse_graph(text, concat("the update of ", parameter))));
  return out;
}

StepShape shape_of(const ExportedModel& model, int batch, int microbatches) {
  return {.batch = batch, .microbatches = microbatches, .count = model.equal_batches() ? BatchCount::of_model : BatchCount::port};
}

void bind_model(py::module_& module) {
  py::class_<Exported>(module, "Exported").def(py::init([](const std::string& header, std::string text) {
    return read_exported(header, std::move(text));
  }));
  py::class_<ExportedModel>(module, "Model")
      .def(py::init([](const Exported& exported, const Sizes& sizes, std::vector<std::string> begins, int stages, std::vector<int> groups,
                       bool in_classes, std::vector<std::string> order, std::map<std::string, int> sequence) {
             ExportedModelOptions options{sizes, std::move(begins), stages, std::move(order), std::move(sequence), std::move(groups)};
             options.in_classes = in_classes;
             return std::make_unique<ExportedModel>(exported, std::move(options));
           }),
           py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("begins", &ExportedModel::begins)
      .def_property_readonly("samples", &ExportedModel::samples)
      .def_property_readonly("ports",
                             [](const ExportedModel& model) {
                               py::list out;
                               for (DataPort port : model.own_data()) {
                                 if (!port.whole) port.type.shape.insert(port.type.shape.begin(), model.samples());
                                 out.append(as_python(port.name, port.type));
                               }
                               return out;
                             })
      .def_property_readonly("counts", [](const ExportedModel& model) { return model.step().divisors.outputs.size(); })
      .def_property_readonly("notes", [](const ExportedModel& model) { return model.step().notes; })
      .def_property_readonly("carries",
                             [](const ExportedModel& model) {
                               return std::ranges::any_of(model.carried(), [](const Carried& carried) { return carried.keep != 1; });
                             })
      .def("graph", [](const ExportedModel& model) { return print(model.graph()); });
}

// Which elements of rows `first` to first + rows, of `width` each, the random op of this number keeps; a byte for each.
py::bytearray kept(double p, std::int64_t width, std::int64_t first, std::int64_t rows, std::int64_t seed, std::int64_t step,
                   std::int64_t number) {
  const auto word = [](std::int64_t x) { return static_cast<std::uint64_t>(x); };
  const PhiloxBlock of_op = philox(word(step), word(number), word(seed));
  const std::uint64_t key = std::uint64_t{of_op[0]} | std::uint64_t{of_op[1]} << 32;
  const auto threshold = static_cast<std::uint32_t>(std::lround(p * 4294967295.0));
  std::string out;
  for (std::int64_t row = first; row < first + rows; ++row)
    for (std::int64_t e = 0; e < width; ++e)
      out += static_cast<char>(p < 1 && philox(word(e / 4), word(row), key)[static_cast<std::size_t>(e % 4)] >= threshold);
  return py::bytearray(out);
}

// Sets the axes over which each device's tensors are split: (name, members, names of dims), and the dims of parameters, (name, blocks,
// units) for each. Along an axis without names Penstock finds itself what is split of this step. Says what lies along which.
std::string split_tensors(CompileOptions& options, const Graph& step, const ExportedModel& model,
                          const std::vector<std::tuple<std::string, int, std::set<std::string>>>& axes,
                          const std::map<std::string, std::vector<std::tuple<std::string, std::int64_t, std::int64_t>>>& dims) {
  std::vector<std::string> chosen;
  std::string out;
  for (const auto& [name, members, names] : axes) {
    options.axes.push_back({name, members, names});
    if (names.empty())
      chosen.push_back(name);
    else
      out += concat("along ", name, ": ", join(std::vector<std::string>(names.begin(), names.end()), ", "), "\n");
  }
  std::vector<ParameterSpec> parameters = model.parameters();
  for (ParameterSpec& parameter : parameters)
    if (const auto found = dims.find(parameter.name); found != dims.end())
      for (const auto& [name, outer, units] : found->second) parameter.dims.push_back({name, outer, units});
  if (!chosen.empty()) {
    const StagedStep staged = prepare_stages(step, options.zero < 3, options.axes);
    out += text_of(choose_along(chosen, {staged.step, options.axes, parameters}));
  }
  for (const ParameterSpec& parameter : parameters) {
    options.parameters.push_back(parameter.name);
    if (!parameter.dims.empty()) options.dims[parameter.name] = parameter.dims;
  }
  return out;
}

ScheduleOptions schedule_options(const std::map<std::string, OptionValue>& options) {
  ScheduleOptions out;
  for (const auto& [option, value] : options) set_option(out, option, value);
  return out;
}

void bind_program(py::module_& module) {
  py::class_<Schedule>(module, "Schedule")
      .def("__str__", [](const Schedule& schedule) { return print(schedule); })
      .def_property_readonly("actors", [](const Schedule& schedule) { return schedule.actors.size(); })
      .def_property_readonly("stages", &Schedule::whole_stages)
      .def_property_readonly("together", &micro_batches_together)
      .def_readonly("slices", &Schedule::slices)
      .def_readonly("steps", &Schedule::steps);
  module.def("schedule", [](const std::string& name, const std::map<std::string, OptionValue>& options) {
    return make_schedule(name, schedule_options(options));
  });
  module.def("schedule_by_rules", [](const std::string& text, const std::string& file, const std::map<std::string, OptionValue>& options) {
    return make_schedule(parse_rules(text, file), schedule_options(options));
  });
  py::enum_<Recompute>(module, "Recompute")
      .value("none", Recompute::none)
      .value("selective", Recompute::selective)
      .value("inputs", Recompute::inputs);
  py::class_<CompileOptions>(module, "CompileOptions")
      .def(py::init([](std::vector<int> devices, int zero, Recompute recompute) {
             CompileOptions options;
             options.devices = std::move(devices);
             options.zero = zero;
             options.recompute = recompute;
             return options;
           }),
           py::arg("devices") = std::vector<int>(), py::arg("zero") = 0, py::arg("recompute") = Recompute::none)
      .def("split", &split_tensors, py::call_guard<py::gil_scoped_release>());
  module.def("parse_program", [](const std::string& text) { return parse_program(text, "the program"); });
  module.def("parse_schedule", [](const std::string& text, const std::string& file) { return parse_schedule(text, file); });
  module.def("schedules", [] {
    std::vector<std::pair<std::string, bool>> out;
    for (const ScheduleInfo& info : schedules()) out.emplace_back(info.name, info.chunked);
    return out;
  });
  py::class_<Timeline>(module, "Timeline").def("page", [](const Timeline& timeline, const std::string& title) {
    return timeline_html({.title = title, .timelines = {timeline}, .sections = {}});
  });
  py::class_<Prediction>(module, "Prediction")
      .def_readonly("seconds", &Prediction::seconds)
      .def_readonly("bubble", &Prediction::bubble)
      .def_readonly("lower_bound", &Prediction::lower_bound)
      .def_readonly("memory", &Prediction::memory)
      .def_readonly("timeline", &Prediction::timeline);
  py::class_<Program>(module, "Program")
      .def_property_readonly("devices", [](const Program& program) { return program.devices.size(); })
      .def_property_readonly("data",
                             [](const Program& program) {
                               std::map<std::string, Shape> out;
                               for (const Port& port : program.data) out[port.name] = port.type.shape;
                               return out;
                             })
      .def("__str__", [](const Program& program) { return print(program); })
      .def(
          "predict",
          [](const Program& program, const std::string& device, const std::string& link) { return predict(program, device, link); },
          py::call_guard<py::gil_scoped_release>())
      .def(
          "predict", [](const Program& program, const std::string& costs) { return predict(program, parse_costs(costs, "the profile")); },
          py::call_guard<py::gil_scoped_release>());
  py::class_<Graph>(module, "Step")
      .def_property_readonly("inputs",
                             [](const Graph& step) {
                               std::vector<std::string> out;
                               for (ValueId input : step.inputs) out.push_back(step.values[input].name);
                               return out;
                             })
      .def("__str__", [](const Graph& step) { return print(step); });
  module.def(
      "training_step",
      [](const ExportedModel& model, int batch, int microbatches, const std::string& optimiser,
         const std::vector<std::map<std::string, double>>& groups, const std::map<std::string, std::string>& updates, double clip) {
        return training_step(model, shape_of(model, batch, microbatches), optimiser_from(optimiser, groups, updates, clip));
      },
      py::call_guard<py::gil_scoped_release>());
  module.def(
      "gradient_step",
      [](const ExportedModel& model, int batch, int microbatches) { return gradient_step(model, shape_of(model, batch, microbatches)); },
      py::call_guard<py::gil_scoped_release>());
  module.def(
      "evaluation_step",
      [](const ExportedModel& model, int batch, int microbatches) {
        return evaluation_step(model, {.batch = batch, .microbatches = microbatches}, /*outputs=*/true);
      },
      py::call_guard<py::gil_scoped_release>());
  module.def(
      "in_slices",
      [](const Graph& step, const Schedule& schedule, const CompileOptions& options, const std::vector<std::int64_t>& lengths) {
        return in_slices(step, schedule, options, lengths);
      },
      py::call_guard<py::gil_scoped_release>());
  module.def("kept", &kept);
  module.def("counting_step", &counting_step, py::call_guard<py::gil_scoped_release>());
  module.def(
      "compile_classes",
      [](const std::vector<const Graph*>& classes, const std::vector<int>& shape_class, const Schedule& schedule,
         const CompileOptions& options) {
        std::vector<Graph> steps;
        for (const Graph* each : classes) steps.push_back(*each);
        return compile(steps, shape_class, schedule, options);
      },
      py::call_guard<py::gil_scoped_release>());
  module.def(
      "compile",
      [](const Graph& step, const Schedule& schedule, const CompileOptions& options) { return compile(step, schedule, options); },
      py::call_guard<py::gil_scoped_release>());
  // Compiles a step that updates nothing. updating: the step that updates the state which it reads; null where nothing does.
  module.def(
      "compile_beside",
      [](const Graph& step, const Schedule& schedule, CompileOptions options, const Graph* updating) {
        if (updating != nullptr) options.blocks = shared_blocks(*updating, schedule, options);
        return compile(step, one_step(schedule, 0), options);
      },
      py::call_guard<py::gil_scoped_release>());
}

// Equal devices, any two of them linked alike, by published figures.
ClusterSpec equal_devices(int devices, const std::string& device, const std::string& link) {
  const DeviceModel& model = published_devices().device(device);
  const Link& between = published_devices().link(link);
  const double memory = model.memory_bytes > 0 ? static_cast<double>(model.memory_bytes) : ClusterDevice().memory;
  ClusterSpec out = uniform_cluster(devices, between.bandwidth, between.latency, memory);
  out.name = concat(devices, " ", device, ", ", link);
  out.published = device;
  return out;
}

void bind_plans(py::module_& module) {
  py::class_<ClusterSpec>(module, "Cluster")
      .def(py::init(&equal_devices))
      .def(py::init([](const std::string& text, const std::string& file) { return parse_cluster(text, file); }))
      .def_property_readonly("devices", [](const ClusterSpec& cluster) { return cluster.devices.size(); })
      .def_readonly("published", &ClusterSpec::published)
      .def("limit_memory", [](ClusterSpec& cluster, double bytes) {
        for (ClusterDevice& device : cluster.devices) device.memory = bytes;
      });
  // Threads, or other devices, of the machine that a profile was made on.
  module.def("measured_cluster", [](int devices, const std::string& costs) {
    const Link& link = network_of(parse_costs(costs, "the profile"), {}).link;
    ClusterSpec out = uniform_cluster(devices, link.bandwidth, link.latency + link.start_seconds + link.wake_seconds);
    out.name = concat(devices, link.second_end_copies ? " threads" : " devices", " of this machine");
    return out;
  });
  py::class_<PlanFile>(module, "Plan")
      .def(py::init([](const std::string& text, const std::string& file) { return parse_plan(text, file); }))
      .def("json", [](const PlanFile& plan) { return print(plan); })
      .def("__str__", [](const PlanFile& plan) { return plan_text(by_device(plan)); })
      .def("page", [](const PlanFile& plan, const std::string& title) { return plan_page(by_device(plan), title); })
      .def_property_readonly("devices", [](const PlanFile& plan) { return devices_of_actors(plan); })
      .def_property_readonly("microbatches", [](const PlanFile& plan) { return step_microbatches(plan); })
      .def_property_readonly("recomputes",
                             [](const PlanFile& plan) {
                               const auto has_again = [](const std::vector<Action>& row) {
                                 return std::ranges::any_of(row, [](const Action& action) { return action.kind == Kind::R; });
                               };
                               return std::ranges::any_of(plan.schedule.actors, has_again) ||
                                      std::ranges::any_of(plan.stages, [](const PlanFile::Stage& s) { return !s.recompute.empty(); });
                             })
      .def_readonly("table_microbatches", &PlanFile::microbatches)
      .def_readonly("schedule", &PlanFile::schedule)
      .def_readonly("samples", &PlanFile::samples)
      .def_readonly("planner", &PlanFile::planner)
      .def_readonly("zero", &PlanFile::zero)
      .def_readonly("predicted_time", &PlanFile::predicted_time)
      .def_readonly("lower_bound", &PlanFile::lower_bound)
      .def_readonly("peak_bytes", &PlanFile::peak_bytes)
      .def_property_readonly("stages", [](const PlanFile& plan) {
        std::vector<std::tuple<std::string, std::vector<std::string>, std::vector<int>>> out;
        for (const PlanFile::Stage& stage : plan.stages) out.emplace_back(stage.name, stage.nodes, stage.devices);
        return out;
      });
  module.def("planners", [] {
    std::vector<std::string> out;
    for (const PlannerInfo& planner : planners()) out.push_back(planner.name);
    return out;
  });
  module.def(
      "plan_steps",
      [](const std::string& name, const std::vector<Graph>& steps, const ClusterSpec& cluster, const std::string& planner,
         const std::string& device, const std::optional<std::string>& costs, double seconds, bool any_parts, bool replicas, int nodes,
         const std::string& only) {
        StepPlanning planning{.name = name, .cluster = cluster, .planner = planner_named(planner), .any_parts = any_parts};
        planning.replicas = replicas;
        planning.nodes = nodes;
        planning.device = device;
        planning.options.seconds = seconds;
        if (!only.empty()) planning.options.degrees.only = parse_degrees_limits(only);
        if (costs) planning.costs = parse_costs(*costs, "the profile");
        PlannedModel found = plan_steps(steps, planning);
        add_timeline(found);
        return found.file;
      },
      py::call_guard<py::gil_scoped_release>());
  module.def("planning_programs", &planning_programs, py::call_guard<py::gil_scoped_release>());
  // JSON of the costs. linked: whether the link between two devices is measured too, for programs of one device.
  module.def("measure",
             [](const std::vector<Program>& programs, const std::map<std::string, Address>& state,
                const std::map<std::string, Address>& data, int rounds, bool linked, int threads, const std::string& device, bool fuse) {
               const py::gil_scoped_release release;
               const Measuring how{device, threads, rounds, fuse};
               Costs costs = measure_here(programs, tensors_of(state), tensors_of(data), how);
               if (linked) measure_link_here(1 << 20, how, costs);
               return print(costs);
             });
  module.def(
      "compile_plan",
      [](const Graph& step, const PlanFile& plan, const Schedule* table, const Graph* updating) {
        PlacedStep placed = place_step(step, plan, table);
        if (updating != nullptr) {
          const PlacedStep other = place_step(*updating, plan, table);
          placed.options.blocks = shared_blocks(other.step, other.schedule, other.options);
        }
        return compile(placed.step, placed.schedule, placed.options);
      },
      py::call_guard<py::gil_scoped_release>());
}

// (results by name, a text), as together() gives them to each rank.
Shared shared_from(const py::object& given) {
  const auto& [addresses, text] = given.cast<std::pair<std::map<std::string, Address>, std::string>>();
  return {tensors_of(addresses), text};
}

// Holds what `work` throws: the text goes to the other ranks, and the exception itself is thrown again on this one.
py::tuple together(Session& session, const std::string& call, const std::map<std::string, Address>& data, const py::function& work) {
  std::optional<py::error_already_set> thrown;
  Shared results;
  try {
    const py::gil_scoped_release release;
    results = session.together(call, tensors_of(data), [&] {
      const py::gil_scoped_acquire acquire;
      try {
        return shared_from(work());
      } catch (py::error_already_set& error) {
        thrown.emplace(error);
        const std::string type = py::str(error.type().attr("__name__")), text = py::str(error.value());
        throw Error(type == "PenstockError" ? text : "rank 0 failed: " + type + ": " + text);
      }
    });
  } catch (const Error&) {
    if (thrown) throw *thrown;
    throw;
  }
  py::dict tensors;
  for (const auto& [name, tensor] : results.tensors) tensors[py::str(name)] = as_python(tensor);
  return py::make_tuple(tensors, results.text);
}

// A session's threads may need Python's lock to end: they drop tensors that Python knows too. So none holds it while it waits for them.
struct WithoutLock {
  void operator()(Session* session) const {
    const py::gil_scoped_release release;
    delete session;
  }
};

// Where Python's signal handlers leave what they throw while this thread is in a step; null: it is in none.
using Thrown = std::optional<py::error_already_set>;
thread_local Thrown* interrupt = nullptr;

struct Catching {
  explicit Catching(Thrown& thrown) { interrupt = &thrown; }
  ~Catching() { interrupt = nullptr; }
  Catching(const Catching&) = delete;
};

// Whether a signal handler has thrown.
bool interrupted() {
  if (interrupt == nullptr) return false;
  const py::gil_scoped_acquire acquire;
  if (!*interrupt && PyErr_CheckSignals() != 0) interrupt->emplace();
  return interrupt->has_value();
}

// How many steps were done. It is counted before Python runs again, so that an exception of a signal handler cannot come in between.
struct Count {
  std::int64_t value = 0;
};

// (report, what a signal handler has thrown that came too late to give the step up; or None). Throws what one has thrown where the step was
// given up.
py::tuple step(Session& session, const std::string& program, const std::map<std::string, Address>& data, bool record, Count* done,
               std::int64_t steps) {
  Thrown thrown;
  StepReport report;
  const Catching catching(thrown);
  try {
    const py::gil_scoped_release release;
    report = session.step(program, tensors_of(data), record, steps);
  } catch (const Error&) {
    if (thrown) throw *thrown;
    throw;
  }
  if (done != nullptr) done->value += steps;
  interrupted();
  return py::make_tuple(std::move(report), thrown ? py::object(thrown->value()) : py::none());
}

void bind_session(py::module_& module) {
  py::class_<Count>(module, "Count").def(py::init<>()).def_readonly("value", &Count::value);
  py::class_<Ranks>(module, "Ranks")
      .def_readonly("rank", &Ranks::rank)
      .def_readonly("size", &Ranks::size)
      .def_readwrite("attempt", &Ranks::attempt)
      .def_readwrite("store_runs", &Ranks::store_runs);
  module.def("ranks_from_environment", &ranks_from_environment);
  // Bytes that Python's buffers show; the memory lives as long as they do.
  py::class_<SharedTensor>(module, "SharedTensor", py::buffer_protocol())
      .def_property_readonly("nbytes", [](const SharedTensor& tensor) { return tensor.type.bytes(); })
      .def_buffer([](const SharedTensor& tensor) {
        return py::buffer_info(reinterpret_cast<std::uint8_t*>(tensor.memory.get()), tensor.type.bytes());
      });
  py::class_<StepReport>(module, "StepReport")
      .def_property_readonly("outputs",
                             [](const StepReport& report) {
                               py::dict out;
                               for (const auto& [name, tensor] : report.outputs) out[py::str(name)] = as_python(tensor);
                               return out;
                             })
      .def_readonly("seconds", &StepReport::seconds)
      .def_readonly("busy", &StepReport::busy)
      .def_readonly("waiting", &StepReport::waiting)
      .def_readonly("memory", &StepReport::memory)
      .def_readonly("timeline", &StepReport::timeline);
  py::class_<Session, std::unique_ptr<Session, WithoutLock>>(module, "Session")
      .def(py::init([](int devices, double deadline, int threads, std::optional<Ranks> ranks, std::string run, std::string device,
                       std::string backend, bool fuse) {
             const py::gil_scoped_release release;
             return std::unique_ptr<Session, WithoutLock>(new Session(
                 devices, {deadline, threads, std::move(device), std::move(ranks), std::move(run), interrupted, std::move(backend), fuse}));
           }),
           py::arg(), py::arg(), py::arg(), py::arg("ranks") = std::nullopt, py::arg("run") = "", py::arg("device") = "cpu",
           py::arg("backend") = "gloo", py::arg("fuse") = false)
      .def("together", &together)
      .def("program", [](const Session& session, std::size_t number) { return *session.programs().at(number); })
      .def("close", &Session::close, py::call_guard<py::gil_scoped_release>())
      .def("load", &Session::load, py::call_guard<py::gil_scoped_release>())
      .def("unload", &Session::unload, py::call_guard<py::gil_scoped_release>())
      .def("check_state", &Session::check_state)
      .def("set_state",
           [](Session& session, const std::map<std::string, Address>& state) {
             const py::gil_scoped_release release;
             session.set_state(tensors_of(state));
           })
      .def("read_state",
           [](Session& session, const std::map<std::string, std::pair<std::string, std::string>>& files) {
             const py::gil_scoped_release release;
             std::map<std::string, StoredTensorName> state;
             for (const auto& [name, at] : files) state[name] = {at.first, at.second};
             session.read_state(state);
           })
      .def("state",
           [](Session& session, const std::string& name) {
             const HostTensor tensor = [&] {
               const py::gil_scoped_release release;
               return session.state(name);
             }();
             return as_python(tensor);
           })
      .def("share_state",
           [](Session& session) {
             std::map<std::string, SharedTensor> shared;
             {
               const py::gil_scoped_release release;
               shared = session.share_state();
             }
             py::dict out;
             for (auto& [name, tensor] : shared)
               out[py::str(name)] = py::make_tuple(std::string(penstock::name(tensor.type.dtype)), tensor.type.shape, py::cast(tensor));
             return out;
           })
      .def("pieces",
           [](const Session& session) {
             std::vector<std::tuple<std::string, int, std::int64_t, std::int64_t>> out;
             for (const StatePiece& piece : session.pieces()) out.emplace_back(piece.tensor, piece.device, piece.begin, piece.end);
             return out;
           })
      .def("step", &step, py::arg(), py::arg(), py::arg() = false, py::arg("done") = nullptr, py::arg("steps") = 1);
}

}  // namespace
}  // namespace penstock

PYBIND11_MODULE(_core, module) {
  static py::exception<penstock::Error> error(module, "Error", PyExc_RuntimeError);
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const penstock::Error& e) {
      py::set_error(error, e.what());
    }
  });
  penstock::bind_model(module);
  penstock::bind_program(module);
  penstock::bind_plans(module);
  penstock::bind_plan_requests(module);
  penstock::bind_batches(module);
  penstock::bind_timelines(module);
  penstock::bind_schedules(module);
  penstock::bind_session(module);
}
