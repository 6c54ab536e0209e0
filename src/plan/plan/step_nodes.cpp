// SPDX-License-Identifier: Apache-2.0
#include "plan/step_nodes.h"

#include <algorithm>
#include <set>

#include "base/numbers.h"
#include "base/text.h"
#include "lower/draft.h"
#include "ops/definition.h"
#include "penstock/error.h"
#include "stage/loop.h"

namespace penstock {
namespace {

constexpr int kNone = -1;

// ---- Names

class NodeNames {
 public:
  NodeNames(const Graph& body, std::size_t split)
      : body_(body), node_(body.values.size(), kNone), varies_(body.values.size()), of_(body.ops.size(), kNone) {
    for (std::size_t i = 0; i < split; ++i) varies_[body.inputs[i]] = true;
  }

  std::vector<std::string> run() {
    for (std::size_t i = 0; i < body_.ops.size(); ++i)
      if (body_.ops[i].phase == Phase::forward) place(i);
    place_the_rest();
    std::vector<std::string> out;
    for (const int node : of_) out.push_back(node == kNone ? "" : names_[node]);
    return out;
  }

 private:
  void place(std::size_t i) {
    const Op& op = body_.ops[i];
    const auto varies = [&](ValueId v) { return varies_[v]; };
    if (std::none_of(op.operands.begin(), op.operands.end(), varies)) return;
    int node = node_[op.operands[0]];
    if (!is_boundary(op)) {
      if (begins_another(op)) begin(op);
      node = current_;
      of_[i] = current_;
    }
    for (const ValueId result : op.results) {
      varies_[result] = true;
      node_[result] = node;
    }
  }

  bool begins_another(const Op& op) const {
    if (current_ == kNone || op.origin != origin_) return true;
    return std::any_of(op.operands.begin(), op.operands.end(), [&](ValueId v) {
      const int from = node_[v];
      return from != kNone && from != current_ && !before_[current_].contains(from);
    });
  }

  void begin(const Op& op) {
    current_ = static_cast<int>(names_.size());
    origin_ = op.origin;
    std::string name = op.origin.empty() ? "model" : op.origin;
    if (const int count = ++runs_[name]; count > 1) name += concat("#", count);
    names_.push_back(std::move(name));
    std::set<int>& before = before_.emplace_back();
    for (const ValueId operand : op.operands) {
      const int from = node_[operand];
      if (from == kNone) continue;
      before.insert(from);
      before.insert(before_[from].begin(), before_[from].end());
    }
  }

  // The earliest node, which need not be that of the first reader: a reader that reads no data itself may belong to a later node. So all
  // that nodes need of each other goes from earlier to later ones.
  void place_the_rest() {
    const auto earliest = [](int a, int b) { return a == kNone || (b != kNone && b < a) ? b : a; };
    IdVector<ValueId, int> reader(body_.values.size(), kNone);  // by value: the earliest node that reads it
    for (std::size_t i = body_.ops.size(); i-- > 0;) {
      const Op& op = body_.ops[i];
      if (op.phase != Phase::forward || is_boundary(op)) continue;
      if (of_[i] == kNone && !op.operands.empty())
        for (const ValueId result : op.results) of_[i] = earliest(of_[i], reader[result]);
      if (of_[i] == kNone) continue;
      for (const ValueId operand : op.operands) reader[operand] = earliest(reader[operand], of_[i]);
    }
  }

