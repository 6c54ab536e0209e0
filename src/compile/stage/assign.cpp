// SPDX-License-Identifier: Apache-2.0
// Which stage every op of the loop body belongs to.
#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/text.h"
#include "penstock/error.h"
#include "stage/loop.h"
#include "stage/stages.h"

namespace penstock {
namespace {

constexpr int kNone = -1;
using Stages = std::vector<int>;  // sorted, without repetition

std::string show(const Graph& graph, const Op& op) {
  std::string out = concat(op.name, "(", join(op.operands, ", ", [&](ValueId v) { return graph.type(v).text(); }), ")");
  return op.origin.empty() ? out : concat(out, " of ", quote(op.origin));
}

bool is_forward(const Op& op) {
  return op.phase == Phase::forward;
}

// The stages that the body's marks name. Stages have numbers, in order of first appearance.
struct Marks {
  std::vector<std::string> names;
  std::map<std::string, int> number;
  std::vector<int> stage;  // by op
};

int stage_number(Marks& marks, const std::string& name) {
  const auto [it, added] = marks.number.try_emplace(name, static_cast<int>(marks.names.size()));
  if (added) marks.names.push_back(name);
  return it->second;
}

// Boundary k ends stage k: what its operand was computed from, unmarked and not of an earlier stage, is stage k, and its result enters
// stage k+1 (JaxPP, section 3: each mark in order takes what its operand is made of).
void take_boundaries(const Graph& body, const std::vector<OpId>& producer, Marks& marks) {
  int count = 0;
  for (std::size_t i = 0; i < body.ops.size(); ++i) {
    if (!is_boundary(body.ops[i])) continue;
    if (!body.ops[i].stage.empty())
      throw Error(concat("stage_boundary inside Stage scope ", quote(body.ops[i].stage)),
                  {"a model is cut by scopes or by boundaries, not by both at one place"},
                  "move the boundary out of the scope, or remove one of the two");
    const int stage = stage_number(marks, std::to_string(count++));
    std::vector<std::size_t> open = {i};
    while (!open.empty()) {
      const std::size_t at = open.back();
      open.pop_back();
      const Op& op = body.ops[at];
      if (marks.stage[at] != kNone || !op.stage.empty() || is_constant(op)) continue;
      marks.stage[at] = stage;
      for (ValueId operand : op.operands)
        if (producer[operand.index()]) open.push_back(producer[operand.index()].index());
    }
  }
  if (count > 0) stage_number(marks, std::to_string(count));  // what follows the last boundary
}

Marks marks_of(const Op& loop, const std::vector<OpId>& producer) {
  const Graph& body = *loop.body;
  Marks marks{{}, {}, std::vector<int>(body.ops.size(), kNone)};
  if (loop.attributes.contains("stages"))  // which may have no ops (transform/slices.h)
    for (const std::string& name : split(attribute<std::string>(loop, "stages"), ',')) stage_number(marks, name);
  take_boundaries(body, producer, marks);
  for (std::size_t i = 0; i < body.ops.size(); ++i)
    if (!body.ops[i].stage.empty() && !is_constant(body.ops[i])) marks.stage[i] = stage_number(marks, body.ops[i].stage);
  if (marks.names.empty()) stage_number(marks, "0");
  return marks;
}

int next_of(const Marks& marks, int boundary_stage) {
  return marks.number.at(std::to_string(std::stoi(marks.names[boundary_stage]) + 1));
}

using Reach = std::vector<std::vector<bool>>;  // stage -> stages that need it

Reach closure(const std::set<std::pair<int, int>>& edges, std::size_t stages) {
  Reach reach(stages, std::vector<bool>(stages));
  std::vector<std::vector<int>> next(stages);
  for (const auto& [from, to] : edges) next[from].push_back(to);
  for (std::size_t s = 0; s < stages; ++s) {
    std::vector<int> open = {static_cast<int>(s)};
    while (!open.empty()) {
      const int at = open.back();
      open.pop_back();
      for (int to : next[at])
        if (!reach[s][to]) {
          reach[s][to] = true;
          open.push_back(to);
        }
    }
  }
  return reach;
}

// By the edges between marked stages, seen through unmarked forward ops.
Reach reach_of(const Graph& body, const Marks& marks) {
  std::vector<Stages> nearest(body.values.size());
  std::set<std::pair<int, int>> edges;
  for (std::size_t i = 0; i < body.ops.size(); ++i) {
    const Op& op = body.ops[i];
    if (!is_forward(op)) continue;
    Stages in;
    for (ValueId operand : op.operands) in.insert(in.end(), nearest[operand.index()].begin(), nearest[operand.index()].end());
    std::sort(in.begin(), in.end());
    in.erase(std::unique(in.begin(), in.end()), in.end());
    if (const int stage = marks.stage[i]; stage != kNone) {
      for (int from : in)
        if (from != stage) edges.emplace(from, stage);
      in = {is_boundary(op) ? next_of(marks, stage) : stage};
      if (in[0] != stage) edges.emplace(stage, in[0]);
    }
    for (ValueId result : op.results) nearest[result.index()] = in;
  }
  Reach reach = closure(edges, marks.names.size());
  for (std::size_t s = 0; s < reach.size(); ++s)
    for (std::size_t t = 0; t < s; ++t)
      if (reach[s][t] && reach[t][s])
        throw Error(concat("stages ", quote(marks.names[t]), " and ", quote(marks.names[s]), " each need the other's results"),
                    {"a stage runs as a whole: what it reads must come from earlier stages"},
                    concat("give the ops between them a stage of their own, or mark both parts as one stage"));
  return reach;
}

// Topologically ordered; of stages without order between them the one marked first comes first.
std::vector<std::string> ordered_names(const Marks& marks, const Reach& reach) {
  std::vector<std::size_t> missing(reach.size());  // predecessors not yet placed
  for (const auto& row : reach)
    for (std::size_t t = 0; t < row.size(); ++t) missing[t] += row[t];
  std::set<std::size_t> ready;
  for (std::size_t s = 0; s < reach.size(); ++s)
    if (missing[s] == 0) ready.insert(s);
  std::vector<std::string> out;
  while (!ready.empty()) {
    const std::size_t s = *ready.begin();
    ready.erase(ready.begin());
    out.push_back(marks.names[s]);
    for (std::size_t t = 0; t < reach.size(); ++t)
      if (reach[s][t] && --missing[t] == 0) ready.insert(t);
  }
  return out;
}

// The facts from which the stages of ops without marks are inferred.
struct Marked {
  const Graph& body;
  const std::vector<OpId>& producer;
  const Marks& marks;
  const Reach& reach;
};

// The one of `candidates` that all others precede (`latest`) or that precedes all others; kNone if there is none. Throws Error where none
// of several is.
int choose(const Marked& in, const Op& op, Stages candidates, bool latest) {
  std::sort(candidates.begin(), candidates.end());
  candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
  if (candidates.empty()) return kNone;
  const auto is_extreme = [&](int s) {
    return std::all_of(candidates.begin(), candidates.end(), [&](int t) { return t == s || (latest ? in.reach[t][s] : in.reach[s][t]); });
  };
  const auto found = std::find_if(candidates.begin(), candidates.end(), is_extreme);
  if (found != candidates.end()) return *found;
  const std::vector<std::string>& names = in.marks.names;
  throw Error(
      concat("no stage can be inferred for ", show(in.body, op)),
      {concat("candidates: ", join(candidates, ", ", [&](int s) { return quote(names[s]); }), ", and none of them is ",
              latest ? "after all others" : "before all others")},
      concat("mark it: Stage s(", quote(names[candidates.back()]), "); around the code that makes it, or give it a stage of its own"));
}

// The stages that reading the op's operands brings in: their producers', or the next ones behind boundaries.
Stages stages_read(const Marked& in, const std::vector<int>& stage, const Op& op) {
  Stages out;
  for (ValueId operand : op.operands) {
    const OpId from = in.producer[operand.index()];
    if (!from || stage[from.index()] == kNone) continue;
    out.push_back(is_boundary(in.body.ops[from.index()]) ? next_of(in.marks, stage[from.index()]) : stage[from.index()]);
  }
  return out;
}

void infer_from_operands(const Marked& in, std::vector<int>& stage) {
  for (std::size_t i = 0; i < stage.size(); ++i) {
    const Op& op = in.body.ops[i];
    if (stage[i] == kNone && is_forward(op) && !is_constant(op)) stage[i] = choose(in, op, stages_read(in, stage, op), true);
  }
}

void infer_from_users(const Marked& in, std::vector<int>& stage) {
  std::vector<Stages> users(in.body.values.size());
  for (std::size_t i = stage.size(); i-- > 0;) {
    const Op& op = in.body.ops[i];
    if (!is_forward(op)) continue;
    if (stage[i] == kNone && !is_constant(op)) {
      Stages candidates;
      for (ValueId result : op.results) candidates.insert(candidates.end(), users[result.index()].begin(), users[result.index()].end());
      stage[i] = std::max(choose(in, op, std::move(candidates), false), 0);  // the first where nobody but the loop's results reads it
    }
    if (stage[i] != kNone)
      for (ValueId operand : op.operands) users[operand.index()].push_back(stage[i]);
  }
}

// True for a sum of cotangents that all arise in one stage.
bool sums_in_one_stage(const Marked& in, const std::vector<int>& stage, const Op& op) {
  if (op.name != "add_n") return false;
  const Stages read = stages_read(in, stage, op);
  return read.size() == op.operands.size() && std::ranges::all_of(read, [&](int s) { return s == read[0]; });
}

// A backward op lies where its forward op does. A sum of cotangents lies where they arise if that is one stage, so that one tensor leaves
// it and not each of them; else with the forward op or, where there is none, in the last stage in which one arises. A sum that only feeds
// loop results has no stage: the cut dissolves it into accumulators.
void infer_backward(const Marked& in, std::vector<int>& stage) {
  std::vector<bool> read(in.body.values.size());
  std::unordered_map<std::int64_t, std::size_t> forward_of;  // by sequence
  for (std::size_t i = 0; i < stage.size(); ++i) {
    const Op& op = in.body.ops[i];
    for (ValueId operand : op.operands) read[operand.index()] = true;
    if (is_forward(op) && op.sequence >= 0 && !is_constant(op)) forward_of[op.sequence] = i;
  }
  for (std::size_t i = 0; i < stage.size(); ++i) {
    const Op& op = in.body.ops[i];
    if (stage[i] != kNone || is_forward(op) || is_constant(op)) continue;
    const auto forward = forward_of.find(op.sequence);
    const bool has_stage = forward != forward_of.end() && stage[forward->second] != kNone;
    if (has_stage && !sums_in_one_stage(in, stage, op))
      stage[i] = stage[forward->second];
    else if (has_stage || op.name != "add_n" || read[op.results[0].index()])
      stage[i] = std::max(choose(in, op, stages_read(in, stage, op), false), 0);
  }
}

// The body with stages written on its ops and without its boundary marks.
Graph with_stages(const Graph& body, const std::vector<int>& stage, const std::vector<std::string>& names) {
  Graph out = body;
  std::vector<ValueId> renamed(body.values.size());
  for (std::size_t v = 0; v < renamed.size(); ++v) renamed[v] = ValueId(v);
  IdVector<OpId, Op> ops = std::exchange(out.ops, {});
  for (std::size_t i = 0; i < ops.size(); ++i) {
    Op& op = ops[i];
    for (ValueId& operand : op.operands) operand = renamed[operand.index()];
    if (is_boundary(op)) {
      renamed[op.results[0].index()] = op.operands[0];
      continue;
    }
    op.stage = stage[i] == kNone ? "" : names[stage[i]];
    out.ops.push_back(std::move(op));
  }
  for (ValueId& output : out.outputs) output = renamed[output.index()];
  return out;
}

}  // namespace

StagedStep assign_stages(Graph step) {
  const std::size_t loop = loop_of(step);
  const Graph& body = *step.ops[loop].body;
  const std::vector<OpId> producer = producers(body);
  const Marks marks = marks_of(step.ops[loop], producer);
  const Reach reach = reach_of(body, marks);
  const Marked in{body, producer, marks, reach};
  std::vector<int> stage = marks.stage;
  infer_from_operands(in, stage);
  infer_from_users(in, stage);
  infer_backward(in, stage);
  IdVector<StageId, std::string> names = ordered_names(marks, reach);
  step.ops[loop].body = std::make_shared<Graph>(with_stages(body, stage, marks.names));
  return {std::move(step), std::move(names)};
}

}  // namespace penstock
