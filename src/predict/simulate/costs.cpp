// SPDX-License-Identifier: Apache-2.0
#include "penstock/costs.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/json.h"
#include "base/text.h"
#include "penstock/error.h"
#include "schedule/kinds.h"

namespace penstock {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kHeader = "costs 1";

Sample read_sample(const JsonNode& node) {
  node.check_keys({"median", "mean", "spread", "count"});
  Sample sample{node.at("median").number(), node.at("spread").number(), node.at("count").whole(1)};
  if (node.has("mean")) sample.mean = node.at("mean").number();
  return sample;
}

std::uint64_t read_hash(const JsonNode& node) {
  const std::string& text = node.text();
  std::uint64_t hash = 0;
  const char* end = text.data() + text.size();
  const bool prefixed = text.starts_with("0x") && text.size() == 18;
  if (!prefixed || std::from_chars(text.data() + 2, end, hash, 16).ptr != end)
    node.fail(concat("is ", quote(text), "; it must be 0x and 16 hexadecimal digits"));
  return hash;
}

TaskCost read_task(const JsonNode& node) {
  node.check_keys({"hash", "name", "kind", "stage", "stages", "light", "alone", "busy", "beside", "kernel_bytes"});
  TaskCost task;
  task.hash = read_hash(node.at("hash"));
  task.name = node.at("name").text();
  if (node.has("stage")) {
    task.stages = static_cast<std::int32_t>(node.at("stages").whole(1, INT32_MAX));
    task.stage = static_cast<std::int32_t>(node.at("stage").whole(0, task.stages - 1));
    const JsonNode kind = node.at("kind");
    if (!parse_kind(kind.text(), task.kind)) kind.fail(concat("is ", quote(kind.text()), "; there is no such kind of action"));
    if (node.has("light")) task.light = node.at("light").flag();
  }
  if (node.has("alone")) task.alone = read_sample(node.at("alone"));
  if (node.has("busy")) task.busy = read_sample(node.at("busy"));
  node.at("beside").each_member([&](const std::string& backend, const JsonNode& sample) { task.beside[backend] = read_sample(sample); });
  if (node.has("kernel_bytes")) task.kernel_bytes = node.at("kernel_bytes").whole(0);
  return task;
}

Link read_link(const JsonNode& node) {
  node.check_keys({"latency", "bandwidth", "start_seconds", "send_seconds_per_byte", "second_end_copies", "wake_seconds", "medium"});
  Link link;
  link.latency = node.at("latency").number();
  if (node.has("bandwidth")) link.bandwidth = node.at("bandwidth").positive();
  link.start_seconds = node.at("start_seconds").number();
  if (node.has("send_seconds_per_byte")) link.send_seconds_per_byte = node.at("send_seconds_per_byte").number();
  link.second_end_copies = node.at("second_end_copies").flag();
  link.wake_seconds = node.at("wake_seconds").number();
  if (node.has("medium")) link.medium = static_cast<std::int32_t>(node.at("medium").whole(0, INT32_MAX));
  return link;
}

std::map<Opcode, Link> read_collectives(const JsonNode& node) {
  std::map<Opcode, Link> out;
  node.each_member([&](const std::string& kind, const JsonNode& link) {
    for (const Opcode opcode : {Opcode::all_reduce, Opcode::all_gather, Opcode::reduce_scatter, Opcode::broadcast, Opcode::all_to_all})
      if (name(opcode) == kind) {
        out[opcode] = read_link(link);
        return;
      }
    link.fail("is of no kind of collective");
  });
  return out;
}

ActionFit read_action_fit(const JsonNode& node) {
  node.check_keys({"kind", "stage", "per_amount"});
  ActionFit fit;
  const JsonNode kind = node.at("kind"), amounts = node.at("per_amount");
  if (!parse_kind(kind.text(), fit.kind)) kind.fail(concat("is ", quote(kind.text()), "; there is no such kind of action"));
  fit.stage = static_cast<std::int32_t>(node.at("stage").whole(0, INT32_MAX));
  std::size_t count = 0;
  amounts.each_element([&](const JsonNode& amount) {
    if (count < fit.per_amount.size()) fit.per_amount[count] = amount.number();
    ++count;
  });
  if (count != fit.per_amount.size()) amounts.fail(concat("has ", count, " numbers; it must have ", fit.per_amount.size()));
  return fit;
}

BatchFit read_batch_fit(const JsonNode& node) {
  node.check_keys({"stages", "actions", "beyond", "spread", "under"});
  BatchFit fit{.stages = static_cast<std::int32_t>(node.at("stages").whole(1, INT32_MAX)),
               .actions = {},
               .beyond = node.at("beyond").number(),
               .spread = node.at("spread").number(),
               .under = node.has("under") ? node.at("under").text() : ""};
  node.at("actions").each_element([&](const JsonNode& action) { fit.actions.push_back(read_action_fit(action)); });
  return fit;
}

MachineDescription read_machine(const JsonNode& node) {
  node.check_keys({"processor", "cores", "memory_bytes", "build"});
  return {node.at("processor").text(), node.at("cores").whole(0), node.at("memory_bytes").whole(0), node.at("build").text()};
}

std::map<std::string, double> read_numbers(const JsonNode& node) {
  std::map<std::string, double> out;
  node.each_member([&](const std::string& key, const JsonNode& value) { out[key] = value.number(); });
  return out;
}

ordered_json json_of(const Sample& sample) {
  ordered_json out = {{"median", sample.median}, {"spread", sample.spread}, {"count", sample.count}};
  if (sample.mean > 0) out["mean"] = sample.mean;
  return out;
}

ordered_json json_of(const TaskCost& task) {
  ordered_json out = {{"hash", hash_text(task.hash)}, {"name", task.name}};
  if (task.stage >= 0) {
    out["kind"] = name(task.kind);
    out["stage"] = task.stage;
    out["stages"] = task.stages;
    if (task.light) out["light"] = true;
  }
  if (task.alone) out["alone"] = json_of(*task.alone);
  if (task.busy) out["busy"] = json_of(*task.busy);
  out["beside"] = ordered_json::object();
  for (const auto& [backend, sample] : task.beside) out["beside"][backend] = json_of(sample);
  out["kernel_bytes"] = task.kernel_bytes;
  return out;
}

ordered_json json_of(const Link& link) {
  ordered_json out = {{"latency", link.latency}};
  if (std::isfinite(link.bandwidth)) out["bandwidth"] = link.bandwidth;
  out["start_seconds"] = link.start_seconds;
  if (link.send_seconds_per_byte > 0) out["send_seconds_per_byte"] = link.send_seconds_per_byte;
  out["second_end_copies"] = link.second_end_copies;
  out["wake_seconds"] = link.wake_seconds;
  if (link.medium >= 0) out["medium"] = link.medium;
  return out;
}

ordered_json json_of(const BatchFit& fit) {
  ordered_json actions = ordered_json::array();
  for (const ActionFit& action : fit.actions)
    actions.push_back({{"kind", name(action.kind)}, {"stage", action.stage}, {"per_amount", action.per_amount}});
  return {{"stages", fit.stages}, {"actions", std::move(actions)}, {"beyond", fit.beyond}, {"spread", fit.spread}, {"under", fit.under}};
}

ordered_json json_of(const std::map<std::string, double>& numbers) {
  ordered_json out = ordered_json::object();
  for (const auto& [key, value] : numbers) out[key] = value;
  return out;
}

}  // namespace