  const Graph& body_;
  IdVector<ValueId, int> node_;     // by value: the node that makes it; kNone: data, parameters and what follows from them
  IdVector<ValueId, bool> varies_;  // by value: whether it differs between micro-batches
  int current_ = kNone;
  std::string origin_;  // of the current node
  std::vector<std::string> names_;
  std::vector<std::set<int>> before_;  // by node: the nodes that it waits for
  std::map<std::string, int> runs_;
  std::vector<int> of_;  // by op: its node
};

// ---- Costs

double bytes_of(const Bundle& bundle) {
  double bytes = 0;
  for (const TensorType& type : bundle.types) bytes += static_cast<double>(type.bytes());
  return bytes;
}

NodeStep collective_step(const Graph& graph, const Op& collective) {
  // The bytes are the result's where tensors are gathered, and the operand's where they are reduced or exchanged: the larger of both.
  const std::int64_t bytes = std::max(graph.type(collective.operands[0]).bytes(), graph.type(collective.results[0]).bytes());
  const bool is_message = collective.attributes.contains("message");
  NodeStep step{.opcode = is_message ? Opcode::send : collective_of(collective), .axis = attribute<std::string>(collective, "axis")};
  step.bytes = static_cast<double>(bytes);
  return step;
}

// By stage: the bytes of what forwards make, and where `data` of the loop's data, that backwards read, counted at the first stage whose
// backward does.
std::vector<double> bytes_for_backwards(const StageDag& dag, bool data) {
  const auto stage_of = [&](StageTaskId task) { return dag.tasks[task].stage.index(); };
  const auto is_forward = [&](StageTaskId task) { return dag.tasks[task].kind == Kind::F; };
  std::vector<double> out(dag.names.size(), 0);
  for (const Bundle& bundle : dag.bundles) {
    if (bundle.source != Bundle::Source::edge && (bundle.source != Bundle::Source::data || !data)) continue;
    if (!bundle.producers.empty() && !is_forward(bundle.producers[0])) continue;
    std::size_t first = out.size();
    for (const StageTaskId reader : bundle.readers)
      if (!is_forward(reader)) first = std::min(first, stage_of(reader));
    if (first < out.size()) out[first] += bytes_of(bundle);
  }
  return out;
}

// Bytes that each operand of the loop keeps in memory.
class Residents {
 public:
  explicit Residents(const Graph& step) : step_(step), loop_(step.ops[loop_of(step)]), producer_(producers(step)) {
    for (std::size_t i = 0; i < step.inputs.size(); ++i) input_[step.inputs[i].value] = static_cast<int>(i);
  }

  // `roots`: the state that was counted for this stage already.
  double bytes(std::int32_t member, std::set<std::int32_t>& roots) const {
    const ValueId value = loop_.operands[member];
    double bytes = producer_[value] ? static_cast<double>(step_.type(value).bytes()) : 0;
    std::vector<ValueId> open = {value};
    while (!open.empty()) {
      const ValueId v = open.back();
      open.pop_back();
      if (const OpId from = producer_[v]) {
        const Op& op = step_.ops[from];
        open.insert(open.end(), op.operands.begin(), op.operands.end());
      } else if (is_parameter(v) && roots.insert(v.value).second) {
        bytes += static_cast<double>(step_.type(v).bytes()) + moments(step_.values[v].name);
      }
    }
    return bytes;
  }

 private:
  bool is_parameter(ValueId v) const { return input_.at(v.value) < step_.state && is_floating(step_.type(v).dtype); }

  // Bytes of state beside a parameter: "first:NAME", ...
  double moments(const std::string& name) const {
    double bytes = 0;
    for (int i = 0; i < step_.state; ++i) {
      const Value& value = step_.values[step_.inputs[i]];
      if (value.name.ends_with(":" + name)) bytes += static_cast<double>(value.type.bytes());
    }
    return bytes;
  }

  const Graph& step_;
  const Op& loop_;
  IdVector<ValueId, OpId> producer_;
  std::map<std::int32_t, int> input_;  // index of the step's input, by value
};

class Costing {
 public:
  Costing(const StagedStep& step, const TaskSeconds& seconds)
      : staged_(step), step_(step.step), dag_(cut(step, std::vector<bool>(step.stages.size()))), seconds_(seconds) {}

  PlanGraph run() {
    const Graph& body = *step_.ops[loop_of(step_)].body;
    graph_.name = step_.name;
    for (const std::string& name : dag_.names) {
      PlanNode& node = graph_.nodes.emplace_back();
      node.name = name;
      node.costs.push_back({.samples = static_cast<int>(body.type(body.inputs[0]).shape[0])});
    }
    for (const StageTask& task : dag_.tasks) {
      NodeCost& cost = cost_of(task.stage.value);
      if (!task.collective) (task.kind == Kind::F ? cost.forward : cost.backward) += seconds_(task);
      // A batch norm's statistics are those of one micro-batch, so its size is part of what is computed.
      for (const Op& op : task.graph->ops)
        if (op.name == "native_batch_norm") graph_.nodes[task.stage.value].equal_batches = true;
    }
    add_steps(dag_, {Kind::F, Kind::B});
    add_weights();
    add_collectives_at_end();
    add_residents();
    add_live();
    add_edges();
    return std::move(graph_);
  }

 private:
  using Crossing = std::map<std::pair<int, int>, std::pair<double, double>>;  // by pair of stages: forward and backward bytes

  NodeCost& cost_of(std::int32_t stage) { return graph_.nodes[stage].costs[0]; }
  std::int32_t stage_of(StageTaskId task) const { return dag_.tasks[task].stage.value; }
  bool is_forward(StageTaskId task) const { return dag_.tasks[task].kind == Kind::F; }

