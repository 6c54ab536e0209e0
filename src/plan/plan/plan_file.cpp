// SPDX-License-Identifier: Apache-2.0
#include "penstock/plan_file.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "base/json.h"
#include "base/text.h"
#include "base/words.h"
#include "cost/cost_model.h"
#include "cost/evaluate.h"
#include "lower/lower.h"
#include "penstock/error.h"
#include "planners/degrees_step.h"

namespace penstock {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kKind = "plan";  // value of "penstock"
constexpr int kMostMembers = 4096;     // of an axis

ordered_json stage_json(const PlanFile::Stage& stage, bool detail) {
  ordered_json out = {{"name", stage.name}, {"nodes", stage.nodes}, {"devices", stage.devices}, {"micro_batch", stage.micro_batch}};
  if (!stage.recompute.empty()) out["recompute"] = stage.recompute;
  if (!stage.swap.empty()) out["swap"] = stage.swap;
  if (detail) out.update({{"forward", stage.forward}, {"backward", stage.backward}, {"bytes", stage.bytes}});
  return out;
}

// The nodes of the stage that a key names. `does`: what the stage does with them.
std::vector<std::string> read_own_nodes(const JsonNode& node, const char* key, const char* does, const std::vector<std::string>& nodes) {
  std::vector<std::string> out;
  if (!node.has(key)) return out;
  node.at(key).each_element([&](const JsonNode& name) {
    out.push_back(name.text());
    if (std::ranges::find(nodes, name.text()) == nodes.end())
      name.fail(concat("is ", quote(name.text()), "; a stage ", does, " nodes of its own"), did_you_mean(name.text(), nodes));
  });
  return out;
}

PlanFile::Stage read_stage(const JsonNode& node) {
  node.check_keys({"name", "nodes", "devices", "micro_batch", "recompute", "swap", "forward", "backward", "bytes"});
  PlanFile::Stage stage;
  stage.name = node.at("name").text();
  node.at("nodes").each_element([&](const JsonNode& name) { stage.nodes.push_back(name.text()); });
  node.at("devices").each_element([&](const JsonNode& device) { stage.devices.push_back(static_cast<int>(device.whole(0, 1 << 20))); });
  stage.micro_batch = static_cast<int>(node.at("micro_batch").whole(1, INT32_MAX));
  stage.recompute = read_own_nodes(node, "recompute", "computes again", stage.nodes);
  stage.swap = read_own_nodes(node, "swap", "swaps", stage.nodes);
  for (const std::string& name : stage.swap)
    if (std::ranges::find(stage.recompute, name) != stage.recompute.end())
      node.at("swap").fail(concat("has ", quote(name), ", which the stage computes again"), "leave it out of recompute, or of swap");
  stage.forward = node.at("forward").number();
  stage.backward = node.at("backward").number();
  stage.bytes = node.at("bytes").number();
  if (stage.nodes.empty()) node.at("nodes").fail("is empty; a stage has one node at least");
  if (stage.devices.empty()) node.at("devices").fail("is empty; a stage has one device at least");
  return stage;
}

void read_stages(const JsonNode& stages, PlanFile& plan) {
  stages.each_element([&](const JsonNode& node) { plan.stages.push_back(read_stage(node)); });
  if (plan.stages.empty()) stages.fail("is empty; a plan has one stage at least");
}

// Plans once had stages on host processors, whose memory did not count and which had the numbers after the devices'. The
// devices of a run, numbered by rows, may also lie behind `peak_bytes`, but stages hold something there.
void check_devices(const JsonNode& stages, const PlanFile& plan) {
  for (const PlanFile::Stage& stage : plan.stages)
    if (stage.bytes == 0 && stage.devices[0] >= std::ssize(plan.peak_bytes))
      stages.fail(concat("has ", quote(stage.name), " on a host processor; stages are on devices only"), "make the plan anew");
}

void read_links(const JsonNode& links, PlanFile& plan) {
  const auto last = static_cast<std::int64_t>(plan.stages.size()) - 1;
  links.each_element([&](const JsonNode& node) {
    node.check_keys({"from", "to", "bytes", "seconds"});
    PlanFile::Link link;
    link.to = static_cast<int>(node.at("to").whole(0, last));
    link.from = static_cast<int>(node.at("from").whole(0, last));
    if (link.from >= link.to) node.at("from").fail(concat("is ", link.from, "; a stage feeds only stages after it"));
    link.bytes = node.at("bytes").number();
    link.seconds = node.at("seconds").number();
    plan.links.push_back(link);
  });
}

Schedule read_schedule(const JsonNode& node, const PlanFile& plan) {
  Schedule schedule = parse_schedule(node.text(), plan.file);
  if (schedule.stages() != std::ssize(plan.stages)) node.fail(concat("has ", schedule.stages(), " stages, the plan ", plan.stages.size()));
  schedule.name = plan.file;
  return schedule;
}

std::string list_text(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 6;
  std::vector<std::string> shown(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, names.size())));
  if (names.size() > kShown) shown.push_back(concat("and ", names.size() - kShown, " more"));
  return join(shown, ", ");
}