std::uint64_t cost_hash(const Graph& graph) {
  Graph copy = graph;
  for (Op& op : copy.ops)
    for (auto& [name, value] : op.attributes)
      if (std::holds_alternative<double>(value) || name == "fill_value") value = 0.0;
  return structural_hash(copy);
}

std::string hash_text(std::uint64_t hash) {
  std::string digits(16, '0');
  for (std::size_t i = 16; i-- > 0; hash /= 16) digits[i] = "0123456789abcdef"[hash % 16];
  return "0x" + digits;
}

Costs parse_costs(std::string_view text, const std::string& file) {
  const JsonFile source{file, "measure again with penstock profile"};
  const json document = parse_json(text, source);
  if (!document.is_object() || !document.contains("penstock"))
    throw Error(concat(file, " is no file of costs: it has no key \"penstock\""), {}, "penstock profile --out FILE writes one");
  if (document["penstock"] != kHeader)
    throw Error(concat(file, ": penstock is ", shown(document["penstock"]), "; this build reads ", quote(kHeader)), {},
                "measure again with penstock profile");
  const JsonNode root(document, source);
  root.check_keys(
      {"penstock", "machine", "model", "tasks", "links", "collectives", "step_overhead", "input_seconds", "copy_bandwidth", "batches"});
  Costs costs;
  costs.machine = read_machine(root.at("machine"));
  costs.model = root.at("model").text();
  std::map<std::uint64_t, std::string> names;
  root.at("tasks").each_element([&](const JsonNode& node) {
    costs.tasks.push_back(read_task(node));
    const TaskCost& task = costs.tasks.back();
    const auto [before, fresh] = names.emplace(task.hash, task.name);
    if (!fresh)
      node.fail(concat("(", task.name, ") has the hash ", hash_text(task.hash), " of ", before->second, ": a task is there twice"));
  });
  root.at("links").each_member([&](const std::string& backend, const JsonNode& link) { costs.links[backend] = read_link(link); });
  if (root.has("collectives"))
    root.at("collectives").each_member([&](const std::string& backend, const JsonNode& kinds) {
      costs.collectives[backend] = read_collectives(kinds);
    });
  costs.step_overhead = read_numbers(root.at("step_overhead"));
  costs.input_seconds = read_numbers(root.at("input_seconds"));
  costs.copy_bandwidth = root.at("copy_bandwidth").number();
  if (root.has("batches"))
    root.at("batches").each_member([&](const std::string& backend, const JsonNode& fit) { costs.batches[backend] = read_batch_fit(fit); });
  return costs;
}

