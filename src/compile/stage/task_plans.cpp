// SPDX-License-Identifier: Apache-2.0
#include "stage/task_plans.h"

#include <algorithm>
#include <optional>
#include <ranges>

#include "base/invariant.h"
#include "base/text.h"
#include "ops/definition.h"
#include "penstock/error.h"
#include "stage/loop.h"

namespace penstock {
namespace {

// A sum of which other tasks' terms are added up where they are made, so that they need not all be there at once.
bool is_in_place(const Op& op) {
  return op.name == "add_n" && attribute_or(op, "in_place", false);
}

// Body::dissolved.
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
IdVector<OpId, bool> needed_by_others(const Body& body, const MadeOf& made, bool gathered) {
  IdVector<OpId, bool> needed(body.graph.ops.size());
  for (std::size_t i = body.graph.ops.size(); i-- > 0;) {
    const Op& op = body.graph.ops[i];
    if (body.dissolved[i] || is_constant(op)) continue;
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

// The stage and kind of each op; none: it is a constant or dissolved. The input-gradient part of a split backward is the ops that make
// what other stages read (JaxPP, section 4.3); the rest computes weight gradients.
using StageKind = std::optional<std::pair<StageId, Kind>>;
IdVector<OpId, StageKind> kinds_of(const Body& body, const IdVector<OpId, bool>& needed, const std::vector<bool>& split) {
  IdVector<OpId, StageKind> out(body.graph.ops.size());
  for (const OpId i : body.graph.ops.ids()) {
    const Op& op = body.graph.ops[i];
    if (body.dissolved[i] || is_constant(op)) continue;
    const StageId stage = body.stage_of(op);
    const Kind backward = !split[stage.value] ? Kind::B : needed[i] ? Kind::I : Kind::W;
    out[i] = {stage, op.phase == Phase::forward ? Kind::F : backward};
  }
  return out;
}

// Returns how many levels later than it could a collective stands: parts that arrive in messages one after the other are worked on in that
// order, too.
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
  std::set<StageId> in_parts, with_ops;
  for (const OpId i : body.graph.ops.ids()) {
    if (!kinds[i]) continue;
    with_ops.insert(kinds[i]->first);
    if (kinds[i]->second == Kind::F && segments[i] != Segment()) in_parts.insert(kinds[i]->first);
  }
  if (with_ops.empty()) with_ops.insert(StageId(0));
  for (const StageId stage : with_ops)
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

// The first slice for all of a stage, which run on one actor; a block may run on another.
StageId reading_stage(StageId stage, const CutOptions& options) {
  const StagePart part = part_of(stage.value, options.slices, options.blocks);
  return part.block >= 0 ? stage : StageId(number_of({part.stage}, options.slices, options.blocks));
}

// Ops that each task does anew that reads what they make. A view that another task reads is taken again there from the storage it views,
// where that moves no more bytes to its stage than the views themselves: the base crosses once and nothing is copied together.
IdVector<OpId, bool> retaken_ops(const Body& body, const TaskPlans& plans, const MadeOf& made, const CutOptions& options) {
  IdVector<OpId, bool> retaken(body.graph.ops.size());
  std::map<std::pair<ValueId, StageId>, std::vector<ValueId>> views_of_base;  // by the stage whose slices read them
  for (const OpId i : body.graph.ops.ids()) {
    const StageTaskId task = plans.of_op[i];
    if (!task) continue;
    retaken[i] = options.gathered && made.invariants[body.graph.ops[i].results[0]];
    for (ValueId operand : body.graph.ops[i].operands) {
      const Op* op = body.op_of(operand);
      if (!op || !is_view(*op) || is_constant(*op) || plans.of(body, operand) == task) continue;
      const StageId reader = reading_stage(plans.tasks[task].stage, options);
      std::vector<ValueId>& views = views_of_base[{base_of(body, plans, operand), reader}];
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
void import(const Body& body, TaskPlans& plans, StageTaskId task, ValueId value) {
  const OpId from = body.producer[value];
  if (from && (is_constant(body.graph.ops[from]) || plans.of_op[from] == task)) return;
  if (from && plans.retaken[from]) {
    for (ValueId operand : body.graph.ops[from].operands) import(body, plans, task, operand);
    return;
  }
  if (!plans.tasks[task].imports.insert(value).second || !from) return;
  invariant(bool(plans.of_op[from]), "a dissolved join is read inside the loop");
  plans.readers[value].insert(task);
}

std::vector<ValueId> summed_values(const Body& body, ValueId output) {
  return body.dissolved[body.producer[output]] ? body.op_of(output)->operands : std::vector<ValueId>{output};
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
void add_summing_tasks(const Body& body, bool sums_in_w, TaskPlans& plans) {
  for (ValueId output : body.graph.outputs)
    for (ValueId value : summed_values(body, output)) summing_task(body, plans, value, sums_in_w);
}

// Finds the values that cross from task to task. What I makes of the loop's sums is added to them by W with `sums_in_w`: a stage has one
// accumulator. What a collective makes of them crosses to who adds it.
void connect(const Body& body, bool sums_in_w, TaskPlans& plans) {
  for (const OpId i : body.graph.ops.ids()) {
    const Op& op = body.graph.ops[i];
    const StageTaskId task = plans.of_op[i];
    if (!task) continue;
    for (ValueId operand : op.operands)
      if (const StageTaskId from = plans.of(body, operand); is_in_place(op) && from && from != task)
        plans.sums[op.results[0]][from].push_back(operand);
      else
        import(body, plans, task, operand);
  }
  for (ValueId output : body.graph.outputs)
    for (ValueId value : summed_values(body, output)) {
      const StageTaskId made = plans.of(body, value), sums = summing_task(body, plans, value, sums_in_w);
      if (made && sums != made) import(body, plans, sums, value);
    }
  for (const auto& [value, tasks] : plans.readers) plans.tasks[plans.of(body, value)].exports.push_back(value);
  for (TaskPlan& plan : plans.tasks) std::ranges::sort(plan.exports);
}

// By loop result.
std::vector<std::vector<Term>> terms_of(const Body& body, TaskPlans& plans, bool sums_in_w) {
  std::vector<std::vector<Term>> out;
  for (ValueId output : body.graph.outputs) {
    std::vector<Term>& terms = out.emplace_back();
    for (ValueId value : summed_values(body, output)) {
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
// The ops of the F `from` that make `values`, going back no further than what is given.
TaskPlan plan_making(const Body& body, const TaskPlans& plans, StageTaskId from, const std::vector<ValueId>& values,
                     const std::set<ValueId>& given) {
  TaskPlan out{plans.tasks[from].stage};
  std::set<ValueId> wanted;
  const auto need = [&](const auto& self, ValueId value) -> void {
    const Op* op = body.op_of(value);
    if (op && is_constant(*op)) return;
    const bool own = plans.of(body, value) == from;
    if (op && !own && plans.retaken[body.producer[value]]) {
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

// Two more tasks that together do what F does, by the values that each makes: what other stages and the loop's sums need, and what
// only the stage's own backward reads. R takes from the light F what lives until the backward anyway.
void add_recomputation(const Body& body, const std::vector<std::vector<Term>>& terms, StageId stage, TaskPlans& plans) {
  const StageTaskId forward = plans.last(stage, Kind::F);
  if (!forward) return;  // a slice of a stage that is whole
  if (plans.tasks[forward].segment != Segment())
    throw Error(concat("stage ", stage.value, " has collectives in its forward, which R does not do again"), {},
                "set pipeline.recompute = \"inputs\" in place of R, or of batch.recompute");
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
  plans.tasks.push_back(plan_making(body, plans, forward, kept, {}));
  plans.tasks.back().whole = forward;
  plans.again[forward] = StageTaskId(plans.tasks.size());
  plans.tasks.push_back(plan_making(body, plans, forward, residuals, given));
  plans.tasks.back().kind = Kind::R;
}
}  // namespace

Body body_of(const StagedStep& step) {
  const Op& loop = step.step.ops[loop_of(step.step)];
  Body body{loop, *loop.body, producers(*loop.body), {}};
  for (const StageId stage : step.stages.ids()) body.stage_number[step.stages[stage]] = stage;
  body.split = attribute<std::int64_t>(loop, "split");
  body.dissolved = dissolved_joins(body);
  return body;
}
bool is_read(const Body& body, const TaskPlans& plans, ValueId value, bool by_own_stage) {
  const StageId stage = plans.tasks[plans.of(body, value)].stage;
  return std::ranges::any_of(plans.readers.at(value), [&](StageTaskId task) { return (plans.tasks[task].stage == stage) == by_own_stage; });
}
PlannedTasks plan_tasks(const Body& body, const std::vector<bool>& split, const std::vector<bool>& recomputed, const CutOptions& options) {
  const MadeOf made = made_of(body);
  PlannedTasks out{place_ops(body, kinds_of(body, needed_by_others(body, made, options.gathered), split)), {}};
  out.plans.retaken = retaken_ops(body, out.plans, made, options);
  add_summing_tasks(body, options.sums_in_w, out.plans);
  connect(body, options.sums_in_w, out.plans);
  out.terms = terms_of(body, out.plans, options.sums_in_w);
  for (std::size_t s = 0; s < recomputed.size(); ++s)
    if (recomputed[s]) add_recomputation(body, out.terms, StageId(s), out.plans);
  return out;
}

}  // namespace penstock