// One of the actor's stages, which are all on the same devices; null where it has none.
const PlanFile::Stage* stage_of_actor(const PlanFile& plan, std::size_t actor) {
  const PlanFile::Stage* first = nullptr;
  for (const Action& action : plan.schedule.actors[actor]) {
    const PlanFile::Stage& stage = plan.stages[action.stage];
    if (first == nullptr) first = &stage;
    if (stage.devices == first->devices) continue;
    throw Error(concat(plan.file, ": actor ", actor, " has stages on different devices"),
                {concat(quote(first->name), " on ", devices_text(*first)), concat(quote(stage.name), " on ", devices_text(stage))});
  }
  return first;
}

void add_figures(const PlanProblem& problem, const Plan& plan, PlanFile& out) {
  const PlanFigures figures = figures_of(problem, plan.stages);
  out.microbatches = figures.microbatches;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const StageFigures& from = figures.stages[s];
    PlanFile::Stage& stage = out.stages[s];
    stage.forward = from.forward;
    stage.backward = from.backward;
    stage.bytes = from.bytes(from.ahead);
  }
  const double samples = static_cast<double>(out.samples) / out.microbatches;
  for (const StageLink& link : figures.links) {
    const PlanStage &a = plan.stages[static_cast<std::size_t>(link.from)], &b = plan.stages[static_cast<std::size_t>(link.to)];
    out.links.push_back({link.from, link.to, bytes_between(problem.graph, a, b, samples), link.forward + link.latency});
  }
}

// For stages in a row, several on one group of devices.
void add_group_figures(const PlanProblem& problem, const Plan& plan, PlanFile& out) {
  const Degrees& degrees = plan.degrees->results[0].degrees;
  out.microbatches = degrees.microbatches;
  out.zero = degrees.zero;
  out.local = degrees.local;
  out.split = degrees.split;
  const PlanGraph& graph = graph_of(problem, degrees.split);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    PlanFile::Stage& stage = out.stages[s];
    const SetCost cost = cost_of(graph, plan.stages[s].nodes, {}, degrees.samples);
    const double speed = weakest(problem.cluster, stage.devices).speed;
    stage.forward = cost.forward / speed;
    stage.backward = cost.backward / speed;
    stage.bytes = plan.peak_bytes[static_cast<std::size_t>(stage.devices[0])];
    if (s == 0) continue;
    const ClusterLink link = slowest_link(problem.cluster, out.stages[s - 1].devices, stage.devices);
    const double bytes = bytes_between(graph, plan.stages[s - 1], plan.stages[s], stage.micro_batch);
    out.links.push_back({static_cast<int>(s) - 1, static_cast<int>(s), bytes, bytes / degrees.data / link.bandwidth + link.latency});
  }
}

}  // namespace

std::string print(const PlanFile& plan, bool detail) {
  ordered_json out;
  if (detail) out = {{"penstock", kKind}, {"version", 1}};
  out.update({{"model", plan.model}, {"cluster", plan.cluster}, {"planner", plan.planner}, {"stages", ordered_json::array()}});
  for (const PlanFile::Stage& stage : plan.stages) out["stages"].push_back(stage_json(stage, detail));
  out.update({{"samples", plan.samples},
              {"microbatches", plan.microbatches},
              {"bottleneck", plan.bottleneck},
              {"predicted_time", plan.predicted_time},
              {"lower_bound", plan.lower_bound},
              {"peak_bytes", plan.peak_bytes},
              {"search_seconds", plan.search_seconds},
              {"optimal", plan.optimal}});
  if (plan.zero >= 0) out["zero"] = plan.zero;
  if (plan.local > 1) out["local"] = plan.local;
  if (plan.split != Split()) {
    out["tensor"] = plan.split.tensor;
    out["context"] = plan.split.context;
    out["sequence"] = plan.split.sequence;
  }
  if (detail) {
    out["links"] = ordered_json::array();
    for (const PlanFile::Link& link : plan.links)
      out["links"].push_back({{"from", link.from}, {"to", link.to}, {"bytes", link.bytes}, {"seconds", link.seconds}});
    out["schedule"] = print(plan.schedule);
    if (!plan.timeline.empty()) out["timeline"] = json::parse(plan.timeline);
  }
  return out.dump(detail ? 1 : -1, ' ', false, json::error_handler_t::replace) + "\n";
}

