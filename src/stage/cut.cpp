// Cuts a loop body with stages into tasks and bundles.
#include <algorithm>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <tuple>
#include <unordered_map>

#include "base/invariant.h"
#include "base/text.h"
#include "ops/definition.h"
#include "penstock/error.h"
#include "stage/loop.h"
#include "stage/stages.h"

namespace penstock {
namespace {

bool is_view(const Op& op) {
  const OpDefinition* definition = find_op(op.name);
  return definition && definition->views >= 0 && op.results.size() == 1 && op.operands.size() == 1;
}

// The loop's body, and what is looked up in it.
struct Body {
  const Op& loop;
  const Graph& graph;
  IdVector<ValueId, OpId> producer;  // of each value
  std::map<std::string, StageId, std::less<>> stage_number;
  std::size_t split = 0;  // so many inputs are parts of micro-batches

  const Op* op_of(ValueId value) const {
    const OpId op = producer[value];
    return op ? &graph.ops[op] : nullptr;
  }
  StageId stage_of(const Op& op) const {
    const auto found = stage_number.find(op.stage);
    return found == stage_number.end() ? StageId() : found->second;
  }
};

Body body_of(const StagedStep& step) {
  const Op& loop = step.step.ops[loop_of(step.step)];
  Body body{loop, *loop.body, producers(*loop.body), {}};
  for (const StageId stage : step.stages.ids()) body.stage_number[step.stages[stage]] = stage;
  body.split = attribute<std::int64_t>(loop, "split");
  return body;
}

// Where ops stand among the collectives of their stage and kind, which part them into several tasks: at each level, which is the number of
// collectives on the way to it, first what its own collectives need, then each of these alone, then the rest, which runs meanwhile.
struct Segment {
  std::int32_t level = 0;
  enum class Part : std::uint8_t { needed, collective, rest } part = Part::rest;
  OpId op{};  // of a collective
  auto operator<=>(const Segment&) const = default;
};

// A task before its graph is built: which ops it runs, what it reads from elsewhere and gives away.
struct TaskPlan {
  StageId stage{};
  Kind kind = Kind::F;
  Segment segment{};
  std::set<ValueId> imports{};     // values of the body: loop inputs, and results of other tasks
  std::vector<ValueId> exports{};  // values other tasks read
  std::vector<OpId> ops{};
  StageTaskId whole{};  // of a light F: the F in whose place it stands
};

struct TaskPlans {
  IdVector<StageTaskId, TaskPlan> tasks;
  IdVector<OpId, StageTaskId> of_op;  // none: constant or dissolved
  std::map<std::tuple<StageId, Kind, Segment>, StageTaskId> number;
  std::map<ValueId, std::set<StageTaskId>> readers;  // of values that cross
  std::map<StageTaskId, StageTaskId> light, again;   // of an F of a stage that recomputes: its light F and its R