std::string print(const Costs& costs) {
  ordered_json out = {{"penstock", kHeader},
                      {"machine",
                       {{"processor", costs.machine.processor},
                        {"cores", costs.machine.cores},
                        {"memory_bytes", costs.machine.memory_bytes},
                        {"build", costs.machine.build}}},
                      {"model", costs.model},
                      {"tasks", ordered_json::array()},
                      {"links", ordered_json::object()},
                      {"step_overhead", json_of(costs.step_overhead)},
                      {"input_seconds", json_of(costs.input_seconds)},
                      {"copy_bandwidth", costs.copy_bandwidth}};
  for (const TaskCost& task : costs.tasks) out["tasks"].push_back(json_of(task));
  for (const auto& [backend, link] : costs.links) out["links"][backend] = json_of(link);
  for (const auto& [backend, kinds] : costs.collectives)
    for (const auto& [opcode, link] : kinds) out["collectives"][backend][std::string(name(opcode))] = json_of(link);
  for (const auto& [backend, fit] : costs.batches) out["batches"][backend] = json_of(fit);
  return out.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

namespace {

// At each start a system keeps a little more or less of a machine's memory for itself.
bool is_same_memory(std::int64_t a, std::int64_t b) {
  return std::abs(a - b) <= std::max(a, b) / 100;
}

}  // namespace

void merge(Costs& costs, const Costs& newer, const std::string& file) {
  std::vector<std::string> differences;
  const auto compare = [&](const char* what, const auto& old_value, const auto& new_value) {
    if (old_value != new_value) differences.push_back(concat(what, ": ", old_value, ", here ", new_value));
  };
  compare("processor", costs.machine.processor, newer.machine.processor);
  compare("cores", costs.machine.cores, newer.machine.cores);
  if (!is_same_memory(costs.machine.memory_bytes, newer.machine.memory_bytes))
    compare("memory", costs.machine.memory_bytes, newer.machine.memory_bytes);
  compare("build", costs.machine.build, newer.machine.build);
  compare("model", costs.model, newer.model);
  if (!differences.empty())
    throw Error(concat(file, " was measured on another machine or for another model; nothing can be added to it"), differences,
                "name another file with --out");
  for (const TaskCost& task : newer.tasks) {
    const auto old = std::find_if(costs.tasks.begin(), costs.tasks.end(), [&](const TaskCost& t) { return t.hash == task.hash; });
    if (old == costs.tasks.end()) {
      costs.tasks.push_back(task);
      continue;
    }
    if (task.alone) old->alone = task.alone;
    if (task.busy) old->busy = task.busy;
    for (const auto& [backend, sample] : task.beside) old->beside[backend] = sample;
    old->kernel_bytes = std::max(old->kernel_bytes, task.kernel_bytes);
  }
  for (const auto& [backend, link] : newer.links) costs.links[backend] = link;
  for (const auto& [backend, kinds] : newer.collectives)
    for (const auto& [opcode, link] : kinds) costs.collectives[backend][opcode] = link;
  for (const auto& [backend, seconds] : newer.step_overhead) costs.step_overhead[backend] = seconds;
  for (const auto& [backend, fit] : newer.batches) costs.batches[backend] = fit;
  for (const auto& [port, seconds] : newer.input_seconds) costs.input_seconds[port] = seconds;
  if (newer.copy_bandwidth > 0) costs.copy_bandwidth = newer.copy_bandwidth;
}

}  // namespace penstock
