// Which stage every op of the loop body belongs to.
#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

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

// Stages by number, in order of first appearance until order() puts them in topological order.
class Assignment {
 public:
  explicit Assignment(const Graph& body) : body_(body), producer_(producers(body)), stage_(body.ops.size(), kNone) {}

  void run() {
    resolve_boundaries();
    take_marks();
    if (names_.empty()) stage_number("0");
    order_stages();
    infer_from_operands();
    infer_from_users();
    infer_backward();
  }

  // The body with stages written on its ops and without its boundary marks.
  Graph result() const {
    Graph out = body_;
    out.ops.clear();
    std::vector<ValueId> renamed(body_.values.size());
    for (std::size_t v = 0; v < renamed.size(); ++v) renamed[v] = ValueId(v);
    for (std::size_t i = 0; i < body_.ops.size(); ++i) {
      Op op = body_.ops[i];
      for (ValueId& operand : op.operands) operand = renamed[operand.index()];
      if (op.name == "stage_boundary") {
        renamed[op.results[0].index()] = op.operands[0];
        continue;
      }
      op.stage = stage_[i] == kNone ? "" : names_[stage_[i]];
      out.ops.push_back(std::move(op));
    }
    for (ValueId& output : out.outputs) output = renamed[output.index()];
    return out;
  }

  // Topologically ordered; of stages without order between them the one marked first comes first.
  std::vector<std::string> ordered_names() const {
    std::vector<std::size_t> missing(names_.size());  // predecessors not yet placed
    for (const auto& row : reach_)
      for (std::size_t t = 0; t < row.size(); ++t) missing[t] += row[t];
    std::set<std::size_t> ready;
    for (std::size_t s = 0; s < names_.size(); ++s)
      if (missing[s] == 0) ready.insert(s);
    std::vector<std::string> out;
    while (!ready.empty()) {
      const std::size_t s = *ready.begin();
      ready.erase(ready.begin());
      out.push_back(names_[s]);
      for (std::size_t t = 0; t < names_.size(); ++t)
        if (reach_[s][t] && --missing[t] == 0) ready.insert(t);
    }
    return out;
  }

 private:
  static bool is_constant(const Op& op) { return op.operands.empty(); }
  bool is_forward(std::size_t i) const { return body_.ops[i].phase == Phase::forward; }
  bool reaches(int a, int b) const { return reach_[a][b]; }

  int stage_number(const std::string& name) {
    const auto [it, added] = number_.try_emplace(name, static_cast<int>(names_.size()));
    if (added) names_.push_back(name);
    return it->second;
  }

  // Boundary k ends stage k: what its operand was computed from, unmarked and not of an earlier stage, is stage k, and its result enters
  // stage k+1 (JaxPP, section 3: each mark in order takes its backward slice).
  void resolve_boundaries() {
    int count = 0;
    for (std::size_t i = 0; i < body_.ops.size(); ++i) {
      if (body_.ops[i].name != "stage_boundary") continue;
      if (!body_.ops[i].stage.empty())
        throw Error(concat("stage_boundary inside Stage scope ", quote(body_.ops[i].stage)),
                    {"a model is cut by scopes or by boundaries, not by both at one place"},
                    "move the boundary out of the scope, or remove one of the two");
      const int stage = stage_number(std::to_string(count++));
      std::vector<std::size_t> open = {i};
      while (!open.empty()) {
        const std::size_t at = open.back();
        open.pop_back();
        const Op& op = body_.ops[at];
        if (stage_[at] != kNone || !op.stage.empty() || is_constant(op)) continue;
        stage_[at] = stage;
        for (ValueId operand : op.operands)
          if (producer_[operand.index()]) open.push_back(producer_[operand.index()].index());
      }
    }
    if (count > 0) stage_number(std::to_string(count));  // what follows the last boundary
  }

  void take_marks() {
    for (std::size_t i = 0; i < body_.ops.size(); ++i)
      if (!body_.ops[i].stage.empty() && !is_constant(body_.ops[i])) stage_[i] = stage_number(body_.ops[i].stage);
    for (std::size_t i = 0; i < body_.ops.size(); ++i)
      if (is_forward(i) && body_.ops[i].sequence >= 0) forward_of_[body_.ops[i].sequence] = i;
  }

  // The stage that reading `value` brings in: its producer's, or the next one behind a boundary.
  int stage_of(ValueId value) const {
    const OpId op = producer_[value.index()];
    if (!op) return kNone;
    if (body_.ops[op.index()].name == "stage_boundary") return next_of(stage_[op.index()]);
    return stage_[op.index()];
  }
  int next_of(int boundary_stage) const { return number_.at(std::to_string(std::stoi(names_[boundary_stage]) + 1)); }

  // Edges between marked stages, seen through unmarked forward ops, and their closure.
  void order_stages() {
    std::vector<Stages> nearest(body_.values.size());
    std::set<std::pair<int, int>> edges;
    for (std::size_t i = 0; i < body_.ops.size(); ++i) {
      if (!is_forward(i)) continue;
      const Op& op = body_.ops[i];
      Stages in;
      for (ValueId operand : op.operands) in.insert(in.end(), nearest[operand.index()].begin(), nearest[operand.index()].end());
      std::sort(in.begin(), in.end());
      in.erase(std::unique(in.begin(), in.end()), in.end());
      if (stage_[i] != kNone) {
        for (int from : in)
          if (from != stage_[i]) edges.emplace(from, stage_[i]);
        in = {op.name == "stage_boundary" ? next_of(stage_[i]) : stage_[i]};
        if (in[0] != stage_[i]) edges.emplace(stage_[i], in[0]);
      }
      for (ValueId result : op.results) nearest[result.index()] = in;
    }
    close(edges);
  }