  StageTaskId add(StageId stage, Kind kind, const Segment& segment) {
    const auto [it, added] = number.try_emplace({stage, kind, segment}, tasks.size());
    if (added) tasks.push_back({stage, kind, segment});
    return it->second;
  }
  // The last task of a stage and kind; none: there is none.
  StageTaskId last(StageId stage, Kind kind) const {
    StageTaskId out;
    for (auto it = number.lower_bound({stage, kind, Segment{0, Segment::Part::needed, OpId()}}); it != number.end(); ++it) {
      const auto& [of, of_kind, segment] = it->first;
      if (of != stage || of_kind != kind) break;
      out = it->second;
    }
    return out;
  }
  StageTaskId of(const Body& body, ValueId value) const {
    const OpId op = body.producer[value];
    return op ? of_op[op] : StageTaskId();
  }
};

// Loop results that are joins over several stages are dissolved: each operand is a term of its own. Of each op.
IdVector<OpId, bool> dissolved_joins(const Body& body) {
  IdVector<OpId, bool> dissolved(body.graph.ops.size());
  const IdVector<ValueId, int> uses = use_counts(body.graph);
  IdVector<ValueId, int> as_result(body.graph.values.size());
  for (ValueId output : body.graph.outputs) ++as_result[output];
  for (ValueId output : body.graph.outputs) {
    const Op* op = body.op_of(output);
    if (!op)
      throw Error(concat("loop result ", output.value, " of @", body.graph.name, " is a loop input"),
                  {"a loop result is a sum over micro-batches of something computed in the loop"});
    if (op->name != "add_n" || uses[output] != as_result[output]) continue;
    std::set<std::string> stages{op->stage};
    for (ValueId operand : op->operands)
      if (const Op* from = body.op_of(operand)) stages.insert(from->stage);
    if (stages.size() > 1) dissolved[body.producer[output]] = true;
  }
  return dissolved;
}

// By value: whether it is made of invariants and constants alone, and whether a parameter, an invariant of some size, is among them.
struct MadeOf {
  IdVector<ValueId, bool> invariants, parameters;
};

MadeOf made_of(const Body& body) {
  const IdVector<ValueId, bool> none(body.graph.values.size());
  MadeOf out{none, none};
  for (std::size_t i = body.split; i < body.graph.inputs.size(); ++i) {
    const ValueId input = body.graph.inputs[i];
    out.invariants[input] = true;
    out.parameters[input] = !body.graph.type(input).shape.empty();
  }
  for (const Op& op : body.graph.ops) {
    const auto in = [](const IdVector<ValueId, bool>& of) { return [&of](ValueId v) { return of[v]; }; };
    const bool invariant = std::ranges::all_of(op.operands, in(out.invariants));
    const bool parameters = invariant && std::ranges::any_of(op.operands, in(out.parameters));
    for (ValueId result : op.results) {
      out.invariants[result] = invariant;
      out.parameters[result] = parameters;
    }
  }
  return out;
}

// By backward op: whether other stages need it, or, where parameters are not always there, it or what follows on it reads them.
IdVector<OpId, bool> needed_by_others(const Body& body, const IdVector<OpId, bool>& dissolved, const MadeOf& made, bool gathered) {
  IdVector<OpId, bool> needed(body.graph.ops.size());
  for (std::size_t i = body.graph.ops.size(); i-- > 0;) {
    const Op& op = body.graph.ops[i];
    if (dissolved[i] || is_constant(op)) continue;
    const StageId stage = body.stage_of(op);
    invariant(bool(stage), "an op of the loop has no stage");
    if (gathered && op.phase == Phase::backward && std::ranges::any_of(op.operands, [&](ValueId v) { return made.parameters[v]; }))
      needed[i] = true;
    for (ValueId operand : op.operands) {
      const OpId from = body.producer[operand];
      if (!from || body.graph.ops[from].phase == Phase::forward) continue;
      if (body.stage_of(body.graph.ops[from]) != stage || needed[i]) needed[from] = true;
    }
  }
  return needed;
}

// The stage and kind of each op; none: it is a constant or dissolved. The input-gradient part of a split backward is the backward slice of
// what other stages read (JaxPP, section 4.3); the rest computes weight gradients.
using StageKind = std::optional<std::pair<StageId, Kind>>;
IdVector<OpId, StageKind> kinds_of(const Body& body, const IdVector<OpId, bool>& dissolved, const IdVector<OpId, bool>& needed,
                                   const std::vector<bool>& split) {
  IdVector<OpId, StageKind> out(body.graph.ops.size());
  for (const OpId i : body.graph.ops.ids()) {
    const Op& op = body.graph.ops[i];
    if (dissolved[i] || is_constant(op)) continue;
    const StageId stage = body.stage_of(op);
    const Kind backward = !split[stage.value] ? Kind::B : needed[i] ? Kind::I : Kind::W;
    out[i] = {stage, op.phase == Phase::forward ? Kind::F : backward};
  }
  return out;
}

// How many levels later than it could a collective stands: what comes by messages one after the other is worked on so, too.
std::int32_t levels_behind(const Op& op) {
  return static_cast<std::int32_t>(attribute_or(op, "behind", std::int64_t{0}));
}

IdVector<OpId, Segment> segments_of(const Body& body, const IdVector<OpId, StageKind>& kinds) {
  IdVector<OpId, Segment> out(body.graph.ops.size());
  const auto is_before = [&](OpId from, OpId i) { return from && kinds[from] && kinds[from] == kinds[i]; };
  for (const OpId i : body.graph.ops.ids()) {
    const Op& op = body.graph.ops[i];
    if (!kinds[i]) continue;
    for (ValueId v : op.operands)
      if (const OpId from = body.producer[v]; is_before(from, i))
        out[i].level = std::max(out[i].level, out[from].level + is_collective(body.graph.ops[from]));
    if (is_collective(op)) out[i] = {out[i].level + levels_behind(op), Segment::Part::collective, i};
  }
  for (std::size_t at = body.graph.ops.size(); at-- > 0;) {
    const OpId i(at);
    if (!kinds[i] || out[i].part == Segment::Part::rest) continue;
    for (ValueId v : body.graph.ops[i].operands)
      if (const OpId from = body.producer[v]; is_before(from, i) && out[from].level == out[i].level)
        out[from].part = std::min(out[from].part, Segment::Part::needed);
  }
  return out;
}

// Tasks of all ops but constants, which are cloned into each reader.
TaskPlans place_ops(const Body& body, const IdVector<OpId, StageKind>& kinds) {
  const IdVector<OpId, Segment> segments = segments_of(body, kinds);
  TaskPlans plans;
  plans.of_op.resize(body.graph.ops.size());
  std::set<StageId> in_parts;
  for (const OpId i : body.graph.ops.ids())
    if (kinds[i] && kinds[i]->second == Kind::F && segments[i] != Segment()) in_parts.insert(kinds[i]->first);
  for (const StageId stage : ids<StageId>(body.stage_number.size()))
    if (!in_parts.contains(stage)) plans.add(stage, Kind::F, {});
  for (const OpId i : body.graph.ops.ids()) {
    if (!kinds[i]) continue;
    plans.of_op[i] = plans.add(kinds[i]->first, kinds[i]->second, segments[i]);
    plans.tasks[plans.of_op[i]].ops.push_back(i);
  }
  return plans;
}

// The value whose storage `value` views, as far as one task made all the views between.
ValueId base_of(const Body& body, const TaskPlans& plans, ValueId value) {
  const StageTaskId task = plans.of(body, value);
  while (const Op* op = body.op_of(value)) {
    if (!is_view(*op) || plans.of(body, value) != task) break;
    value = op->operands[0];
  }
  return value;
}

// Ops that each task does anew that reads what they make. A view that another task reads is taken again there from the storage it views,
// where that moves no more bytes to its stage than the views themselves: the base crosses once and nothing is copied together.
IdVector<OpId, bool> retaken_ops(const Body& body, const TaskPlans& plans, const MadeOf& made, bool gathered) {
  IdVector<OpId, bool> retaken(body.graph.ops.size());
  std::map<std::pair<ValueId, StageId>, std::vector<ValueId>> views_of_base;  // by the stage that reads them
  for (const OpId i : body.graph.ops.ids()) {
    const StageTaskId task = plans.of_op[i];
    if (!task) continue;
    retaken[i] = gathered && made.invariants[body.graph.ops[i].results[0]];
    for (ValueId operand : body.graph.ops[i].operands) {
      const Op* op = body.op_of(operand);
      if (!op || !is_view(*op) || is_constant(*op) || plans.of(body, operand) == task) continue;
      std::vector<ValueId>& views = views_of_base[{base_of(body, plans, operand), plans.tasks[task].stage}];
      if (std::ranges::find(views, operand) == views.end()) views.push_back(operand);
    }
  }
  std::set<ValueId> cheaper;  // views than what they view
  for (const auto& [key, views] : views_of_base) {
    std::int64_t bytes = 0;
    for (ValueId view : views) bytes += body.graph.type(view).bytes();
    if (body.op_of(key.first) && body.graph.type(key.first).bytes() > bytes) cheaper.insert(views.begin(), views.end());
  }
  for (const auto& [key, views] : views_of_base)
    for (ValueId view : views)
      for (ValueId v = view; v != key.first && !cheaper.contains(view); v = body.op_of(v)->operands[0]) retaken[body.producer[v]] = true;
  // A collective is a task of nothing else.
  for (const Op& op : body.graph.ops)
    if (is_collective(op)) {
      retaken[body.producer[op.results[0]]] = false;
      if (const OpId from = body.producer[op.operands[0]]) retaken[from] = false;
    }
  return retaken;
}

// The values that `task` has to get from elsewhere to have `value`: none for its own ops and what it clones.
void import(const Body& body, const IdVector<OpId, bool>& retaken, TaskPlans& plans, StageTaskId task, ValueId value) {
  const OpId from = body.producer[value];
  if (from && (is_constant(body.graph.ops[from]) || plans.of_op[from] == task)) return;
  if (from && retaken[from]) {
    for (ValueId operand : body.graph.ops[from].operands) import(body, retaken, plans, task, operand);
    return;
  }
  if (!plans.tasks[task].imports.insert(value).second || !from) return;
  invariant(bool(plans.of_op[from]), "a dissolved join is read inside the loop");
  plans.readers[value].insert(task);
}

// One term of a loop result: what a task adds to its accumulator. Several values of one task are added up in the task.
struct Term {
  StageTaskId task;
  std::vector<ValueId> values;
};

std::vector<ValueId> summed_values(const Body& body, const IdVector<OpId, bool>& dissolved, ValueId output) {
  return dissolved[body.producer[output]] ? body.op_of(output)->operands : std::vector<ValueId>{output};
}

// A constant summed over the micro-batches (a gradient that is zero) is added by the first stage. `in_w`: CutOptions::sums_in_w.
// Collectives add to nothing: a task behind them does, which is made where there is none.
StageTaskId summing_task(const Body& body, TaskPlans& plans, ValueId value, bool in_w) {
  if (is_constant(*body.op_of(value))) return StageTaskId(0);
  const StageTaskId made = plans.of(body, value);
  const StageTaskId w = plans.last(plans.tasks[made].stage, Kind::W);
  const StageTaskId sums = in_w && plans.tasks[made].kind == Kind::I && w ? w : made;
  const auto [stage, kind, segment] = std::tuple(plans.tasks[sums].stage, plans.tasks[sums].kind, plans.tasks[sums].segment);
  if (segment.part != Segment::Part::collective) return sums;
  return plans.add(stage, kind, {segment.level + 1, Segment::Part::rest, OpId()});
}

// Makes the tasks behind collectives that add to loop results; from here on each value has one summing task.
void add_summing_tasks(const Body& body, const IdVector<OpId, bool>& dissolved, bool sums_in_w, TaskPlans& plans) {
  for (ValueId output : body.graph.outputs)
    for (ValueId value : summed_values(body, dissolved, output)) summing_task(body, plans, value, sums_in_w);
}

// What crosses from task to task. What I makes of the loop's sums is added to them by W with `sums_in_w`: a stage has one accumulator. What
// a collective makes of them crosses to who adds it.
void connect(const Body& body, const IdVector<OpId, bool>& dissolved, const IdVector<OpId, bool>& retaken, bool sums_in_w,
             TaskPlans& plans) {
  for (const OpId i : body.graph.ops.ids())
    if (plans.of_op[i])
      for (ValueId operand : body.graph.ops[i].operands) import(body, retaken, plans, plans.of_op[i], operand);
  for (ValueId output : body.graph.outputs)
    for (ValueId value : summed_values(body, dissolved, output)) {
      const StageTaskId made = plans.of(body, value), sums = summing_task(body, plans, value, sums_in_w);
      if (made && sums != made) import(body, retaken, plans, sums, value);
    }
  for (const auto& [value, tasks] : plans.readers) plans.tasks[plans.of(body, value)].exports.push_back(value);
  for (TaskPlan& plan : plans.tasks) std::ranges::sort(plan.exports);
}

// By loop result.
std::vector<std::vector<Term>> terms_of(const Body& body, const IdVector<OpId, bool>& dissolved, TaskPlans& plans, bool sums_in_w) {
  std::vector<std::vector<Term>> out;
  for (ValueId output : body.graph.outputs) {
    std::vector<Term>& terms = out.emplace_back();
    for (ValueId value : summed_values(body, dissolved, output)) {
      const StageTaskId task = summing_task(body, plans, value, sums_in_w);
      const auto same = std::ranges::find(terms, task, &Term::task);
      if (same == terms.end())
        terms.push_back({task, {value}});
      else
        same->values.push_back(value);
    }
    std::ranges::sort(terms, {}, &Term::task);
  }
  return out;
}

// Whether tasks of the value's own stage (or else of others) read it.
bool is_read(const Body& body, const TaskPlans& plans, ValueId value, bool by_own_stage) {
  const StageId stage = plans.tasks[plans.of(body, value)].stage;
  return std::ranges::any_of(plans.readers.at(value), [&](StageTaskId task) { return (plans.tasks[task].stage == stage) == by_own_stage; });
}

// The ops of task `from` that make `values`, going back no further than what is given.
TaskPlan slice(const Body& body, const TaskPlans& plans, const IdVector<OpId, bool>& retaken, StageTaskId from, Kind kind,
               const std::vector<ValueId>& values, const std::set<ValueId>& given) {
  TaskPlan out{plans.tasks[from].stage, kind};
  std::set<ValueId> wanted;
  const auto need = [&](const auto& self, ValueId value) -> void {
    const Op* op = body.op_of(value);
    if (op && is_constant(*op)) return;
    const bool own = plans.of(body, value) == from;
    if (op && !own && retaken[body.producer[value]]) {
      for (ValueId operand : op->operands) self(self, operand);
    } else {
      (own && !given.contains(value) ? wanted : out.imports).insert(value);
    }
  };
  for (ValueId value : values) need(need, value);
  for (const OpId i : plans.tasks[from].ops | std::views::reverse) {
    const Op& op = body.graph.ops[i];
    if (std::ranges::none_of(op.results, [&](ValueId result) { return wanted.contains(result); })) continue;
    out.ops.push_back(i);
    for (ValueId operand : op.operands) need(need, operand);
  }
  std::ranges::reverse(out.ops);
  return out;
}

// Two more tasks that together do what F does, by the roots of their slices of it: what other stages and the loop's sums need, and what
// only the stage's own backward reads. R takes from the light F what lives until the backward anyway.
void add_recomputation(const Body& body, const IdVector<OpId, bool>& retaken, const std::vector<std::vector<Term>>& terms, StageId stage,
                       TaskPlans& plans) {
  const StageTaskId forward = plans.last(stage, Kind::F);
  if (plans.tasks[forward].segment != Segment())
    throw Error(concat("stage ", stage.value, " has collectives in its forward, which R does not do again"), {},
                "set pipeline.recompute = \"inputs\" with a table without R");
  std::vector<ValueId> kept, residuals;
  std::set<ValueId> given;
  for (ValueId value : plans.tasks[forward].exports) {
    const bool others = is_read(body, plans, value, false);
    (others ? kept : residuals).push_back(value);
    if (others && is_read(body, plans, value, true)) given.insert(value);
  }
  if (residuals.empty()) return;
  for (const std::vector<Term>& of_result : terms)
    for (const Term& term : of_result)
      if (term.task == forward) kept.insert(kept.end(), term.values.begin(), term.values.end());
  plans.light[forward] = StageTaskId(plans.tasks.size());
  plans.tasks.push_back(slice(body, plans, retaken, forward, Kind::F, kept, {}));
  plans.tasks.back().whole = forward;
  plans.again[forward] = StageTaskId(plans.tasks.size());
  plans.tasks.push_back(slice(body, plans, retaken, forward, Kind::R, residuals, given));
}

void add_bundle(StageDag& dag, Bundle bundle) {
  const BundleId number(dag.bundles.size());
  for (StageTaskId task : bundle.producers) dag.tasks[task].writes.push_back(number);
  for (StageTaskId task : bundle.readers) dag.tasks[task].reads.push_back(number);
  dag.bundles.push_back(std::move(bundle));
}

// One bundle per loop operand that is read: a state tensor has a name and a life of its own.
void bundle_inputs(const Body& body, const TaskPlans& plans, StageDag& dag) {
  for (std::size_t i = 0; i < body.graph.inputs.size(); ++i) {
    const ValueId input = body.graph.inputs[i];
    Bundle bundle;
    bundle.source = i < body.split ? Bundle::Source::data : Bundle::Source::invariant;
    bundle.types = {body.graph.type(input)};
    bundle.members = {static_cast<std::int32_t>(i)};
    for (const StageTaskId t : plans.tasks.ids())
      if (plans.tasks[t].imports.contains(input)) bundle.readers.push_back(t);
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

void bundle_edges(const Body& body, const TaskPlans& plans, StageDag& dag) {
  for (const StageTaskId t : plans.tasks.ids()) {
    std::map<std::vector<StageTaskId>, Bundle> by_readers;
    for (ValueId value : plans.tasks[t].exports) {
      const std::set<StageTaskId>& tasks = plans.readers.at(value);
      Bundle& bundle = by_readers[{tasks.begin(), tasks.end()}];
      bundle.types.push_back(body.graph.type(value));
      bundle.members.push_back(value.value);
    }
    for (auto& [readers, bundle] : by_readers) {
      bundle.producers = {t};
      const auto& instead = is_read(body, plans, ValueId(bundle.members[0]), false) ? plans.light : plans.again;
      if (const auto found = instead.find(t); found != instead.end()) bundle.producers.push_back(found->second);
      bundle.readers = readers;
      add_recomputing_readers(plans, bundle);
      add_bundle(dag, std::move(bundle));
    }
  }
}

void bundle_accumulators(const Body& body, const TaskPlans& plans, const std::vector<std::vector<Term>>& terms,
                         const std::vector<std::uint32_t>& apart, StageDag& dag) {
  std::map<std::pair<std::uint32_t, std::vector<StageTaskId>>, Bundle> by_producers;
  for (std::size_t o = 0; o < body.graph.outputs.size(); ++o) {
    std::vector<StageTaskId> tasks;
    for (const Term& term : terms[o]) tasks.push_back(term.task);
    Bundle& bundle = by_producers[{apart.empty() ? 0 : apart[o], tasks}];
    bundle.source = Bundle::Source::accumulator;
    bundle.types.push_back(body.graph.type(body.graph.outputs[o]));
    bundle.members.push_back(static_cast<std::int32_t>(o));
    bundle.producers = tasks;
  }
  for (auto& [key, bundle] : by_producers) {
    for (StageTaskId task : key.second)
      if (const auto found = plans.light.find(task); found != plans.light.end()) bundle.producers.push_back(found->second);
    add_bundle(dag, std::move(bundle));
  }
}

// One task's graph under construction.
struct Building {
  const Body& body;
  Graph graph{};
  std::unordered_map<ValueId, ValueId> local{};  // value of the body: here

  void copy(const Op& op) {
    Op out = op;
    for (std::size_t i = 0; i < op.results.size(); ++i) {
      out.results[i] = graph.add_value(body.graph.type(op.results[i]));
      local[op.results[i]] = out.results[i];
    }
    for (ValueId& operand : out.operands) operand = local.at(operand);
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
  // What a task adds to a loop result.
  ValueId sum(const Term& term) {
    if (term.values.size() == 1) return need(term.values[0]);
    Op sum;
    sum.name = "add_n";
    sum.phase = Phase::backward;
    for (ValueId value : term.values) sum.operands.push_back(need(value));
    sum.results = {graph.add_value(body.graph.type(term.values[0]))};
    graph.ops.push_back(sum);
    return sum.results[0];
  }
};

// Views that only other tasks read are taken there; here nobody needs them any more.
void drop_unread_views(Graph& graph) {
  IdVector<ValueId, int> uses = use_counts(graph);
  std::vector<bool> keep(graph.ops.size(), true);
  for (std::size_t i = graph.ops.size(); i-- > 0;) {
    const Op& op = graph.ops[i];
    if (!is_view(op) || uses[op.results[0]] > 0) continue;
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
  Building out{body};
  out.graph.name = concat(name(task.kind), task.stage.value, task.light ? "_light" : "", task.part > 0 ? concat(".", task.part) : "");
  for (BundleId b : task.reads)
    for (std::int32_t member : dag.bundles[b].members) {
      const bool edge = dag.bundles[b].source == Bundle::Source::edge;
      const ValueId value = edge ? ValueId(member) : body.graph.inputs[member];
      // Structural equality ignores names, so equal layers still share one task.
      out.local[value] = out.graph.add_input(body.graph.type(value), concat("x", out.graph.inputs.size()));
    }
  for (OpId i : plan.ops) {
    for (ValueId operand : body.graph.ops[i].operands) out.need(operand);
    out.copy(body.graph.ops[i]);
  }
  const StageTaskId whole = plan.whole ? plan.whole : t;
  for (BundleId b : task.writes)
    for (std::int32_t member : dag.bundles[b].members)
      out.graph.outputs.push_back(dag.bundles[b].source == Bundle::Source::edge
                                      ? out.local.at(ValueId(member))
                                      : out.sum(*std::ranges::find(terms[member], whole, &Term::task)));
  drop_unread_views(out.graph);
  return std::move(out.graph);
}

void describe_shape(StageDag& dag) {
  const std::size_t stages = dag.names.size();
  dag.shape.predecessors.resize(stages);
  dag.shape.has_backward.assign(stages, false);
  dag.shape.has_parameters.assign(stages, false);
  for (const StageTask& task : dag.tasks)
    if (task.kind != Kind::F) dag.shape.has_backward[task.stage.value] = true;
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
  const IdVector<OpId, bool> dissolved = dissolved_joins(body);
  const MadeOf made = made_of(body);
  TaskPlans plans = place_ops(body, kinds_of(body, dissolved, needed_by_others(body, dissolved, made, options.gathered), split_backward));
  const IdVector<OpId, bool> retaken = retaken_ops(body, plans, made, options.gathered);
  add_summing_tasks(body, dissolved, options.sums_in_w, plans);
  connect(body, dissolved, retaken, options.sums_in_w, plans);
  const std::vector<std::vector<Term>> terms = terms_of(body, dissolved, plans, options.sums_in_w);
  for (std::size_t s = 0; s < recomputed.size(); ++s)
    if (recomputed[s]) add_recomputation(body, retaken, terms, StageId(s), plans);

  StageDag dag;
  dag.names = step.stages;
  for (const TaskPlan& plan : plans.tasks) dag.tasks.push_back({plan.stage, plan.kind, {}, {}, {}, bool(plan.whole)});
  number_parts(plans, dag);
  bundle_inputs(body, plans, dag);
  bundle_edges(body, plans, dag);
  bundle_accumulators(body, plans, terms, step.apart, dag);
  for (const StageTaskId t : plans.tasks.ids()) dag.tasks[t].graph = graph_of(body, plans, terms, dag, t);
  describe_shape(dag);
  return dag;
}

}  // namespace penstock
