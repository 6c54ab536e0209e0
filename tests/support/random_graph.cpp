// SPDX-License-Identifier: Apache-2.0
#include "support/random_graph.h"

#include "base/hash.h"
#include "base/text.h"

namespace penstock::test {
namespace {

class Maker {
 public:
  Maker(std::mt19937_64& random, bool loops) : random_(random), loops_(loops) {}

  Graph make() {
    graph_.name = "g" + std::to_string(below(3));
    const std::size_t inputs = 1 + below(4);
    for (std::size_t i = 0; i < inputs; ++i) graph_.add_input(type(), "x." + std::to_string(i));
    const std::size_t forward = below(20), backward = below(20);
    for (std::size_t i = 0; i < forward; ++i) op(Phase::forward);
    for (std::size_t i = 0; i < backward; ++i) op(Phase::backward);
    for (std::size_t i = below(4); i-- > 0;) graph_.outputs.push_back(value());
    return std::move(graph_);
  }

 private:
  std::size_t below(std::size_t end) { return random_() % end; }
  ValueId value() { return ValueId(static_cast<std::int64_t>(below(graph_.values.size()))); }

  TensorType type() {
    TensorType type{static_cast<DType>(below(kDTypeCount)), {}};
    for (std::size_t rank = below(3); rank-- > 0;) type.shape.push_back(static_cast<std::int64_t>(below(3)));
    return type;
  }

  Attribute attribute() {
    switch (below(7)) {
      case 0:
        return below(2) == 0;
      case 1:
        return static_cast<std::int64_t>(random_());
      case 2:
        return static_cast<double>(static_cast<std::int64_t>(random_())) / 1e9;
      case 3:
        return static_cast<DType>(below(kDTypeCount));
      case 4:
        return std::string{static_cast<char>(below(256)), static_cast<char>(below(256))};
      case 5:
        return std::vector<std::int64_t>(below(3), static_cast<std::int64_t>(random_()));
      default:
        return std::vector<double>(below(3), 1.5);
    }
  }

  void op(Phase phase) {
    if (loops_ && below(8) == 0) return loop();
    Op op;
    op.name = below(2) == 0 ? "aten::neg.out" : "add";
    op.phase = phase;
    op.sequence = static_cast<std::int64_t>(graph_.ops.size());
    for (std::size_t i = below(3); i-- > 0;) op.operands.push_back(value());
    if (!op.operands.empty() || below(2) == 0) op.stage = std::string(1, static_cast<char>('a' + below(3)));
    if (below(3) == 0) op.attributes["p" + std::to_string(below(2))] = attribute();
    if (below(4) == 0) op.origin = "h.\"0\"";
    // There is one type per number of operands, so that equal ops occur.
    for (std::size_t i = 1 + below(2); i-- > 0;) op.results.push_back(graph_.add_value({DType::f32, Shape(op.operands.size(), 2)}));
    graph_.ops.push_back(std::move(op));
  }

  void loop() {
    const Graph body = Maker(random_, false).make();
    Op op;
    op.name = "accumulate";
    for (std::size_t i = 0; i < body.inputs.size(); ++i) op.operands.push_back(value());
    for (ValueId output : body.outputs) op.results.push_back(graph_.add_value(body.type(output)));
    if (op.results.empty()) return;
    op.attributes["split"] = static_cast<std::int64_t>(below(body.inputs.size() + 1));
    op.attributes["microbatches"] = static_cast<std::int64_t>(1 + below(4));
    op.body = std::make_shared<const Graph>(body);
    graph_.ops.push_back(std::move(op));
  }

  std::mt19937_64& random_;
  bool loops_;
  Graph graph_;
};

std::uint64_t hash_of(const std::vector<std::uint64_t>& words, std::string_view text) {
  Hash hash;
  for (std::uint64_t word : words) hash.add(word);
  hash.add(text);
  return hash.value();
}

std::vector<std::uint64_t> expressions(const Graph& graph, const std::vector<std::uint64_t>& inputs) {
  std::vector<std::uint64_t> of(graph.values.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) of[graph.inputs[i].index()] = inputs[i];
  for (const Op& op : graph.ops) {
    std::vector<std::uint64_t> operands;
    for (ValueId operand : op.operands) operands.push_back(of[operand.index()]);
    std::string text = op.name;
    for (const auto& [name, value] : op.attributes) text += "," + name + "=" + text_of(value);
    if (op.body) {
      const auto split = static_cast<std::size_t>(attribute<std::int64_t>(op, "split"));
      for (std::size_t i = 0; i < split; ++i) operands[i] = hash_of({operands[i]}, "part");
      const std::vector<std::uint64_t> sums = expressions(*op.body, operands);
      const std::string microbatches = text_of(op.attributes.at("microbatches"));
      for (std::size_t i = 0; i < sums.size(); ++i) of[op.results[i].index()] = hash_of({sums[i]}, microbatches);
      continue;
    }
    for (std::size_t i = 0; i < op.results.size(); ++i)
      of[op.results[i].index()] = hash_of(operands, text + ":" + std::to_string(i) + graph.type(op.results[i]).text());
  }
  std::vector<std::uint64_t> out;
  for (ValueId output : graph.outputs) out.push_back(of[output.index()]);
  return out;
}

}  // namespace

Graph random_graph(std::mt19937_64& random, bool loops) {
  return Maker(random, loops).make();
}

std::vector<std::uint64_t> output_expressions(const Graph& graph) {
  std::vector<std::uint64_t> inputs;
  for (ValueId input : graph.inputs) inputs.push_back(hash_of({}, graph.values[input.index()].name));
  return expressions(graph, inputs);
}

}  // namespace penstock::test
