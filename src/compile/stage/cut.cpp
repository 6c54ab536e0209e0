// SPDX-License-Identifier: Apache-2.0
// Cuts a loop body with stages into tasks and bundles.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "base/text.h"
#include "ops/definition.h"
#include "stage/stages.h"
#include "stage/task_plans.h"
#include "transform/passes.h"

namespace penstock {
namespace {

void add_bundle(StageDag& dag, Bundle bundle) {
  const BundleId number(dag.bundles.size());
  for (StageTaskId task : bundle.producers) dag.tasks[task].writes.push_back(number);
  for (StageTaskId task : bundle.readers) dag.tasks[task].reads.push_back(number);
  dag.bundles.push_back(std::move(bundle));
}

// One bundle per loop operand that is read: a state tensor has a name and a life of its own.
void bundle_inputs(const Body& body, const TaskPlans& plans, StageDag& dag) {
  IdVector<ValueId, std::vector<StageTaskId>> readers(body.graph.values.size());
  for (const StageTaskId t : plans.tasks.ids())
    for (const ValueId import : plans.tasks[t].imports) readers[import].push_back(t);
  for (std::size_t i = 0; i < body.graph.inputs.size(); ++i) {
    const ValueId input = body.graph.inputs[i];
    Bundle bundle;
    bundle.source = i < body.split ? Bundle::Source::data : Bundle::Source::invariant;
    bundle.types = {body.graph.type(input)};
    bundle.members = {static_cast<std::int32_t>(i)};
    bundle.readers = std::move(readers[input]);
    if (!bundle.readers.empty()) add_bundle(dag, std::move(bundle));
  }
}

// The light F and R of those who read or make it, as far as they read any of it.
void add_recomputing_readers(const TaskPlans& plans, Bundle& bundle) {
  std::vector<StageTaskId> forwards = bundle.readers;
  forwards.push_back(bundle.producers[0]);
  for (StageTaskId forward : forwards)
    for (const auto* instead : {&plans.light, &plans.again}) {
      const auto found = instead->find(forward);
      if (found == instead->end()) continue;
      const std::set<ValueId>& imports = plans.tasks[found->second].imports;
      if (std::ranges::any_of(bundle.members, [&](std::int32_t member) { return imports.contains(ValueId(member)); }))
        bundle.readers.push_back(found->second);
    }
}

bool is_marked(const Op& op) {
  return op.attributes.contains(kOffload);
}

// By stage: whether any of its ops is marked.
IdVector<StageId, bool> marked_stages(const Body& body, std::size_t stages) {
  IdVector<StageId, bool> marked(stages);
  for (const Op& op : body.graph.ops)
    if (const StageId stage = body.stage_of(op); stage && is_marked(op)) marked[stage] = true;
  return marked;
}

void bundle_edges(const Body& body, const TaskPlans& plans, StageDag& dag) {
  const IdVector<StageId, bool> marked = marked_stages(body, dag.names.size());
  for (const StageTaskId t : plans.tasks.ids()) {
    const auto stays = [&](ValueId value) {
      const bool may_move = plans.tasks[t].kind == Kind::F && marked[plans.tasks[t].stage] && !is_read(body, plans, value, false);
      return may_move && !is_marked(*body.op_of(value));
    };
    std::map<std::pair<std::vector<StageTaskId>, bool>, Bundle> by_readers;
    for (ValueId value : plans.tasks[t].exports) {
      const std::set<StageTaskId>& tasks = plans.readers.at(value);
      Bundle& bundle = by_readers[{{tasks.begin(), tasks.end()}, stays(value)}];
      bundle.types.push_back(body.graph.type(value));
      bundle.members.push_back(value.value);
    }
    for (auto& [key, bundle] : by_readers) {
      const auto& [readers, keeps] = key;
      bundle.stays = keeps;
      bundle.producers = {t};
      const auto& instead = is_read(body, plans, ValueId(bundle.members[0]), false) ? plans.light : plans.again;
      if (const auto found = instead.find(t); found != instead.end()) bundle.producers.push_back(found->second);
      bundle.readers = readers;
      add_recomputing_readers(plans, bundle);
      add_bundle(dag, std::move(bundle));
    }
  }
}

void bundle_sums(const Body& body, const TaskPlans& plans, StageDag& dag) {
  std::map<std::pair<StageTaskId, std::vector<StageTaskId>>, Bundle> by_tasks;  // reader and producers
  for (const auto& [value, terms] : plans.sums) {
    std::vector<StageTaskId> producers;
    for (const auto& [task, values] : terms) producers.push_back(task);
    Bundle& bundle = by_tasks[{plans.of(body, value), producers}];
    bundle.types.push_back(body.graph.type(value));
    bundle.members.push_back(value.value);
    bundle.producers = producers;
    bundle.readers = {plans.of(body, value)};
    bundle.sums = true;
  }
  for (auto& [tasks, bundle] : by_tasks) add_bundle(dag, std::move(bundle));
}

// Each is of one dtype: devices that share micro-batches sum it as one.
void bundle_accumulators(const Body& body, const TaskPlans& plans, const std::vector<std::vector<Term>>& terms,
                         const std::vector<std::uint32_t>& apart, StageDag& dag) {
  std::map<std::tuple<std::uint32_t, std::vector<StageTaskId>, DType>, Bundle> by_producers;
  for (std::size_t o = 0; o < body.graph.outputs.size(); ++o) {
    std::vector<StageTaskId> tasks;
    for (const Term& term : terms[o]) tasks.push_back(term.task);
    const TensorType& type = body.graph.type(body.graph.outputs[o]);
    Bundle& bundle = by_producers[{apart.empty() ? 0 : apart[o], tasks, type.dtype}];
    bundle.source = Bundle::Source::accumulator;
    bundle.types.push_back(type);
    bundle.members.push_back(static_cast<std::int32_t>(o));
    bundle.producers = tasks;
  }
  for (auto& [key, bundle] : by_producers) {
    for (StageTaskId task : std::get<1>(key))
      if (const auto found = plans.light.find(task); found != plans.light.end()) bundle.producers.push_back(found->second);
    add_bundle(dag, std::move(bundle));
  }
}

// One task's graph under construction.
struct Building {
  const Body& body;
  const TaskPlans& plans;
  const std::vector<std::vector<Term>>& terms;
  StageTaskId task;
  Graph graph{};
  std::unordered_map<ValueId, ValueId> local{};  // value of the body: here
  std::unordered_map<ValueId, ValueId> begun{};  // value summed in place: what other tasks have added to it