bool is_plan(std::string_view text) {
  std::string begin(text.substr(0, 100));
  std::erase_if(begin, [](char c) { return std::isspace(static_cast<unsigned char>(c)); });
  return begin.starts_with("{\"penstock\":\"plan\"");
}

PlanFile parse_plan(std::string_view text, const std::string& file) {
  const JsonFile source{file, "penstock plan CONFIG --cluster local --out FILE makes a plan"};
  const json document = parse_json(text, source);
  const JsonNode root(document, source);
  root.check_object();
  if (!root.has("penstock") || root.value()["penstock"] != kKind) root.fail("is no plan", source.remake);
  root.check_keys({"penstock",   "version",        "model",       "cluster",    "planner",        "stages",  "samples", "microbatches",
                   "bottleneck", "predicted_time", "lower_bound", "peak_bytes", "search_seconds", "optimal", "zero",    "local",
                   "tensor",     "context",        "sequence",    "links",      "schedule",       "timeline"});
  root.at("version").whole(1, 1);
  PlanFile plan;
  plan.file = file;
  plan.model = root.at("model").text();
  plan.cluster = root.at("cluster").text();
  plan.planner = root.at("planner").text();
  plan.samples = static_cast<int>(root.at("samples").whole(1, INT32_MAX));
  plan.microbatches = static_cast<int>(root.at("microbatches").whole(1, 1'000'000));
  read_stages(root.at("stages"), plan);
  read_links(root.at("links"), plan);
  plan.bottleneck = root.at("bottleneck").number();
  plan.predicted_time = root.at("predicted_time").number();
  plan.lower_bound = root.at("lower_bound").number();
  plan.search_seconds = root.at("search_seconds").number();
  plan.optimal = root.at("optimal").flag();
  if (root.has("zero")) plan.zero = static_cast<int>(root.at("zero").whole(0, 3));
  if (root.has("local")) plan.local = static_cast<int>(root.at("local").whole(1, 1 << 20));
  if (root.has("tensor")) plan.split.tensor = static_cast<int>(root.at("tensor").whole(1, kMostMembers));
  if (root.has("context")) plan.split.context = static_cast<int>(root.at("context").whole(1, kMostMembers));
  if (root.has("sequence")) plan.split.sequence = root.at("sequence").flag();
  root.at("peak_bytes").each_element([&](const JsonNode& bytes) { plan.peak_bytes.push_back(bytes.number()); });
  check_devices(root.at("stages"), plan);
  plan.schedule = read_schedule(root.at("schedule"), plan);
  if (root.has("timeline")) plan.timeline = root.at("timeline").value().dump();
  return plan;
}

// Tolerance for rounded sums: a step that takes exactly its bound is proven the fastest.
constexpr double kExactBound = 1 + 1e-9;

PlanFile plan_file_of(const PlanProblem& problem, const Plan& plan) {
  PlanFile out;
  out.model = problem.graph.name;
  out.cluster = problem.cluster.name;
  out.planner = plan.planner;
  out.samples = step_samples(problem);
  for (const PlanStage& from : plan.stages) {
    PlanFile::Stage& stage = out.stages.emplace_back();
    stage.name = from.name;
    for (std::size_t i = 0; i < from.nodes.size(); ++i) {
      const PlanNode& node = problem.graph.nodes[at(from.nodes[i])];
      stage.nodes.push_back(node.name);
      const NodeCost& way = node.costs[from.choices.empty() ? 0 : at(from.choices[i])];
      if (way.recompute) stage.recompute.push_back(node.name);
      if (way.swap_bytes > 0) stage.swap.push_back(node.name);
    }
    stage.devices = from.devices;
    stage.micro_batch = batch_of(problem, from);
  }
  plan.degrees ? add_group_figures(problem, plan, out) : add_figures(problem, plan, out);
  out.bottleneck = plan.bottleneck;
  out.predicted_time = plan.predicted_time;
  out.lower_bound = plan.lower_bound;
  out.search_seconds = plan.search_seconds;
  out.optimal = plan.lower_bound > 0 && plan.predicted_time <= plan.lower_bound * kExactBound;
  out.peak_bytes = plan.peak_bytes;
  out.schedule = plan.schedule;
  return out;
}

