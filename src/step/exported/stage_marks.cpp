// SPDX-License-Identifier: Apache-2.0
#include "exported/stage_marks.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <set>
#include <unordered_map>

#include "base/text.h"
#include "base/words.h"
#include "ops/definition.h"
#include "penstock/error.h"

namespace penstock {
namespace {

bool lies_in(std::string_view path, std::string_view module) {
  return path.starts_with(module) && (path.size() == module.size() || path[module.size()] == '.');
}

// "a.b.c" gives "a", "a.b", "a.b.c".
std::vector<std::string> prefixes(const std::string& path) {
  std::vector<std::string> out;
  for (std::size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1)) out.push_back(path.substr(0, dot));
  if (!path.empty()) out.push_back(path);
  return out;
}

bool is_member_of_list(const std::string& path) {
  const std::string last = path.substr(path.rfind('.') + 1);
  return !last.empty() && std::ranges::all_of(last, [](unsigned char c) { return std::isdigit(c); });
}

// A module that may begin a stage, and the forward work that lies in front of it.
struct Begin {
  std::string path;
  double before = 0;
};

// The first op of each module; the whole forward work stands in `total`.
std::vector<Begin> begins_of(const Graph& graph, double& total) {
  std::vector<Begin> out;
  std::set<std::string> seen;
  for (const Op& op : graph.ops) {
    if (op.phase == Phase::backward) continue;
    for (const std::string& path : prefixes(op.origin))
      if (seen.insert(path).second) out.push_back({path, total});
    const OpCost c = cost(graph, op);
    total += std::max(c.flops / 10, c.bytes);  // a roofline of ten operations for each byte
  }
  return out;
}

// Backward ops lie where their forward ops do. Sums of gradients lie where these arise, which is found out later (stage/stages.h).
void mark_backward(Graph& graph) {
  std::unordered_map<std::int64_t, std::string> stage_of;  // by sequence
  for (const Op& op : graph.ops)
    if (op.phase == Phase::forward && !op.stage.empty()) stage_of.emplace(op.sequence, op.stage);
  for (Op& op : graph.ops) {
    const auto forward = stage_of.find(op.sequence);
    if (op.phase == Phase::backward && op.name != "add_n" && !op.operands.empty() && forward != stage_of.end()) op.stage = forward->second;
  }
}

// Marks the forward ops. All ops that one op of PyTorch has become lie in one stage, also those that stand behind all others (carried.h).
void mark_forward(Graph& graph, const std::vector<std::string>& begins) {
  std::size_t next = 0;
  std::set<std::string> passed;
  std::unordered_map<std::int64_t, std::string> stage_of;  // by sequence
  for (Op& op : graph.ops) {
    if (op.phase == Phase::backward) continue;
    if (const auto known = stage_of.find(op.sequence); op.sequence >= 0 && known != stage_of.end()) {
      if (!op.operands.empty()) op.stage = known->second;
      continue;
    }
    for (; next < begins.size() && !begins[next].empty() && lies_in(op.origin, begins[next]); ++next) {
      if (passed.contains(begins[next]))
        throw Error(concat("stage ", next + 1, " begins at ", quote(begins[next]), ", which has begun before"), {},
                    "name the modules in the order in which they run");
    }
    for (const std::string& path : prefixes(op.origin)) passed.insert(path);
    if (op.operands.empty()) continue;
    op.stage = std::to_string(next);
    if (op.sequence >= 0) stage_of.emplace(op.sequence, op.stage);
  }
  while (next < begins.size() && begins[next].empty()) ++next;  // nothing of these stages is left
  if (next == begins.size()) return;
  if (passed.contains(begins[next]))
    throw Error(concat("stage ", next + 1, " begins at ", quote(begins[next]), ", which runs before ", quote(begins[next - 1])), {},
                "name the modules in the order in which they run");
  throw Error(concat("no op comes from the module ", quote(begins[next])), {}, did_you_mean(begins[next], module_paths(graph)));
}

// For each path the one at which its stage begins here: the next in the order that an op comes from; "": none does.
std::vector<std::string> begins_here(const Graph& graph, std::vector<std::string> begins, const std::vector<std::string>& order) {
  const std::vector<std::string> here = module_paths(graph);
  const auto is_here = [&](const std::string& path) { return std::ranges::find(here, path) != here.end(); };
  for (std::string& begin : begins) {
    const auto place = std::ranges::find(order, begin);
    if (is_here(begin) || place == order.end()) continue;
    const auto next = std::find_if(place, order.end(), is_here);
    begin = next == order.end() ? "" : *next;
  }
  return begins;
}

// A copy of `value` that is computed in that stage, as the op in front of `behind`.
ValueId copied_in_stage(Graph& graph, std::size_t behind, ValueId value, const std::string& stage) {
  const TensorType type = graph.type(value);
  const ValueId copy = graph.add_value(type);
  std::int64_t last = 0;
  for (const Op& op : graph.ops) last = std::max(last, op.sequence);
  Op made;
  made.name = "reshape";
  made.operands = {value};
  made.results = {copy};
  made.attributes = {{"shape", type.shape}};
  made.stage = stage;
  made.sequence = last + 1;
  graph.ops.insert(graph.ops.begin() + static_cast<std::ptrdiff_t>(behind), std::move(made));
  return copy;
}

// Gives each stage without an op one that copies what the next op behind it reads of those in front, or the result.
void fill_stages(Graph& graph, std::size_t stages, std::size_t result) {
  std::set<std::size_t> filled;
  const auto stage_of = [](const Op& op) { return static_cast<std::size_t>(std::stoul(op.stage)); };
  for (const Op& op : graph.ops)
    if (op.phase == Phase::forward && !op.stage.empty()) filled.insert(stage_of(op));
  for (std::size_t stage = 0; stage < stages; ++stage) {
    if (filled.contains(stage)) continue;
    const IdVector<ValueId, OpId> made = producers(graph);
    const auto is_ahead = [&](ValueId value) {
      const Op* op = made[value] ? &graph.ops[made[value]] : nullptr;
      return op ? !op->stage.empty() && stage_of(*op) < stage : stage == 0;
    };
    std::size_t at = 0;
    std::optional<std::size_t> operand;
    for (; at < graph.ops.size() && !operand; ++at) {
      const Op& op = graph.ops[at];
      if (op.phase == Phase::backward || op.stage.empty() || stage_of(op) <= stage) continue;
      const auto found = std::ranges::find_if(op.operands, is_ahead);
      if (found != op.operands.end()) operand = static_cast<std::size_t>(found - op.operands.begin());
    }
    const std::string name = std::to_string(stage);
    if (!operand) {
      graph.outputs[result] = copied_in_stage(graph, graph.ops.size(), graph.outputs[result], name);
      continue;
    }
    const ValueId copy = copied_in_stage(graph, at - 1, graph.ops[at - 1].operands[*operand], name);
    graph.ops[at].operands[*operand] = copy;
  }
}

}  // namespace

