#include "transform/take_share.h"

#include <optional>

#include "base/invariant.h"
#include "ops/definition.h"
#include "transform/passes.h"

namespace penstock {
namespace {

class Taker {
 public:
  Taker(const Graph& from, std::span<const Share> inputs, std::span<const Share> outputs)
      : from_(from), inputs_(inputs), outputs_(outputs), held_(from.values.size()) {
    to_.name = from.name;
  }

  Graph run() {
    for (std::size_t i = 0; i < from_.inputs.size(); ++i) add_input(from_.inputs[i], inputs_[i]);
    for (const Op& op : from_.ops) add(op);
    for (std::size_t i = 0; i < from_.outputs.size(); ++i) add_output(from_.outputs[i], outputs_[i]);
    return eliminate_dead_code(to_);
  }

 private:
  struct Held {
    ValueId value;  // none where the member holds nothing of it
    Share share;
  };

  const TensorType& type(ValueId v) const { return from_.type(v); }
  static TensorType part_type(const TensorType& whole, const Share& share) { return {whole.dtype, {share.end - share.begin}}; }

  void add_input(ValueId v, const Share& share) {
    Held& held = held_[v];
    held.share = share;
    const std::string& name = from_.values[v].name;
    if (share.whole) {
      held.value = to_.add_input(type(v), name);
    } else if (share.begin < share.end) {
      held.value = to_.add_input(part_type(type(v), share), name);
    } else if (share.stands_in) {
      to_.add_input({type(v).dtype, {1}}, name);
    }
  }

  ValueId append(std::string name, std::vector<ValueId> operands, Attributes attributes, TensorType result) {
    Op op;
    op.name = std::move(name);
    op.operands = std::move(operands);
    op.attributes = std::move(attributes);
    op.results = {to_.add_value(std::move(result))};
    to_.ops.push_back(op);
    return op.results[0];
  }

  ValueId zeros(const TensorType& t) { return append("full", {}, {{"dtype", t.dtype}, {"fill_value", 0.0}, {"size", t.shape}}, t); }

  // The part `share` of a held value; it must lie within what is held.
  ValueId part_of(const Held& held, const Share& share) {
    ValueId value = held.value;
    const TensorType& t = to_.type(value);
    const TensorType flat{t.dtype, {t.elements()}};
    if (t != flat) value = append("reshape", {value}, {{"shape", flat.shape}}, flat);
    const TensorType part = part_type(flat, share);
    if (part == flat) return value;
    const std::int64_t first = held.share.whole ? 0 : held.share.begin;
    return append("slice", {value},
                  {{"dim", std::int64_t{0}}, {"start", share.begin - first}, {"end", share.end - first}, {"step", std::int64_t{1}}}, part);
  }

  // The smallest share in which the op's operands are held; whole where all are whole.
  Share share_of(const Op& op) const {
    Share smallest;
    for (ValueId v : op.operands) {
      const Share& share = held_[v].share;
      if (!share.whole && (smallest.whole || share.end - share.begin < smallest.end - smallest.begin)) smallest = share;
    }
    return smallest;
  }

  void add(const Op& op) {
    const Share share = share_of(op);
    if (share.whole) return copy(op, {}, [&](ValueId v) { return type(v); });
    const ShareRule rule = share_rule(from_, op);
    invariant(rule != ShareRule::none, "an op that cannot be done in part reads what is held in part");
    if (rule == ShareRule::sum) {
      Held& held = held_[op.results[0]];
      const ValueId term = held_[op.operands[0]].value;
      held.value = term ? append("sum", {term}, {{"dim", std::vector<std::int64_t>{0}}, {"keepdim", false}}, type(op.results[0]))
                        : zeros(type(op.results[0]));
    } else if (share.begin < share.end) {
      copy(op, share, [&](ValueId v) { return part_type(type(v), share); });
    } else {
      for (ValueId v : op.results) held_[v].share = share;
    }
  }

  template <class TypeOf>
  void copy(const Op& op, const Share& share, const TypeOf& type_of) {
    Op out = op;
    for (ValueId& v : out.operands) {
      const Held& held = held_[v];
      const bool cut = !share.whole && type(v).shape == type(op.results[0]).shape;
      v = cut ? part_of(held, share) : held.value;
    }
    for (ValueId& v : out.results) {
      Held& held = held_[v];
      held.share = share;
      v = held.value = to_.add_value(type_of(v));
    }
    to_.ops.push_back(std::move(out));
  }

  void add_output(ValueId v, const Share& share) {
    const Held& held = held_[v];
    if (share.whole) {
      invariant(held.share.whole, "a task gives what it holds in part as a whole");
      to_.outputs.push_back(held.value);
    } else if (share.begin < share.end) {
      to_.outputs.push_back(part_of(held, share));
    } else if (share.stands_in) {
      to_.outputs.push_back(zeros({type(v).dtype, {1}}));
    }
  }

  const Graph& from_;
  std::span<const Share> inputs_, outputs_;
  IdVector<ValueId, Held> held_;  // for each value of from_
  Graph to_;
};

}  // namespace

ShareRule share_rule(const Graph& graph, const Op& op) {
  const OpDefinition* definition = find_op(op.name);
  if (definition && definition->elementwise) return ShareRule::elementwise;
  const bool all = op.name == "sum" && graph.type(op.results[0]).shape.empty();
  return all ? ShareRule::sum : ShareRule::none;
}

Graph take_share(const Graph& graph, std::span<const Share> inputs, std::span<const Share> outputs) {
  return Taker(graph, inputs, outputs).run();
}

}  // namespace penstock