  // Sets NodeCost::weight; it stays unknown where no split backward has a time.
  void add_weights() {
    const StageDag split = cut(staged_, std::vector<bool>(staged_.stages.size(), true));
    add_steps(split, {Kind::I, Kind::W});
    std::vector<double> weights(graph_.nodes.size(), 0);
    double sum = 0;
    for (const StageTask& task : split.tasks) {
      if (task.kind != Kind::W || task.collective) continue;
      const double seconds = seconds_(task);
      weights[task.stage.value] += seconds;
      sum += seconds;
    }
    for (std::size_t n = 0; sum > 0 && n < weights.size(); ++n) {
      NodeCost& cost = graph_.nodes[n].costs[0];
      cost.weight = std::min(cost.backward, weights[n]);
    }
  }

  // Adds NodeCost::steps of these kinds, where collectives part what a stage does.
  void add_steps(const StageDag& dag, std::initializer_list<Kind> kinds) {
    std::map<std::pair<std::int32_t, Kind>, std::vector<StageTaskId>> parts;
    for (const StageTaskId id : dag.tasks.ids()) parts[{dag.tasks[id].stage.value, dag.tasks[id].kind}].push_back(id);
    IdVector<StageTaskId, int> place(dag.tasks.size(), kNone);  // of collectives, among the node's steps
    for (auto& [of, tasks] : parts) {
      const auto [stage, kind] = of;
      const bool is_parted = std::any_of(tasks.begin(), tasks.end(), [&](StageTaskId id) { return dag.tasks[id].collective; });
      if (!is_parted || std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) continue;
      std::stable_sort(tasks.begin(), tasks.end(), [&](StageTaskId a, StageTaskId b) { return dag.tasks[a].part < dag.tasks[b].part; });
      std::vector<NodeStep>& steps = cost_of(stage).steps;
      const auto first = static_cast<int>(steps.size());
      for (const StageTaskId id : tasks) {
        const StageTask& task = dag.tasks[id];
        if (task.collective) place[id] = static_cast<int>(steps.size());
        NodeStep& step = steps.emplace_back(task.collective ? collective_step(task.graph, task.graph->ops[OpId(0)]) : NodeStep());
        step.kind = kind;
        if (!task.collective) step.seconds = seconds_(task);
        for (const BundleId read : task.reads)
          for (const StageTaskId producer : dag.bundles[read].producers)
            if (place[producer] >= first) step.after = std::max(step.after, place[producer]);
      }
    }
  }

  // Adds what nodes' gradients are summed by behind the loop, where devices have terms of them.
  void add_collectives_at_end() {
    std::vector<std::int32_t> stage(step_.ops[loop_of(step_)].results.size(), kNone);  // by result of the loop: one that adds to it
    for (const Bundle& bundle : dag_.bundles)
      if (bundle.source == Bundle::Source::accumulator)
        for (const std::int32_t result : bundle.members) stage[result] = stage_of(bundle.producers[0]);
    const std::vector<ValueId>& results = step_.ops[loop_of(step_)].results;
    const IdVector<ValueId, OpId> producer = producers(step_);
    for (const Op& op : step_.ops) {
      if (!is_collective(op)) continue;
      std::vector<ValueId> open = op.operands;  // several results may be joined for one collective
      while (!open.empty()) {
        const ValueId value = open.back();
        open.pop_back();
        const auto result = std::find(results.begin(), results.end(), value);
        if (result == results.end()) {
          if (const OpId from = producer[value]) open.insert(open.end(), step_.ops[from].operands.begin(), step_.ops[from].operands.end());
          continue;
        }
        NodeStep step = collective_step(step_, op);
        step.kind = Kind::U;
        step.bytes = std::min(step.bytes, static_cast<double>(step_.type(value).bytes()));
        if (const std::int32_t from = stage[result - results.begin()]; from != kNone) cost_of(from).steps.push_back(step);
      }
    }
  }

  void add_residents() {
    const Residents residents(step_);
    std::vector<std::set<std::int32_t>> roots(graph_.nodes.size());
    for (const Bundle& bundle : dag_.bundles) {
      std::set<std::int32_t> stages;
      if (bundle.source == Bundle::Source::invariant) {
        for (const StageTaskId reader : bundle.readers) stages.insert(stage_of(reader));
        for (const std::int32_t stage : stages)
          for (const std::int32_t member : bundle.members) cost_of(stage).resident_bytes += residents.bytes(member, roots[stage]);
      }
      if (bundle.source == Bundle::Source::accumulator) {
        for (const StageTaskId producer : bundle.producers) stages.insert(stage_of(producer));
        for (const std::int32_t stage : stages) {
          cost_of(stage).resident_bytes += bytes_of(bundle);
          cost_of(stage).parameter_bytes += bytes_of(bundle);
        }
      }
    }
  }