  void copy(const Op& op) {
    Op out = op;
    out.attributes.erase(kOffload);
    if (const auto sum = begun.find(op.results[0]); sum != begun.end()) {
      std::erase_if(out.operands, [&](ValueId operand) { return !local.contains(operand); });
      local[sum->first] = sum->second;
      out.operands.insert(out.operands.begin(), sum->first);
    }
    for (ValueId& operand : out.operands) operand = local.at(operand);
    for (std::size_t i = 0; i < op.results.size(); ++i) {
      out.results[i] = graph.add_value(body.graph.type(op.results[i]));
      local[op.results[i]] = out.results[i];
    }
    graph.ops.push_back(std::move(out));
  }
  // A value of another task that is not imported is a constant or a retaken view: cloned before its first reader.
  ValueId need(ValueId value) {
    if (const auto found = local.find(value); found != local.end()) return found->second;
    const Op& op = *body.op_of(value);
    for (ValueId operand : op.operands) need(operand);
    copy(op);
    return local.at(value);
  }
  // Returns the value that a task adds to a loop result.
  ValueId sum(const std::vector<ValueId>& values) {
    if (values.size() == 1) return need(values[0]);
    Op sum;
    sum.name = "add_n";
    sum.phase = Phase::backward;
    for (ValueId value : values) sum.operands.push_back(need(value));
    sum.results = {graph.add_value(body.graph.type(values[0]))};
    graph.ops.push_back(sum);
    return sum.results[0];
  }
  // Returns the value that the task gives for a part of a bundle.
  ValueId written(const Bundle& bundle, std::int32_t member) {
    if (bundle.sums) return sum(plans.sums.at(ValueId(member)).at(task));
    if (bundle.source == Bundle::Source::edge) return local.at(ValueId(member));
    const StageTaskId whole = plans.tasks[task].whole ? plans.tasks[task].whole : task;
    return sum(std::ranges::find(terms[member], whole, &Term::task)->values);
  }
};

// Views that only other tasks read are taken there; here nobody needs them any more.
void drop_unread_views(Graph& graph) {
  IdVector<ValueId, int> uses = use_counts(graph);
  std::vector<bool> keep(graph.ops.size(), true);
  for (std::size_t i = graph.ops.size(); i-- > 0;) {
    const Op& op = graph.ops[i];
    if (!is_view(op) || std::ranges::any_of(op.results, [&](ValueId result) { return uses[result] > 0; })) continue;
    keep[i] = false;
    --uses[op.operands[0]];
  }
  std::size_t next = 0;
  for (std::size_t i = 0; i < graph.ops.size(); ++i)
    if (keep[i]) {
      if (next != i) graph.ops[next] = std::move(graph.ops[i]);
      ++next;
    }
  graph.ops.resize(next);
}

// Numbers the tasks of a stage and kind in the order in which they run.
void number_parts(const TaskPlans& plans, StageDag& dag) {
  std::map<std::pair<StageId, Kind>, std::int32_t> parts;
  for (const auto& [key, task] : plans.number) {
    dag.tasks[task].part = parts[{std::get<StageId>(key), std::get<Kind>(key)}]++;
    dag.tasks[task].collective = std::get<Segment>(key).part == Segment::Part::collective;
  }
}

Graph graph_of(const Body& body, const TaskPlans& plans, const std::vector<std::vector<Term>>& terms, const StageDag& dag, StageTaskId t) {
  const StageTask& task = dag.tasks[t];
  const TaskPlan& plan = plans.tasks[t];
  Building out{body, plans, terms, t};
  out.graph.name = concat(name(task.kind), task.stage.value, task.light ? "_light" : "", task.part > 0 ? concat(".", task.part) : "");
  for (BundleId b : task.reads)
    for (std::int32_t member : dag.bundles[b].members) {
      const bool edge = dag.bundles[b].source == Bundle::Source::edge;
      const ValueId value = edge ? ValueId(member) : body.graph.inputs[member];
      // Structural equality ignores names, so equal layers still share one task.
      auto& inputs = dag.bundles[b].sums ? out.begun : out.local;
      inputs[value] = out.graph.add_input(body.graph.type(value), concat("x", out.graph.inputs.size()));
    }
  for (OpId i : plan.ops) {
    const Op& op = body.graph.ops[i];
    for (ValueId operand : op.operands)
      if (!out.begun.contains(op.results[0]) || plans.of(body, operand) == t) out.need(operand);
    out.copy(op);
  }
  for (BundleId b : task.writes)
    for (std::int32_t member : dag.bundles[b].members) out.graph.outputs.push_back(out.written(dag.bundles[b], member));
  drop_unread_views(out.graph);
  return std::move(out.graph);
}

void describe_shape(StageDag& dag, const CutOptions& options) {
  const std::size_t stages = dag.names.size();
  dag.shape.slices = options.slices;
  dag.shape.blocks = options.blocks;
  dag.shape.predecessors.resize(stages);
  dag.shape.has_backward.assign(stages, false);
  dag.shape.has_parameters.assign(stages, false);
  const auto whole_stage = [&](std::size_t s) { return part_of(static_cast<std::int32_t>(s), options.slices, options.blocks).stage; };
  std::set<std::int32_t> with_backward;  // whole stages, of which some slices may have nothing to do
  for (const StageTask& task : dag.tasks)
    if (task.kind != Kind::F) with_backward.insert(whole_stage(task.stage.index()));
  for (std::size_t s = 0; s < stages; ++s) dag.shape.has_backward[s] = with_backward.contains(whole_stage(s));
  for (const Bundle& bundle : dag.bundles)
    for (StageTaskId reader : bundle.readers) {
      const StageTask& to = dag.tasks[reader];
      if (bundle.source == Bundle::Source::invariant) dag.shape.has_parameters[to.stage.value] = true;
      for (StageTaskId producer : bundle.producers) {
        const StageTask& from = dag.tasks[producer];
        if (from.stage == to.stage) continue;
        // Backward edges mirror a forward edge; a forward value read by another stage's backward is an edge of its own.
        const auto [before, after] = std::minmax(from.stage.value, to.stage.value);
        std::vector<std::int32_t>& list = dag.shape.predecessors[after];
        if (std::find(list.begin(), list.end(), before) == list.end()) list.push_back(before);
      }
    }
  for (auto& list : dag.shape.predecessors) std::sort(list.begin(), list.end());
}
}  // namespace

std::vector<StageTaskId> StageDag::tasks_of(StageId stage, Kind kind, bool light, std::int32_t shape_class) const {
  std::vector<StageTaskId> out;
  const auto is_one = [&](const StageTask& task) {
    return task.stage == stage && task.kind == kind && task.light == light && task.shape_class == shape_class;
  };
  for (const StageTaskId t : tasks.ids())
    if (is_one(tasks[t])) out.push_back(t);
  std::ranges::sort(out, {}, [&](StageTaskId t) { return tasks[t].part; });
  return out;
}

StageTaskId StageDag::task(StageId stage, Kind kind, bool light) const {
  const std::vector<StageTaskId> all = tasks_of(stage, kind, light);
  return all.empty() ? StageTaskId() : all[0];
}

StageDag cut(const StagedStep& step, const std::vector<bool>& split_backward, const std::vector<bool>& recomputed,
             const CutOptions& options) {
  const Body body = body_of(step);
  const auto [plans, terms] = plan_tasks(body, split_backward, recomputed, options);
  StageDag dag;
  dag.names = step.stages;
  for (const TaskPlan& plan : plans.tasks) dag.tasks.push_back({plan.stage, plan.kind, {}, {}, {}, bool(plan.whole)});
  number_parts(plans, dag);
  bundle_inputs(body, plans, dag);
  bundle_edges(body, plans, dag);
  bundle_sums(body, plans, dag);
  bundle_accumulators(body, plans, terms, step.apart, dag);
  for (const StageTaskId t : plans.tasks.ids()) dag.tasks[t].graph = graph_of(body, plans, terms, dag, t);
  describe_shape(dag, options);
  return dag;
}

}  // namespace penstock