void mark_stages(Graph& graph, const std::vector<std::string>& begins, const std::vector<std::string>& order, std::size_t result) {
  mark_forward(graph, begins_here(graph, begins, order));
  mark_backward(graph);
  if (!order.empty()) fill_stages(graph, begins.size() + 1, result);
}

std::vector<std::string> even_stages(const Graph& graph, int stages) {
  double total = 0;
  std::vector<Begin> all = begins_of(graph, total);
  std::erase_if(all, [](const Begin& begin) { return begin.before <= 0; });  // it begins the first stage
  std::vector<Begin> blocks = all;
  std::erase_if(blocks, [](const Begin& begin) { return !is_member_of_list(begin.path); });
  // Where modules begin with no work between them, only the outermost could begin a stage that has some.
  const auto drop_inner = [](std::vector<Begin>& begins) {
    begins.erase(std::ranges::unique(begins, {}, &Begin::before).begin(), begins.end());
  };
  drop_inner(blocks);
  drop_inner(all);
  if (std::ssize(blocks) + 1 >= stages) all = std::move(blocks);
  std::vector<std::string> out;
  std::size_t at = 0;
  for (int stage = 1; stage < stages; ++stage) {
    const auto left = static_cast<std::size_t>(stages - 1 - stage);  // stages that still need a beginning behind this one
    if (at + left >= all.size())
      throw Error(concat("the module cannot be cut into ", counted(stages, "stage")),
                  {concat("stages begin where modules do: there are ", all.size() + 1)}, "take fewer stages");
    const double wanted = total * stage / stages;
    std::size_t best = at;
    for (std::size_t i = at; i + left < all.size(); ++i)
      if (std::abs(all[i].before - wanted) < std::abs(all[best].before - wanted)) best = i;
    out.push_back(all[best].path);
    at = best + 1;
  }
  return out;
}

std::vector<std::string> module_paths(const Graph& graph) {
  std::vector<std::string> out;
  std::set<std::string> seen;
  for (const Op& op : graph.ops)
    for (const std::string& path : prefixes(op.origin))
      if (seen.insert(path).second) out.push_back(path);
  return out;
}

}  // namespace penstock
