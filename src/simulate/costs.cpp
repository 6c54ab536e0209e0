#include "simulate/costs.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/cursor.h"
#include "base/text.h"
#include "penstock/error.h"
#include "schedule/kinds.h"

namespace penstock {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kHeader = "costs 1";
constexpr std::int64_t kMost = std::int64_t{1} << 53;  // what every reader of JSON can hold

std::string shown(const json& value) {
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

// One value of the file, and where it stands: "costs.json: tasks[3].alone.median".
class Node {
 public:
  Node(const json& value, const std::string& file, std::string path) : value_(value), file_(file), path_(std::move(path)) {}

  [[noreturn]] void fail(const std::string& what, const std::string& hint = {}) const {
    throw Error(concat(file_, path_.empty() ? "" : ": ", path_, " ", what), {}, hint);
  }

  double number() const {
    if (!value_.is_number()) fail(concat("is ", shown(value_), "; it must be a number"));
    const auto number = value_.get<double>();
    if (number < 0) fail(concat("is ", shown(value_), "; it must not be negative"));
    return number;
  }
  double positive() const {
    const double value = number();
    if (value == 0) fail("is 0; it must be more");
    return value;
  }
  std::int64_t whole(std::int64_t least, std::int64_t most = kMost) const {
    const double value = value_.is_number_integer() ? value_.get<double>() : -1.0;
    if (value < static_cast<double>(least) || value > static_cast<double>(most))
      fail(concat("is ", shown(value_), "; it must be a whole number from ", least, most < kMost ? concat(" to ", most) : ""));
    return value_.get<std::int64_t>();
  }
  const std::string& text() const {
    if (!value_.is_string()) fail(concat("is ", shown(value_), "; it must be a text"));
    return value_.get_ref<const std::string&>();
  }
  bool flag() const {
    if (!value_.is_boolean()) fail(concat("is ", shown(value_), "; it must be true or false"));
    return value_.get<bool>();
  }

  // Calls `read` with each element of a list, or each key and value of an object.
  template <class Read>
  void each_element(Read&& read) const {
    if (!value_.is_array()) fail(concat("is ", shown(value_), "; it must be a list"));
    for (std::size_t i = 0; i < value_.size(); ++i) read(Node(value_[i], file_, concat(path_, "[", i, "]")));
  }
  template <class Read>
  void each_member(Read&& read) const {
    check_object();
    for (const auto& [key, value] : value_.items()) read(key, Node(value, file_, below(key)));
  }

  void check_object() const {
    if (!value_.is_object()) fail(concat("is ", shown(value_), "; it must be an object"));
  }
  // An object with no other keys than these.
  void check_keys(const std::vector<std::string>& known) const {
    check_object();
    for (const auto& [key, value] : value_.items()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      const std::string near = nearest(key, known);
      fail(concat("has an unknown key ", quote(key)),
           near.empty() ? "known: " + join(known, ", ") : concat("did you mean ", quote(near), "?"));
    }
  }
  bool has(const char* key) const { return value_.contains(key); }
  Node at(const char* key) const {
    check_object();
    if (!has(key))
      fail(concat("has no key ", quote(key)), "the file is damaged, or of another version: measure again with penstock profile");
    return {value_[key], file_, below(key)};
  }

 private:
  std::string below(const std::string& key) const { return concat(path_, path_.empty() ? "" : ".", key); }

  const json& value_;
  const std::string& file_;
  std::string path_;
};

Sample read_sample(const Node& node) {
  node.check_keys({"median", "mean", "spread", "count"});
  Sample sample{node.at("median").number(), node.at("spread").number(), node.at("count").whole(1)};
  if (node.has("mean")) sample.mean = node.at("mean").number();
  return sample;
}

std::uint64_t read_hash(const Node& node) {
  const std::string& text = node.text();
  std::uint64_t hash = 0;
  const char* end = text.data() + text.size();
  const bool prefixed = text.starts_with("0x") && text.size() == 18;
  if (!prefixed || std::from_chars(text.data() + 2, end, hash, 16).ptr != end)
    node.fail(concat("is ", quote(text), "; it must be 0x and 16 hexadecimal digits"));
  return hash;
}

TaskCost read_task(const Node& node) {
  node.check_keys({"hash", "name", "kind", "stage", "stages", "light", "alone", "busy", "beside", "kernel_bytes"});
  TaskCost task;
  task.hash = read_hash(node.at("hash"));
  task.name = node.at("name").text();
  if (node.has("stage")) {
    task.stages = static_cast<std::int32_t>(node.at("stages").whole(1, INT32_MAX));
    task.stage = static_cast<std::int32_t>(node.at("stage").whole(0, task.stages - 1));
    const Node kind = node.at("kind");
    if (!parse_kind(kind.text(), task.kind)) kind.fail(concat("is ", quote(kind.text()), "; there is no such kind of action"));
    if (node.has("light")) task.light = node.at("light").flag();
  }
  if (node.has("alone")) task.alone = read_sample(node.at("alone"));
  if (node.has("busy")) task.busy = read_sample(node.at("busy"));
  node.at("beside").each_member([&](const std::string& backend, const Node& sample) { task.beside[backend] = read_sample(sample); });
  if (node.has("kernel_bytes")) task.kernel_bytes = node.at("kernel_bytes").whole(0);
  return task;
}

Link read_link(const Node& node) {
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

MachineDescription read_machine(const Node& node) {
  node.check_keys({"processor", "cores", "memory_bytes", "build"});
  return {node.at("processor").text(), node.at("cores").whole(0), node.at("memory_bytes").whole(0), node.at("build").text()};
}

std::map<std::string, double> read_numbers(const Node& node) {
  std::map<std::string, double> out;
  node.each_member([&](const std::string& key, const Node& value) { out[key] = value.number(); });
  return out;
}

// The library keeps the last of two equal keys; two measurements of one thing are a mistake.
class DoubledKeys {
 public:
  explicit DoubledKeys(const std::string& file) : file_(file) {}

  bool operator()(int, json::parse_event_t event, const json& parsed) {
    if (event == json::parse_event_t::object_start) open_.emplace_back();
    if (event == json::parse_event_t::object_end) open_.pop_back();
    if (event == json::parse_event_t::key && !open_.back().insert(parsed.get<std::string>()).second)
      throw Error(concat(file_, ": the key ", quote(parsed.get<std::string>()), " is there twice in one object"));
    return true;
  }

 private:
  const std::string& file_;
  std::vector<std::set<std::string>> open_;  // keys of the objects around the parser's place
};

json parse_json(std::string_view text, const std::string& file) {
  try {
    DoubledKeys check(file);
    return json::parse(text, [&](int depth, json::parse_event_t event, const json& parsed) { return check(depth, event, parsed); });
  } catch (const json::parse_error& error) {
    const std::size_t position = std::min(error.byte > 0 ? error.byte - 1 : 0, text.size());
    Cursor(file, text).fail_at(position, "this is not JSON", "measure again with penstock profile");
  } catch (const json::exception&) {
    throw Error(concat(file, ": a number is too large"));
  }
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
  const json document = parse_json(text, file);
  if (!document.is_object() || !document.contains("penstock"))
    throw Error(concat(file, " is no file of costs: it has no key \"penstock\""), {}, "penstock profile --out FILE writes one");
  if (document["penstock"] != kHeader)
    throw Error(concat(file, ": penstock is ", shown(document["penstock"]), "; this build reads ", quote(kHeader)), {},
                "measure again with penstock profile");
  const Node root(document, file, "");
  root.check_keys({"penstock", "machine", "model", "tasks", "links", "step_overhead", "input_seconds", "copy_bandwidth"});
  Costs costs;
  costs.machine = read_machine(root.at("machine"));
  costs.model = root.at("model").text();
  std::map<std::uint64_t, std::string> names;
  root.at("tasks").each_element([&](const Node& node) {
    costs.tasks.push_back(read_task(node));
    const TaskCost& task = costs.tasks.back();
    const auto [before, fresh] = names.emplace(task.hash, task.name);
    if (!fresh)
      node.fail(concat("(", task.name, ") has the hash ", hash_text(task.hash), " of ", before->second, ": a task is there twice"));
  });
  root.at("links").each_member([&](const std::string& backend, const Node& link) { costs.links[backend] = read_link(link); });
  costs.step_overhead = read_numbers(root.at("step_overhead"));
  costs.input_seconds = read_numbers(root.at("input_seconds"));
  costs.copy_bandwidth = root.at("copy_bandwidth").number();
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
  return out.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

void merge(Costs& costs, const Costs& newer, const std::string& file) {
  std::vector<std::string> differences;
  const auto compare = [&](const char* what, const auto& old_value, const auto& new_value) {
    if (old_value != new_value) differences.push_back(concat(what, ": ", old_value, ", here ", new_value));
  };
  compare("processor", costs.machine.processor, newer.machine.processor);
  compare("cores", costs.machine.cores, newer.machine.cores);
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
  for (const auto& [backend, seconds] : newer.step_overhead) costs.step_overhead[backend] = seconds;
  for (const auto& [port, seconds] : newer.input_seconds) costs.input_seconds[port] = seconds;
  if (newer.copy_bandwidth > 0) costs.copy_bandwidth = newer.copy_bandwidth;
}

}  // namespace penstock
