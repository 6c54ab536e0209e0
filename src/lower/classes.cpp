#include "lower/classes.h"

#include <algorithm>
#include <optional>

#include "base/invariant.h"
#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

std::int64_t split_of(const LowerInput& input) {
  return attribute<std::int64_t>(input.loop_op(), "split");
}

void check_alike(const LowerInput& first, const LowerInput& other) {
  const auto types = [](const LowerInput& input) {
    std::vector<TensorType> out;
    for (int s = 0; s < input.step.state; ++s) out.push_back(input.step.type(input.step.inputs[s]));
    for (ValueId result : input.loop_op().results) out.push_back(input.step.type(result));
    return out;
  };
  if (types(first) == types(other) && split_of(first) == split_of(other) && first.dag.names == other.dag.names) return;
  throw Error("the steps of two shape classes differ in more than the shapes of their data",
              {"states, results of the loop, stages and data ports must be alike"});
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

// By operand of the class's loop: where it stands among those of the joined one. What the loop cuts keeps its place.
std::vector<std::int32_t> take_operands(Joining& join, const LowerInput& from) {
  const IdVector<ValueId, OpId> producer = producers(from.step);
  std::map<ValueId, ValueId> known;
  std::vector<std::int32_t> out;
  const std::vector<ValueId>& operands = from.loop_op().operands;
  for (std::int64_t o = 0; o < std::ssize(operands); ++o) {
    if (o < split_of(from)) {
      out.push_back(static_cast<std::int32_t>(o));
      continue;
    }
    const ValueId value = taken_in(join, from, producer, known, operands[o]);
    const auto same = std::find(join.operands.begin() + split_of(from), join.operands.end(), value);
    out.push_back(static_cast<std::int32_t>(same - join.operands.begin()));
    if (same == join.operands.end()) join.operands.push_back(value);
  }
  return out;
}

// Adds the class's tasks and bundles. Invariants and accumulators of one kind are one, whoever reads or makes them.
void add_tasks(const LowerInput& from, const std::vector<std::int32_t>& operand, std::int32_t shape_class, StageDag& dag) {
  const auto first = static_cast<std::int32_t>(dag.tasks.size());
  IdVector<BundleId, BundleId> bundle_of;
  for (const Bundle& bundle : from.dag.bundles) {
    Bundle here = bundle;
    for (StageTaskId& task : here.producers) task.value += first;
    for (StageTaskId& task : here.readers) task.value += first;
    const bool is_input = here.source == Bundle::Source::invariant || here.source == Bundle::Source::data;
    if (is_input) here.members[0] = operand[here.members[0]];
    const bool is_shared = here.source == Bundle::Source::invariant || here.source == Bundle::Source::accumulator;
    const auto same = std::ranges::find_if(
        dag.bundles, [&](const Bundle& b) { return is_shared && b.source == here.source && b.members == here.members; });
    if (same == dag.bundles.end()) {
      bundle_of.emplace_back(dag.bundles.size());
      dag.bundles.push_back(std::move(here));
      continue;
    }
    invariant(same->types == here.types, "what classes share has one type");
    bundle_of.emplace_back(same - dag.bundles.begin());
    same->producers.insert(same->producers.end(), here.producers.begin(), here.producers.end());
    same->readers.insert(same->readers.end(), here.readers.begin(), here.readers.end());
  }
  for (StageTask task : from.dag.tasks) {
    for (BundleId& bundle : task.reads) bundle = bundle_of[bundle];
    for (BundleId& bundle : task.writes) bundle = bundle_of[bundle];
    task.shape_class = shape_class;
    if (shape_class > 0) task.graph.name += concat(".class", shape_class);
    dag.tasks.push_back(std::move(task));
  }
}

// The inputs of the joined step: states, ports that are read and the loop does not cut, then each micro-batch's own.
void declare_inputs(const std::vector<LowerInput>& classes, const std::vector<std::int32_t>& shape_class, LowerInput& out) {
  const std::int64_t split = split_of(out);
  std::vector<ValueId>& operands = out.step.ops[out.loop].operands;
  const std::vector<ValueId> cut(operands.begin(), operands.begin() + split);
  const IdVector<ValueId, int> uses = use_counts(out.step);
  for (ValueId port : cut)
    if (uses[port] > 1 || std::ranges::find(out.step.inputs, port) == out.step.inputs.end())
      throw Error(concat("shape classes: the step reads ", quote(out.step.values[port].name), " outside of its loop"), {},
                  "count what the loss is divided by in a port of its own");
  // What nobody reads has the shape of one class, too.
  const std::vector<ValueId> states(out.step.inputs.begin(), out.step.inputs.begin() + out.step.state);
  std::erase_if(out.step.inputs, [&](ValueId v) {
    const bool is_state = std::ranges::find(states, v) != states.end();
    return !is_state && (uses[v] == 0 || std::ranges::find(cut, v) != cut.end());
  });
  out.first_port = InputId(out.step.inputs.size());
  for (std::size_t m = 0; m < shape_class.size(); ++m) {
    const LowerInput& from = classes[shape_class[m]];
    for (std::int64_t i = 0; i < split; ++i) {
      const Value& port = from.step.values[from.loop_op().operands[i]];
      const ValueId made = out.step.add_input(port.type, concat(port.name, ".", m));
      if (m == 0) out.step.ops[out.loop].operands[i] = made;
    }
  }
}

}  // namespace

LowerInput join_classes(const std::vector<LowerInput>& classes, const Schedule& schedule, std::vector<std::int32_t> shape_class) {
  for (const LowerInput& other : classes) {
    if (other.microbatches != 1)
      throw Error(concat("the step of a shape class has ", other.microbatches, " micro-batches"), {}, "trace it with one");
    check_alike(classes[0], other);
  }
  if (std::ssize(shape_class) != schedule.microbatches())
    throw Error(concat("schedule ", schedule.name, " is for ", schedule.microbatches(), " micro-batches; shapes are given for ",
                       shape_class.size()));
  for (std::size_t m = 0; m < shape_class.size(); ++m)
    if (shape_class[m] < 0 || shape_class[m] >= std::ssize(classes))
      throw Error(concat("micro-batch ", m, " is of shape class ", shape_class[m], "; there ",
                         classes.size() == 1 ? "is 1 class" : concat("are ", classes.size(), " classes")));
  LowerInput out = classes[0];
  Joining join{out.step};
  join.before.assign(out.step.ops.begin(), out.step.ops.begin() + static_cast<std::ptrdiff_t>(out.loop));
  join.operands = out.loop_op().operands;
  for (std::size_t c = 1; c < classes.size(); ++c)
    add_tasks(classes[c], take_operands(join, classes[c]), static_cast<std::int32_t>(c), out.dag);
  join.before.insert(join.before.end(), out.step.ops.begin() + static_cast<std::ptrdiff_t>(out.loop), out.step.ops.end());
  const std::size_t added = join.before.size() - out.step.ops.size();
  out.step = std::move(join.step);
  out.step.ops = IdVector<OpId, Op>(std::move(join.before));
  out.loop += added;
  out.step.ops[out.loop].operands = std::move(join.operands);
  declare_inputs(classes, shape_class, out);
  out.schedule = schedule;
  out.microbatches = static_cast<std::int32_t>(shape_class.size());
  out.shape_class = std::move(shape_class);
  out.input_of.assign(out.step.values.size(), InputId());
  for (std::size_t i = out.step.inputs.size(); i-- > 0;) out.input_of[out.step.inputs[i]] = InputId(i);
  validate(schedule, out.dag.shape, out.table_microbatches());
  return out;
}

}  // namespace penstock