  void add_live() {
    const std::vector<double> live = bytes_for_backwards(dag_, /*data=*/true);
    for (std::size_t s = 0; s < live.size(); ++s) cost_of(static_cast<std::int32_t>(s)).live_bytes = live[s];
  }

  // A view that another stage takes again moves nothing, but assign_stages still requires its producer before its readers.
  void add_order(Crossing& crossing) const {
    const Graph& body = *step_.ops[loop_of(step_)].body;
    std::map<std::string, int, std::less<>> number;
    for (std::size_t s = 0; s < dag_.names.size(); ++s) number[dag_.names[s]] = static_cast<int>(s);
    const IdVector<ValueId, OpId> producer = producers(body);
    for (const Op& op : body.ops) {
      if (op.phase != Phase::forward || op.stage.empty()) continue;
      for (const ValueId operand : op.operands) {
        const OpId from = producer[operand];
        if (!from || body.ops[from].stage.empty() || body.ops[from].stage == op.stage) continue;
        crossing.try_emplace({number.at(body.ops[from].stage), number.at(op.stage)});
      }
    }
  }

  // An edge has one number for both directions: half of what goes there and back. The two differ where one gradient goes back to all
  // operands of an operation that joined them, as views of it are taken again there.
  void add_edges() {
    Crossing crossing;
    for (std::size_t s = 0; s < dag_.shape.predecessors.size(); ++s)
      for (const std::int32_t before : dag_.shape.predecessors[s]) crossing[{before, static_cast<int>(s)}] = {};
    add_order(crossing);
    for (const Bundle& bundle : dag_.bundles) {
      if (bundle.source != Bundle::Source::edge) continue;
      const std::int32_t from = stage_of(bundle.producers[0]);
      std::set<std::int32_t> stages;
      for (const StageTaskId reader : bundle.readers) stages.insert(stage_of(reader));
      stages.erase(from);
      const bool forward = is_forward(bundle.producers[0]);
      if (forward && !stages.empty()) graph_.nodes[from].output_bytes += bytes_of(bundle);
      for (const std::int32_t to : stages) (forward ? crossing[{from, to}].first : crossing[{to, from}].second) += bytes_of(bundle);
    }
    for (const auto& [pair, bytes] : crossing)
      graph_.edges.push_back({pair.first, pair.second, (bytes.first + bytes.second) / 2, bytes.first == 0 && bytes.second > 0});
    std::stable_sort(graph_.edges.begin(), graph_.edges.end(), [](const PlanEdge& a, const PlanEdge& b) { return a.to < b.to; });
  }

  const StagedStep& staged_;
  const Graph& step_;
  const StageDag dag_;
  const TaskSeconds& seconds_;
  PlanGraph graph_;
};

// ---- Merging

// A graph whose neighbouring nodes are merged.
class Merging {
 public:
  explicit Merging(const PlanGraph& graph) : next_(graph.nodes.size()), previous_(graph.nodes.size()) {
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      const NodeCost& cost = graph.nodes[n].costs.at(0);
      parts_.push_back({static_cast<int>(n)});
      cost_.push_back(cost.forward + cost.backward);
    }
    for (const PlanEdge& edge : graph.edges) {
      next_[edge.from].insert(edge.to);
      previous_[edge.to].insert(edge.from);
    }
    left_ = static_cast<int>(parts_.size());
  }

  void run(int most) {
    while (left_ > most) {
      const std::vector<std::vector<bool>> reach = closure();
      int best_from = kNone, best_to = kNone;
      for (std::size_t u = 0; u < next_.size(); ++u)
        for (const int v : next_[u])
          if ((best_from == kNone || cost_[u] + cost_[v] < cost_[best_from] + cost_[best_to]) &&
              adds_no_order(reach, static_cast<int>(u), v)) {
            best_from = static_cast<int>(u);
            best_to = v;
          }
      if (best_from == kNone) return;
      merge(best_from, best_to);
    }
  }

  const std::vector<std::vector<int>>& parts() const { return parts_; }

 private:
  // By depth-first search: between merged nodes edges do not always go to larger numbers, as they do between the first nodes of their
  // parts.
  std::vector<std::vector<bool>> closure() const {
    std::vector<std::vector<bool>> reach(next_.size(), std::vector<bool>(next_.size()));
    for (std::size_t s = 0; s < next_.size(); ++s) {
      std::vector<int> open(next_[s].begin(), next_[s].end());
      while (!open.empty()) {
        const int n = open.back();
        open.pop_back();
        if (reach[s][n]) continue;
        reach[s][n] = true;
        open.insert(open.end(), next_[n].begin(), next_[n].end());
      }
    }
    return reach;
  }