  void close(const std::set<std::pair<int, int>>& edges) {
    const std::size_t n = names_.size();
    reach_.assign(n, std::vector<bool>(n));
    std::vector<std::vector<int>> next(n);
    for (const auto& [from, to] : edges) next[from].push_back(to);
    for (std::size_t s = 0; s < n; ++s) {
      std::vector<int> open = {static_cast<int>(s)};
      while (!open.empty()) {
        const int at = open.back();
        open.pop_back();
        for (int to : next[at])
          if (!reach_[s][to]) {
            reach_[s][to] = true;
            open.push_back(to);
          }
      }
    }
    for (std::size_t s = 0; s < n; ++s)
      for (std::size_t t = 0; t < s; ++t)
        if (reach_[s][t] && reach_[t][s])
          throw Error(concat("stages ", quote(names_[t]), " and ", quote(names_[s]), " each need the other's results"),
                      {"a stage runs as a whole: what it reads must come from earlier stages"},
                      concat("give the ops between them a stage of their own, or mark both parts as one stage"));
  }

  // The one of `candidates` that all others precede (`latest`) or that precedes all others; kNone if there is no such one.
  int extreme(const Stages& candidates, bool latest) const {
    for (int s : candidates) {
      bool all = true;
      for (int t : candidates) all = all && (t == s || (latest ? reaches(t, s) : reaches(s, t)));
      if (all) return s;
    }
    return kNone;
  }

  int choose(const Op& op, Stages candidates, bool latest, std::string_view rule) const {
    std::sort(candidates.begin(), candidates.end());
    candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
    if (candidates.empty()) return kNone;
    const int found = extreme(candidates, latest);
    if (found != kNone) return found;
    throw Error(
        concat("no stage can be inferred for ", show(body_, op)),
        {concat("candidates: ", join(candidates, ", ", [&](int s) { return quote(names_[s]); }), ", and none of them is ", rule)},
        concat("mark it: Stage s(", quote(names_[candidates.back()]), "); around the code that makes it, or give it a stage of its own"));
  }

  void infer_from_operands() {
    for (std::size_t i = 0; i < body_.ops.size(); ++i) {
      const Op& op = body_.ops[i];
      if (stage_[i] != kNone || !is_forward(i) || is_constant(op)) continue;
      Stages candidates;
      for (ValueId operand : op.operands)
        if (const int s = stage_of(operand); s != kNone) candidates.push_back(s);
      stage_[i] = choose(op, std::move(candidates), true, "after all others");
    }
  }

  void infer_from_users() {
    std::vector<Stages> users(body_.values.size());
    for (std::size_t i = body_.ops.size(); i-- > 0;) {
      const Op& op = body_.ops[i];
      if (stage_[i] == kNone && is_forward(i) && !is_constant(op)) {
        Stages candidates;
        for (ValueId result : op.results) candidates.insert(candidates.end(), users[result.index()].begin(), users[result.index()].end());
        stage_[i] = choose(op, std::move(candidates), false, "before all others");
        if (stage_[i] == kNone) stage_[i] = 0;  // read by nobody but the loop's results
      }
      if (is_forward(i) && stage_[i] != kNone)
        for (ValueId operand : op.operands) users[operand.index()].push_back(stage_[i]);
    }
  }

  // A backward op lies where its forward op does. A join of cotangents that has no forward op lies where the last of them arises,
  // unless it only feeds loop results: the cut dissolves it into accumulators.
  void infer_backward() {
    std::vector<bool> read(body_.values.size());
    for (const Op& op : body_.ops)
      for (ValueId operand : op.operands) read[operand.index()] = true;
    for (std::size_t i = 0; i < body_.ops.size(); ++i) {
      const Op& op = body_.ops[i];
      if (stage_[i] != kNone || is_forward(i) || is_constant(op)) continue;
      if (const auto forward = forward_of_.find(op.sequence); forward != forward_of_.end() && stage_[forward->second] != kNone) {
        stage_[i] = stage_[forward->second];
        continue;
      }
      if (op.name == "add_n" && !read[op.results[0].index()]) continue;
      Stages candidates;
      for (ValueId operand : op.operands)
        if (const int s = stage_of(operand); s != kNone) candidates.push_back(s);
      stage_[i] = choose(op, std::move(candidates), false, "before all others");
      if (stage_[i] == kNone) stage_[i] = 0;
    }
  }

  const Graph& body_;
  std::vector<OpId> producer_;
  std::vector<int> stage_;
  std::vector<std::string> names_;
  std::map<std::string, int> number_;
  std::unordered_map<std::int64_t, std::size_t> forward_of_;  // by sequence
  std::vector<std::vector<bool>> reach_;                      // stage -> stages that need it
};

}  // namespace

StagedStep assign_stages(const Graph& step) {
  const std::size_t loop = loop_of(step);
  StagedStep out{step, {}};
  Assignment assignment(*step.ops[loop].body);
  assignment.run();
  out.step.ops[loop].body = std::make_shared<Graph>(assignment.result());
  out.stages = assignment.ordered_names();
  return out;
}

}  // namespace penstock
