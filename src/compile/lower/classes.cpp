// SPDX-License-Identifier: Apache-2.0
#include "lower/classes.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "base/invariant.h"
#include "base/text.h"
#include "penstock/error.h"
#include "schedule/forward_stages.h"
#include "transform/conversions.h"
#include "transform/passes.h"

namespace penstock {
namespace {

std::int64_t split_of(const LowerInput& input) {
  return attribute<std::int64_t>(input.loop_op(), "split");
}

// The data ports that the loop cuts, in order.
std::vector<std::string> ports_of(const LowerInput& input) {
  std::vector<std::string> out;
  for (std::int64_t i = 0; i < split_of(input); ++i) out.push_back(input.step.values[input.loop_op().operands[i]].name);
  return out;
}

// The place of each of `some` in `all`; none: one is not there, or they stand in another order.
template <class List>
std::optional<std::vector<std::int32_t>> places_in(const List& some, const List& all) {
  std::vector<std::int32_t> out;
  auto next = all.begin();
  for (const std::string& name : some) {
    next = std::find(next, all.end(), name);
    if (next == all.end()) return std::nullopt;
    out.push_back(static_cast<std::int32_t>(next++ - all.begin()));
  }
  return out;
}

// `base` has the most stages: a class may lack some, as there is no work for them in its micro-batches, and ports that only these read.
void check_alike(const LowerInput& base, const LowerInput& other) {
  const auto same_types = [&](std::span<const ValueId> a, std::span<const ValueId> b) {
    return std::ranges::equal(a, b, [&](ValueId x, ValueId y) { return base.step.type(x) == other.step.type(y); });
  };
  const auto states = [](const LowerInput& input) { return std::span(input.step.inputs).first(input.step.state); };
  for (std::size_t i = 0; i < std::min(states(base).size(), states(other).size()); ++i) {
    const std::string &of_base = base.step.values[states(base)[i]].name, &of_other = other.step.values[states(other)[i]].name;
    if (of_base != of_other)
      throw Error("the steps of two shape classes have other states",
                  {concat("one has ", quote(of_base), " where the other has ", quote(of_other)),
                   "an exported module's constants belong to one export, and each that fixes other sizes is another"},
                  "give micro-batches whose sizes one export allows: of two samples and more");
  }
  if (same_types(states(base), states(other)) && same_types(base.loop_op().results, other.loop_op().results) &&
      places_in(ports_of(other), ports_of(base)) && places_in(other.dag.names, base.dag.names))
    return;
  throw Error("the steps of two shape classes differ in more than the shapes of their data",
              {"states, results of the loop, stages and data ports must be alike; a class may lack some stages of another"});
}

// By result of the loop: whether the class adds nothing to it (the gradient of a parameter that only stages read which it lacks).
std::vector<bool> zeros_of(const LowerInput& input) {
  const Graph& body = *input.loop_op().body;
  const IdVector<ValueId, OpId> producer = producers(body);
  std::vector<bool> out;
  for (const ValueId result : body.outputs) {
    const OpId made = producer[result];
    out.push_back(made && is_zeros(body.ops[made]));
  }
  return out;
}

// Takes sums of zeros out of the tasks that make them; nobody reads or writes their bundles then.
void drop_sums(StageDag& dag, const std::vector<bool>& dropped) {
  for (StageTask& task : dag.tasks) {
    std::vector<BundleId> writes;
    std::vector<ValueId> outputs;
    auto output = task.graph->outputs.begin();
    for (const BundleId b : task.writes) {
      Bundle& bundle = dag.bundles[b];
      const auto end = output + static_cast<std::ptrdiff_t>(bundle.members.size());
      const auto is_dropped = [&](std::int32_t member) { return dropped[member]; };
      if (bundle.source == Bundle::Source::accumulator && std::ranges::all_of(bundle.members, is_dropped)) {
        bundle.producers.clear();
      } else {
        writes.push_back(b);
        outputs.insert(outputs.end(), output, end);
      }
      output = end;
    }
    if (writes.size() == task.writes.size()) continue;
    task.writes = std::move(writes);
    Graph rest = *task.graph;
    rest.outputs = std::move(outputs);
    task.graph = eliminate_dead_code(rest);
  }
}

// Results to which some class adds something.
std::vector<bool> made_by_any(std::span<const MemberClass> classes) {
  std::vector<bool> out(classes[0].input->loop_op().results.size(), false);
  for (const MemberClass& each : classes) {
    const std::vector<bool> zeros = zeros_of(*each.input);
    for (std::size_t r = 0; r < out.size(); ++r) out[r] = out[r] || !zeros[r];
  }
  return out;
}

// Takes out of the class's tasks the zeros that it would add to what others make. `made`: made_by_any(), or empty: it adds none.
void drop_zeros(const LowerInput& input, const std::vector<bool>& made, StageDag& dag) {
  if (made.empty()) return;
  std::vector<bool> dropped = zeros_of(input);
  for (std::size_t r = 0; r < dropped.size(); ++r) dropped[r] = dropped[r] && made[r];
  if (std::ranges::find(dropped, true) != dropped.end()) drop_sums(dag, dropped);
}

// The joined step while it takes in what other classes compute ahead of the loop.
struct Joining {
  Graph step;
  std::vector<Op> before{};         // ahead of the loop
  std::vector<ValueId> operands{};  // of the loop
};

std::optional<ValueId> same_op(const Joining& join, const Op& op, const TensorType& type) {
  for (const Op& other : join.before)
    if (other.name == op.name && other.operands == op.operands && other.attributes == op.attributes && other.results.size() == 1 &&
        join.step.type(other.results[0]) == type)
      return other.results[0];
  return std::nullopt;
}

// A class's value from ahead of its loop, in the joined step.
ValueId taken_in(Joining& join, const LowerInput& from, const IdVector<ValueId, OpId>& producer, std::map<ValueId, ValueId>& known,
                 ValueId value) {
  if (const auto found = known.find(value); found != known.end()) return found->second;
  const OpId number = producer[value];
  if (!number) {
    const Value& port = from.step.values[value];
    const auto same = std::ranges::find_if(join.step.inputs, [&](ValueId v) { return join.step.values[v].name == port.name; });
    invariant(same != join.step.inputs.end(), "classes have the same ports");
    return known[value] = *same;
  }
  Op op = from.step.ops[number];
  for (ValueId& operand : op.operands) operand = taken_in(join, from, producer, known, operand);
  if (const auto same = same_op(join, op, from.step.type(value)); same && op.results.size() == 1) return known[value] = *same;
  for (ValueId& result : op.results) result = known[result] = join.step.add_value(from.step.type(result));
  join.before.push_back(std::move(op));
  return known[value];
}

// By operand of the class's loop: where it stands among those of the joined one, `base`'s first.
std::vector<std::int32_t> take_operands(Joining& join, const LowerInput& base, const LowerInput& from) {
  const IdVector<ValueId, OpId> producer = producers(from.step);
  std::map<ValueId, ValueId> known;
  std::vector<std::int32_t> out = *places_in(ports_of(from), ports_of(base));
  const std::vector<ValueId>& operands = from.loop_op().operands;
  for (std::int64_t o = split_of(from); o < std::ssize(operands); ++o) {
    const ValueId value = taken_in(join, from, producer, known, operands[o]);
    const auto same = std::find(join.operands.begin() + split_of(base), join.operands.end(), value);
    out.push_back(static_cast<std::int32_t>(same - join.operands.begin()));
    if (same == join.operands.end()) join.operands.push_back(value);
  }
  return out;
}

// Takes on what feeds what in the class.
void join_shape(const StageShape& from, const std::vector<std::int32_t>& stage, StageShape& shape) {
  for (std::size_t s = 0; s < stage.size(); ++s) {
    std::vector<std::int32_t>& list = shape.predecessors[stage[s]];
    for (const std::int32_t before : from.predecessors[s])
      if (std::ranges::find(list, stage[before]) == list.end()) list.push_back(stage[before]);
    std::ranges::sort(list);
    shape.has_backward[stage[s]] = shape.has_backward[stage[s]] || from.has_backward[s];
    shape.has_parameters[stage[s]] = shape.has_parameters[stage[s]] || from.has_parameters[s];
  }
}

// The unit that devices share out is a block of sums, all tensors of one accumulator. Which sums are in one follows from the class's tasks,
// and these from what its members say to each other. Where classes differ in that, sums of both lie in accumulators of either.
void check_groups(const StageDag& dag, const Bundle& sums, const LowerInput& input) {
  if (input.options.zero == 0) return;
  for (const Bundle& other : dag.bundles)
    if (other.source == Bundle::Source::accumulator && !other.producers.empty() &&
        std::ranges::any_of(sums.members, [&](std::int32_t m) { return std::ranges::find(other.members, m) != other.members.end(); }))
      throw Error(concat("micro-batches of different lengths add their gradients up in different groups along ",
                         join(input.options.axes, ", ", [](const LayoutAxis& axis) { return axis.name; }),
                         ", and pipeline.zero = ", input.options.zero, " shares each group out"),
                  {}, "set pipeline.zero = 0, leave out one of these axes, or set batch.planner = \"pad\"");
}

// Adds the class's tasks and bundles; `stage`: the numbers of its stages here. Invariants and accumulators of one kind are one, whoever
// reads or makes them.
void add_tasks(const LowerInput& input, StageDag from, const std::vector<std::int32_t>& operand, const std::vector<std::int32_t>& stage,
               std::int32_t shape_class, StageDag& dag) {
  const auto first = static_cast<std::int32_t>(dag.tasks.size());
  IdVector<BundleId, BundleId> bundle_of;
  for (Bundle& here : from.bundles) {
    if (here.source == Bundle::Source::accumulator && here.producers.empty()) {
      bundle_of.emplace_back();
      continue;
    }
    for (StageTaskId& task : here.producers) task.value += first;
    for (StageTaskId& task : here.readers) task.value += first;
    const bool is_input = here.source == Bundle::Source::invariant || here.source == Bundle::Source::data;
    if (is_input) here.members[0] = operand[here.members[0]];
    const bool is_shared = here.source == Bundle::Source::invariant || here.source == Bundle::Source::accumulator;
    const auto same = std::ranges::find_if(
        dag.bundles, [&](const Bundle& b) { return is_shared && b.source == here.source && b.members == here.members; });
    if (same == dag.bundles.end()) {
      if (here.source == Bundle::Source::accumulator) check_groups(dag, here, input);
      bundle_of.emplace_back(dag.bundles.size());
      dag.bundles.push_back(std::move(here));
      continue;
    }
    invariant(same->types == here.types, "what classes share has one type");
    bundle_of.emplace_back(same - dag.bundles.begin());
    same->producers.insert(same->producers.end(), here.producers.begin(), here.producers.end());
    same->readers.insert(same->readers.end(), here.readers.begin(), here.readers.end());
  }
  for (StageTask& task : from.tasks) {
    for (BundleId& bundle : task.reads) bundle = bundle_of[bundle];
    for (BundleId& bundle : task.writes) bundle = bundle_of[bundle];
    task.stage = StageId(stage[task.stage.index()]);
    task.shape_class = shape_class;
    dag.tasks.push_back(std::move(task));
  }
}

// By stage and micro-batch, whether the micro-batch's class has no such stage, or the member does not work on it.
std::vector<std::vector<bool>> idle_stages(std::span<const MemberClass> classes, const std::vector<std::int32_t>& shape_class,
                                           const LowerInput& base) {
  std::vector<std::vector<bool>> idle(base.dag.names.size(), std::vector<bool>(shape_class.size(), true));
  for (std::size_t m = 0; m < shape_class.size(); ++m) {
    const MemberClass& each = classes[shape_class[m]];
    if (!each.works) continue;
    const auto own = places_in(each.input->dag.names, base.dag.names);
    for (const std::int32_t stage : *own) idle[stage][m] = false;
  }
  return idle;
}

// By class, its data ports of these names: the loop of one that lacks stages may cut fewer.
std::vector<std::vector<ValueId>> ports_by_name(std::span<const MemberClass> classes, const std::vector<std::string>& names) {
  std::vector<std::vector<ValueId>> out(classes.size());
  for (std::size_t c = 0; c < classes.size(); ++c) {
    const Graph& step = classes[c].input->step;
    for (const std::string& name : names) {
      const auto port = std::ranges::find_if(step.inputs, [&](ValueId v) { return step.values[v].name == name; });
      invariant(port != step.inputs.end(), "classes have the same ports");
      out[c].push_back(*port);
    }
  }
  return out;
}

// The table without the actions of micro-batches on which others work.
Schedule of_member(Schedule table, std::span<const MemberClass> classes, const std::vector<std::int32_t>& shape_class) {
  table.cells.clear();
  for (std::vector<Action>& row : table.actors) {
    std::erase_if(row, [&](const Action& a) { return a.microbatch >= 0 && !classes[shape_class[a.microbatch]].works; });
    for (Action& action : row) action.fused_with_next = false;
  }
  return table;
}

// Lines have the same numbers on all members, whichever classes they work on. Groups of as many members stand at multiples of their number,
// so the place in a line is the same in all of them.
void take_lines(const MemberClass& from, LowerInput& out) {
  for (const MemberLine& line : from.input->lines) {
    const std::int32_t known = out.line(line.name);
    if (known < 0)
      out.lines.push_back(line);
    else if (from.works)
      out.lines[known] = line;
  }
}

// The inputs of the joined step: states, ports that are read and the loop does not cut, then each micro-batch's own.
void declare_inputs(std::span<const MemberClass> classes, const std::vector<std::int32_t>& shape_class, LowerInput& out) {
  const std::int64_t split = split_of(out);
  std::vector<ValueId>& operands = out.step.ops[out.loop].operands;
  const std::vector<ValueId> cut(operands.begin(), operands.begin() + split);
  const IdVector<ValueId, int> uses = use_counts(out.step);
  for (ValueId port : cut)
    if (uses[port] > 1 || std::ranges::find(out.step.inputs, port) == out.step.inputs.end())
      throw Error(concat("shape classes: the step reads ", quote(out.step.values[port].name), " outside of its loop"), {},
                  "count what the loss is divided by in a port of its own");
  // An input that nobody reads has the shape of one class, too: it goes.
  const std::vector<ValueId> states(out.step.inputs.begin(), out.step.inputs.begin() + out.step.state);
  std::erase_if(out.step.inputs, [&](ValueId v) {
    const bool is_state = std::ranges::find(states, v) != states.end();
    return !is_state && (uses[v] == 0 || std::ranges::find(cut, v) != cut.end());
  });
  out.first_port = InputId(out.step.inputs.size());
  const std::vector<std::string> names = ports_of(out);
  const std::vector<std::vector<ValueId>> ports = ports_by_name(classes, names);
  for (std::size_t m = 0; m < shape_class.size() * out.shares; ++m) {
    const std::int32_t of = shape_class[m / out.shares];
    for (std::int64_t i = 0; i < split; ++i) {
      const ValueId made = out.step.add_input(classes[of].input->step.type(ports[of][i]), concat(names[i], ".", m));
      if (m == 0) out.step.ops[out.loop].operands[i] = made;
    }
  }
}

void check_classes(std::span<const MemberClass> classes, const LowerInput& base) {
  for (const MemberClass& other : classes) {
    if (other.input->microbatches != 1)
      throw Error(concat("the step of a shape class has ", other.input->microbatches, " micro-batches"), {}, "trace it with one");
    check_alike(base, *other.input);
  }
}

void check_numbers(const std::vector<std::int32_t>& shape_class, std::size_t classes, const Schedule& schedule) {
  if (std::ssize(shape_class) != schedule.microbatches())
    throw Error(concat("schedule ", schedule.name, " is for ", schedule.microbatches(), " micro-batches; shapes are given for ",
                       shape_class.size()));
  for (std::size_t m = 0; m < shape_class.size(); ++m)
    if (shape_class[m] < 0 || std::cmp_greater_equal(shape_class[m], classes))
      throw Error(concat("micro-batch ", m, " is of shape class ", shape_class[m], "; there ",
                         classes == 1 ? "is 1 class" : concat("are ", classes, " classes")));
}

}  // namespace

LowerInput join_classes(std::span<const MemberClass> classes, const Schedule& schedule, std::vector<std::int32_t> shape_class) {
  const auto stages = [](const MemberClass& each) { return each.input->dag.names.size(); };
  const auto first = static_cast<std::int32_t>(std::ranges::max_element(classes, {}, stages) - classes.begin());
  const LowerInput& base = *classes[first].input;
  check_classes(classes, base);
  check_numbers(shape_class, classes.size(), schedule);
  const bool some_lack_stages =
      std::ranges::any_of(classes, [&](const MemberClass& each) { return stages(each) < stages(classes[first]); });
  const bool works_on_all = std::ranges::all_of(classes, &MemberClass::works);
  const std::vector<bool> made = some_lack_stages ? made_by_any(classes) : std::vector<bool>();
  LowerInput out = base;
  drop_zeros(base, made, out.dag);
  for (StageTask& task : out.dag.tasks) task.shape_class = first;
  Joining join{std::move(out.step)};
  std::vector<Op> ops = std::exchange(join.step.ops, {});
  const auto loop = ops.begin() + static_cast<std::ptrdiff_t>(out.loop);
  join.operands = loop->operands;
  join.before.assign(std::move_iterator(ops.begin()), std::move_iterator(loop));
  for (std::int32_t c = 0; c < std::ssize(classes); ++c) {
    if (c == first) continue;
    const LowerInput& input = *classes[c].input;
    take_lines(classes[c], out);
    if (!classes[c].works) continue;
    const std::vector<std::int32_t> stage = *places_in(input.dag.names, base.dag.names);
    StageDag dag = input.dag;
    drop_zeros(input, made, dag);
    if (some_lack_stages) join_shape(dag.shape, stage, out.dag.shape);
    add_tasks(input, std::move(dag), take_operands(join, base, input), stage, c, out.dag);
  }
  out.loop = join.before.size();
  join.before.insert(join.before.end(), std::move_iterator(loop), std::move_iterator(ops.end()));
  out.step = std::move(join.step);
  out.step.ops = IdVector<OpId, Op>(std::move(join.before));
  out.step.ops[out.loop].operands = std::move(join.operands);
  declare_inputs(classes, shape_class, out);
  if (some_lack_stages || !works_on_all) out.dag.shape.idle = idle_stages(classes, shape_class, base);
  out.schedule = works_on_all ? schedule : of_member(schedule, classes, shape_class);
  if (out.schedule.cells.empty()) out.schedule = without_absent_backwards(std::move(out.schedule), out.dag.shape);
  out.microbatches = static_cast<std::int32_t>(shape_class.size()) * out.shares;
  out.shape_class = std::move(shape_class);
  out.input_of.assign(out.step.values.size(), InputId());
  for (std::size_t i = out.step.inputs.size(); i-- > 0;) out.input_of[out.step.inputs[i]] = InputId(i);
  validate(out.schedule, out.dag.shape, out.table_microbatches());
  return out;
}

}  // namespace penstock
