// SPDX-License-Identifier: Apache-2.0
#include "exported/counting_step.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "base/text.h"
#include "ops/builder.h"
#include "ops/inline_graph.h"
#include "penstock/error.h"
#include "penstock/ops.h"
#include "penstock/step.h"

namespace penstock {
namespace {

// Whether a value of a graph of counts is a sum of the whole step.
bool is_sum(const Value& value) {
  return value.name.starts_with("sum.");
}

using Inputs = std::vector<std::pair<std::string, TensorType>>;

// The inputs that a step's counts and divisors read, by name.
class CountPorts {
 public:
  explicit CountPorts(const std::vector<const ExportedModel*>& microbatches) {
    for (std::size_t j = 0; j < microbatches.size(); ++j) {
      const JointStep& step = microbatches[j]->step();
      for (const DataPort& port : microbatches[j]->own_data())
        if (!port.whole) cut_.push_back(port.name);
      for (const Graph& counts : step.counts)
        for (ValueId input : counts.inputs)
          if (!is_sum(counts.values[input])) declare(counts.values[input], j);
    }
    const Graph& divisors = microbatches[0]->step().divisors;
    for (ValueId input : divisors.inputs)
      if (!is_sum(divisors.values[input])) declare(divisors.values[input], 0);
  }

  // First those that are cut, so many.
  Inputs inputs() const {
    Inputs out = split_;
    out.insert(out.end(), whole_.begin(), whole_.end());
    return out;
  }
  std::size_t cut() const { return split_.size(); }
  std::string port(const std::string& name, std::size_t microbatch) const { return is_cut(name) ? concat(name, ".", microbatch) : name; }

 private:
  bool is_cut(const std::string& name) const { return std::ranges::find(cut_, name) != cut_.end(); }
  void declare(const Value& value, std::size_t microbatch) {
    const std::string name = port(value.name, microbatch);
    Inputs& of = is_cut(value.name) ? split_ : whole_;
    if (std::ranges::find(of, name, &Inputs::value_type::first) == of.end()) of.emplace_back(name, value.type);
  }

  std::vector<std::string> cut_;
  Inputs split_, whole_;
};

std::vector<Tensor> operands_of(const Graph& graph, const std::map<std::string, Tensor>& tensors, const CountPorts& ports,
                                std::size_t microbatch) {
  std::vector<Tensor> out;
  for (ValueId input : graph.inputs) out.push_back(tensors.at(ports.port(graph.values[input].name, microbatch)));
  return out;
}

// The sums of the micro-batches, of which `given` are the inputs by name; a mean is that over all samples.
std::vector<Tensor> sums_of(const std::vector<const ExportedModel*>& microbatches, std::map<std::string, Tensor> given,
                            const CountPorts& ports, Builder& builder, double samples) {
  const JointStep& first = microbatches[0]->step();
  std::vector<Tensor> sums;
  for (std::size_t level = 0; level < first.counts.size(); ++level) {
    std::vector<std::vector<Tensor>> counted(first.counts[level].outputs.size());
    for (std::size_t j = 0; j < microbatches.size(); ++j) {
      const Graph& counts = microbatches[j]->step().counts.at(level);
      const std::vector<Tensor> found = inline_graph(builder, counts, operands_of(counts, given, ports, j));
      for (std::size_t i = 0; i < found.size(); ++i) {
        const bool mean = first.means[sums.size() + i];
        counted[i].push_back(mean ? found[i] * (static_cast<double>(microbatches[j]->samples()) / samples) : found[i]);
      }
    }
    for (const std::vector<Tensor>& each : counted) {
      sums.push_back(add_n(each));
      given[concat("sum.", sums.size() - 1)] = sums.back();
    }
  }
  return sums;
}

}  // namespace

Graph counting_step(const std::vector<const ExportedModel*>& microbatches) {
  const JointStep& first = microbatches.at(0)->step();
  if (first.divisors.outputs.empty()) throw Error("the loss divides by nothing that the data says");
  const CountPorts ports(microbatches);
  const Inputs inputs = ports.inputs();
  double samples = 0;
  for (const ExportedModel* model : microbatches) samples += static_cast<double>(model->samples());
  Graph out = trace("counting_step", inputs, [&](const std::vector<Tensor>& given) {
    std::map<std::string, Tensor> tensors;
    for (std::size_t i = 0; i < given.size(); ++i) tensors[inputs[i].first] = given[i];
    const std::vector<Tensor> cut(given.begin(), given.begin() + static_cast<std::ptrdiff_t>(ports.cut()));
    const std::vector<Tensor> sums = accumulate(cut, 1, [&](const std::vector<Tensor>& parts) {
      std::map<std::string, Tensor> here = tensors;
      for (std::size_t i = 0; i < parts.size(); ++i) here[inputs[i].first] = parts[i];
      return sums_of(microbatches, std::move(here), ports, *parts[0].builder(), samples);
    });
    for (std::size_t i = 0; i < sums.size(); ++i) tensors[concat("sum.", i)] = sums[i];
    std::vector<Tensor> divisors = inline_graph(*sums[0].builder(), first.divisors, operands_of(first.divisors, tensors, ports, 0));
    for (std::size_t i = 0; i < divisors.size(); ++i)
      if (first.shares[i] != 0) divisors[i] = divisors[i] * std::pow(samples, -first.shares[i]);
    return divisors;
  });
  for (std::size_t i = 0; i < out.outputs.size(); ++i) out.output_names.push_back(concat("count.", i));
  return out;
}

}  // namespace penstock
