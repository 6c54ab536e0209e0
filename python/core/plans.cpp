// SPDX-License-Identifier: Apache-2.0
// Plans of graphs' files and of configurations, as `penstock plan` makes them.
#include "plans.h"

#include <pybind11/stl.h>

#include <map>
#include <optional>

#include "base/text.h"
#include "config/plan_model.h"
#include "cost/figures_for.h"
#include "models/registry.h"
#include "penstock/explain_plan.h"
#include "penstock/plan.h"
#include "penstock/plan_file.h"
#include "report/plan_page.h"
#include "report/plan_svg.h"

namespace py = pybind11;

namespace penstock {
namespace {

// A planner is asked this, whatever is planned.
struct PlanRequest {
  std::string what;  // a file's path or a model's name, for messages
  ClusterSpec cluster;
  std::string planner = "best", device, only;  // device: whose published figures count; "": the cluster's own
  double seconds = 10;
  std::uint64_t seed = 0;
  int samples = 0;         // of a step; 0: as the graph or the configuration says
  std::vector<int> sizes;  // of micro-batches, in samples; none: the planner's own
  bool replicas = true;
  int nodes = 64;
  std::map<std::string, std::string> settings;  // of a configuration, by key
};

PlanOptions options_of(const PlanRequest& request, const std::string& dtype) {
  PlanOptions options;
  options.seconds = request.seconds;
  options.seed = request.seed;
  options.degrees.states = states_of(dtype);
  options.degrees.parameter_bytes = dtype == "f64" ? 8 : 4;
  if (!request.only.empty()) options.degrees.only = parse_degrees_limits(request.only);
  if (planner_named(request.planner).equal_groups) options.degrees.only.by_block = 0;  // no run gathers block by block
  return options;
}

// The plan that was asked for, with what explains it.
struct ExplainedPlan {
  PlannedModel found;
  PlanRequest request;
  PlanOptions options;
  std::vector<OtherPlan> slower;
};

ExplainedPlan plan_of_graph(const std::string& text, const PlanRequest& request) {
  ExplainedPlan out{.found = {}, .request = request, .options = options_of(request, "f32"), .slower = {}};
  PlanProblem& problem = out.found.problem;
  problem.graph = parse_plan_graph(text, request.what, figures_for(request.cluster, request.device));
  problem.cluster = request.cluster;
  problem.samples = request.samples;
  problem.batches = request.sizes;
  problem.replicas = request.replicas;
  out.found.plan = make_plan(request.planner, problem, out.options);
  out.found.file = plan_file_of(problem, out.found.plan);
  add_timeline(out.found);
  return out;
}

// `named`: the request is for a model of that name, without a file.
ExplainedPlan plan_of_config(bool named, const PlanRequest& request) {
  std::vector<Override> overrides = {{"pipeline.microbatches", "1", "the plan"}};  // the plan says how many there are
  if (named) overrides.push_back({"model.name", request.what, "the model"});
  for (const auto& [key, value] : request.settings) overrides.push_back({key, value, concat("settings, ", key)});
  if (request.samples > 0) overrides.push_back({"train.batch", std::to_string(request.samples), "samples"});
  const Config config = load_config(named ? "" : request.what, overrides, builtin_models());
  ExplainedPlan out{.found = {}, .request = request, .options = options_of(request, config.train.dtype), .slower = {}};
  ModelPlanning planning{.planner = request.planner, .options = out.options, .cluster = request.cluster};
  planning.sizes = request.sizes;
  planning.replicas = request.replicas;
  planning.nodes = request.nodes;
  planning.device = request.device;
  std::vector<PlannedModel> found = plan_model(config, builtin_models(), planning);
  out.found = std::move(found.at(0));
  for (std::size_t i = 1; i < found.size(); ++i) out.slower.push_back({found[i].plan.planner, found[i].file.predicted_time});
  add_timeline(out.found);
  return out;
}

// (bottleneck, its figures, (planner, seconds) of the next best plan or None, (change, seconds or None, why refused) of each change)
py::tuple explanation_of(const ExplainedPlan& plan) {
  PlanExplanation explained;
  {
    const py::gil_scoped_release release;
    explained = explain(plan.request.planner, plan.found.problem, plan.found.plan, plan.slower, plan.options);
  }
  py::object next = py::none();
  if (!explained.next.planner.empty()) next = py::make_tuple(explained.next.planner, explained.next.predicted_time);
  py::list changes;
  for (const PlanExplanation::Change& change : explained.changes)
    changes.append(py::make_tuple(
        change.what, change.refused.empty() ? py::object(py::float_(change.predicted_time)) : py::object(py::none()), change.refused));
  return py::make_tuple(explained.bottleneck, explained.detail, next, changes);
}

// A dict for each stage.
py::list stages_of(const PlanFile& plan) {
  py::list out;
  for (const PlanFile::Stage& stage : plan.stages) {
    py::dict row;
    row["name"] = stage.name;
    row["nodes"] = stage.nodes.size();
    row["devices"] = devices_text(stage);
    row["device_count"] = stage.devices.size();
    row["micro_batch"] = stage.micro_batch;
    row["forward"] = stage.forward;
    row["backward"] = stage.backward;
    row["bytes"] = stage.bytes;
    row["recomputed"] = stage.recompute.size();
    out.append(row);
  }
  return out;
}

}  // namespace

void bind_plan_requests(py::module_& module) {
  py::class_<PlanRequest>(module, "PlanRequest")
      .def(py::init<>())
      .def_readwrite("what", &PlanRequest::what)
      .def_readwrite("cluster", &PlanRequest::cluster)
      .def_readwrite("planner", &PlanRequest::planner)
      .def_readwrite("device", &PlanRequest::device)
      .def_readwrite("only", &PlanRequest::only)
      .def_readwrite("seconds", &PlanRequest::seconds)
      .def_readwrite("seed", &PlanRequest::seed)
      .def_readwrite("samples", &PlanRequest::samples)
      .def_readwrite("sizes", &PlanRequest::sizes)
      .def_readwrite("replicas", &PlanRequest::replicas)
      .def_readwrite("nodes", &PlanRequest::nodes)
      .def_readwrite("settings", &PlanRequest::settings);
  py::class_<ExplainedPlan>(module, "ExplainedPlan")
      .def_property_readonly("file", [](const ExplainedPlan& plan) { return plan.found.file; })
      .def_property_readonly("cannot_run", [](const ExplainedPlan& plan) { return plan.found.cannot_run; })
      .def("explain", &explanation_of);
  module.def("plan_of_graph", &plan_of_graph, py::call_guard<py::gil_scoped_release>());
  module.def("plan_of_config", &plan_of_config, py::call_guard<py::gil_scoped_release>());
  module.def("model_names", [] {
    std::vector<std::string> out;
    for (const auto& [name, entry] : builtin_models()) out.push_back(name);
    return out;
  });
  module.def("plan_stages", &stages_of);
  module.def("plan_timeline", &timeline_in);
  // (model, cluster, the planner's own objective, whether the step is proven the least, micro-batches, seconds of the search)
  module.def("plan_facts", [](const PlanFile& plan) {
    return std::tuple(plan.model, plan.cluster, plan.bottleneck, plan.optimal, plan.microbatches, plan.search_seconds);
  });
  module.def("plan_svg", [](const PlanFile& plan) { return plan_svg(plan, timeline_in(plan)); });
}

}  // namespace penstock