std::string devices_text(const PlanFile::Stage& stage) {
  const int first = stage.devices.front(), count = static_cast<int>(stage.devices.size());
  if (count > 2 && stage.devices.back() - first + 1 == count) return concat(first, "-", stage.devices.back());
  return join(stage.devices, ",", [](int device) { return std::to_string(device); });
}

std::vector<int> devices_of_actors(const PlanFile& plan) {
  std::vector<int> counts;
  std::map<int, std::size_t> holder;  // of each device, the actor
  for (std::size_t actor = 0; actor < plan.schedule.actors.size(); ++actor) {
    const PlanFile::Stage* stage = stage_of_actor(plan, actor);
    const int split = plan.split.devices(), devices = stage == nullptr ? split : static_cast<int>(stage->devices.size());
    if (devices % split != 0)
      throw Error(concat(plan.file, ": stage ", quote(stage->name), " has ", devices, " devices"),
                  {concat("tensors are split over tensor = ", plan.split.tensor, " times context = ", plan.split.context)});
    counts.push_back(devices / split);
    if (stage == nullptr) continue;
    if (counts.back() % plan.local != 0)
      throw Error(concat(plan.file, ": stage ", quote(stage->name), " has ", counts.back(),
                         " devices, which are no nodes of local = ", plan.local));
    for (const int device : stage->devices) {
      const auto [there, is_new] = holder.emplace(device, actor);
      if (!is_new)
        throw Error(concat(plan.file, ": device ", device, " of stage ", quote(stage->name), " is taken"),
                    {concat("actor ", there->second, " of the table has it")});
    }
  }
  return counts;
}

void check_runnable(const PlanFile& plan, std::int64_t batch) {
  const std::vector<int> devices = devices_of_actors(plan);
  const int parts = shares_of(devices);
  if (batch % (static_cast<std::int64_t>(plan.microbatches) * parts) == 0) return;
  const std::string what = concat(plan.file, ": ", batch, " samples cannot be cut into ", plan.microbatches, " micro-batches");
  if (parts == 1) throw Error(what);
  std::vector<std::string> details;
  for (const PlanFile::Stage& stage : plan.stages)
    if (stage.devices.size() > 1) details.push_back(concat("stage ", quote(stage.name), " has ", stage.devices.size(), " devices"));
  throw Error(concat(what, " of ", parts, " equal parts"), details, "plan with other sizes (--microbatch-sizes), or with --no-replicas");
}

void check_nodes(const PlanFile& plan, const std::vector<std::string>& nodes) {
  std::set<std::string> left(nodes.begin(), nodes.end()), names;
  for (const PlanFile::Stage& stage : plan.stages) {
    if (!names.insert(stage.name).second) throw Error(concat(plan.file, ": two stages are called ", quote(stage.name)));
    for (const std::string& node : stage.nodes) {
      if (left.erase(node) > 0) continue;
      if (std::find(nodes.begin(), nodes.end(), node) != nodes.end())
        throw Error(concat(plan.file, ": two stages have node ", quote(node)));
      const std::string near = nearest(node, nodes);
      throw Error(
          concat(plan.file, ": stage ", quote(stage.name), " has node ", quote(node), ", which the model has not"),
          {concat("the model's nodes: ", list_text(nodes))},
          near.empty() ? "plan this model: penstock plan CONFIG --cluster local --out FILE" : concat("its nearest is ", quote(near)));
    }
  }
  if (!left.empty())
    throw Error(concat(plan.file, ": no stage has ", left.size(), left.size() == 1 ? " node" : " nodes", " of the model"),
                {list_text({left.begin(), left.end()})}, "plan this model: penstock plan CONFIG --cluster local --out FILE");
}

Schedule renumbered(const PlanFile& plan, Schedule schedule, const std::vector<std::string>& names) {
  std::vector<std::int32_t> number;  // there; -1: nowhere
  for (const PlanFile::Stage& stage : plan.stages) {
    const auto found = std::find(names.begin(), names.end(), stage.name);
    number.push_back(found == names.end() ? -1 : static_cast<std::int32_t>(found - names.begin()));
  }
  schedule.cells.clear();
  for (auto& row : schedule.actors) {
    std::erase_if(row, [&](const Action& action) { return number.at(action.stage) < 0; });
    for (Action& action : row) action.stage = number[action.stage];
  }
  return schedule;
}

}  // namespace penstock
