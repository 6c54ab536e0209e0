// SPDX-License-Identifier: Apache-2.0
#include "torch/sample_graphs.h"

#include <utility>

#include "base/text.h"
#include "torch/run_graph.h"

namespace penstock::test {

std::vector<at::Tensor> inputs_of(const OpCase& c, std::mt19937_64& random) {
  std::vector<at::Tensor> inputs;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const auto& range = c.inputs[i];
    inputs.push_back(random_tensor(random, c.graph.type(c.graph.inputs[i]), range.low, range.high, range.gap));
  }
  return inputs;
}

Graph in_dtype(Graph graph, DType dtype) {
  for (Value& value : graph.values)
    if (value.type.dtype == DType::f64) value.type.dtype = dtype;
  for (Op& op : graph.ops)
    if (auto it = op.attributes.find("dtype"); it != op.attributes.end() && it->second == Attribute(DType::f64)) it->second = dtype;
  return graph;
}

Graph graph_of(const OpSample& sample, bool spread) {
  Graph graph;
  graph.name = "g";
  Op made = sample.op;
  made.operands.clear();
  made.results.clear();
  for (const SampleOperand& operand : sample.operands) {
    TensorType type = operand.type;
    const Shape shape = type.shape;
    if (spread) type.shape.push_back(2);
    ValueId value = graph.add_input(type, concat("x", made.operands.size()));
    const auto view = [&](const char* name, Attributes attributes, const Shape& as) {
      const ValueId result = graph.add_value({type.dtype, as});
      Op& op = graph.ops.emplace_back();
      op.name = name, op.operands = {value}, op.results = {result}, op.attributes = std::move(attributes);
      value = result;
    };
    if (spread) {
      Shape one = shape;
      one.push_back(1);
      view("slice", {{"dim", std::int64_t{-1}}, {"start", std::int64_t{0}}, {"end", std::int64_t{1}}, {"step", std::int64_t{1}}}, one);
      view("reshape", {{"shape", shape}}, shape);
    }
    made.operands.push_back(value);
  }
  for (const TensorType& type : sample.results) made.results.push_back(graph.add_value(type));
  graph.outputs = made.results;
  graph.ops.push_back(std::move(made));
  return graph;
}

}  // namespace penstock::test