  bool adds_no_order(const std::vector<std::vector<bool>>& reach, int u, int v) const {
    return std::all_of(next_[u].begin(), next_[u].end(), [&](int w) { return w == v || reach[v][w]; }) &&
           std::all_of(previous_[v].begin(), previous_[v].end(), [&](int w) { return w == u || reach[w][u]; });
  }

  void merge(int u, int v) {
    for (const int w : next_[v]) {
      previous_[w].erase(v);
      previous_[w].insert(u);
      next_[u].insert(w);
    }
    for (const int w : previous_[v]) {
      next_[w].erase(v);
      if (w == u) continue;
      next_[w].insert(u);
      previous_[u].insert(w);
    }
    next_[v].clear();
    previous_[v].clear();
    std::vector<int>& parts = parts_[u];
    parts.insert(parts.end(), parts_[v].begin(), parts_[v].end());
    std::sort(parts.begin(), parts.end());
    parts_[v].clear();
    cost_[u] += cost_[v];
    --left_;
  }

  std::vector<std::set<int>> next_, previous_;
  std::vector<std::vector<int>> parts_;  // nodes of the graph in each part; empty once it was merged into another
  std::vector<double> cost_;
  int left_ = 0;
};

}  // namespace

std::vector<std::string> node_names(const Graph& step) {
  const Op& loop = step.ops[loop_of(step)];
  return NodeNames(*loop.body, at(attribute<std::int64_t>(loop, "split"))).run();
}

std::vector<std::string> nodes_of(const Graph& step) {
  std::vector<std::string> nodes;
  std::set<std::string> known;
  for (const std::string& name : node_names(step))
    if (!name.empty() && known.insert(name).second) nodes.push_back(name);
  return nodes;
}

PlanGraph plan_graph_of(const StagedStep& step, const TaskSeconds& seconds) {
  return Costing(step, seconds).run();
}

std::vector<double> swappable_bytes(const StagedStep& step) {
  return bytes_for_backwards(cut(step, std::vector<bool>(step.stages.size())), /*data=*/false);
}

void check_same_nodes(const PlanGraph& graph, const PlanGraph& other) {
  const auto same = [](const PlanNode& a, const PlanNode& b) { return a.name == b.name; };
  if (std::equal(graph.nodes.begin(), graph.nodes.end(), other.nodes.begin(), other.nodes.end(), same)) return;
  throw Error(concat("the nodes of ", graph.name, " depend on the size of its micro-batches, or on how its tensors are split"),
              {concat(graph.nodes.size(), " nodes and ", other.nodes.size())}, "plan with one size: --microbatch-sizes N, and unsplit");
}

void add_size(PlanGraph& graph, const PlanGraph& larger) {
  check_same_nodes(graph, larger);
  for (std::size_t n = 0; n < graph.nodes.size(); ++n)
    graph.nodes[n].costs.insert(graph.nodes[n].costs.end(), larger.nodes[n].costs.begin(), larger.nodes[n].costs.end());
}

void add_order(PlanGraph& graph, const Graph& step) {
  const Graph& body = *step.ops[loop_of(step)].body;
  const std::vector<std::string> names = node_names(step);
  std::map<std::string, int> number = {{"", kNone}};
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) number[graph.nodes[n].name] = static_cast<int>(n);
  IdVector<ValueId, int> node(body.values.size(), kNone);  // that makes it, or what it is a boundary of
  for (std::size_t i = 0; i < body.ops.size(); ++i) {
    const Op& op = body.ops[i];
    if (op.phase != Phase::forward) continue;
    const auto found = number.find(names[i]);
    const int own = is_boundary(op) ? node[op.operands[0]] : found == number.end() ? kNone : found->second;
    for (const ValueId operand : op.operands)
      if (own != kNone && node[operand] != kNone && node[operand] != own) graph.edges.push_back({node[operand], own, 0});
    for (const ValueId result : op.results) node[result] = own;
  }
}

std::map<std::string, std::string> merged_nodes(const PlanGraph& graph, int most) {
  Merging merging(graph);
  merging.run(most);
  std::map<std::string, std::string> out;
  for (const std::vector<int>& parts : merging.parts()) {
    if (parts.empty()) continue;
    const std::string &first = graph.nodes[parts.front()].name, &last = graph.nodes[parts.back()].name;
    for (const int part : parts) out[graph.nodes[part].name] = parts.size() == 1 ? first : concat(first, "..", last);
  }
  return out;
}

}  // namespace penstock
