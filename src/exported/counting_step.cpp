#include "exported/counting_step.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "base/text.h"
#include "exported/inline_graph.h"
#include "ops/builder.h"
#include "penstock/error.h"
#include "penstock/ops.h"
#include "penstock/step.h"

namespace penstock {
namespace {

using Inputs = std::vector<std::pair<std::string, TensorType>>;

// What a step's counts and divisors read, by name.
class CountPorts {
 public:
  explicit CountPorts(const std::vector<const ExportedModel*>& microbatches) {
    for (std::size_t j = 0; j < microbatches.size(); ++j) {
      const JointStep& step = microbatches[j]->step();
      for (const DataPort& port : microbatches[j]->own_data())
        if (!port.whole) cut_.push_back(port.name);
      for (ValueId input : step.counts.inputs) declare(step.counts.values[input], j);
    }
    const Graph& divisors = microbatches[0]->step().divisors;
    for (ValueId input : divisors.inputs)
      if (!divisors.values[input].name.starts_with("sum.")) declare(divisors.values[input], 0);
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

}  // namespace

Graph counting_step(const std::vector<const ExportedModel*>& microbatches) {
  const JointStep& first = microbatches.at(0)->step();
  if (first.divisors.outputs.empty()) throw Error("the loss divides by nothing that the data says");
  const CountPorts ports(microbatches);
  const Inputs inputs = ports.inputs();
  Graph out = trace("counting_step", inputs, [&](const std::vector<Tensor>& given) {
    std::map<std::string, Tensor> tensors;
    for (std::size_t i = 0; i < given.size(); ++i) tensors[inputs[i].first] = given[i];
    const std::vector<Tensor> cut(given.begin(), given.begin() + static_cast<std::ptrdiff_t>(ports.cut()));
    const std::vector<Tensor> sums = accumulate(cut, 1, [&](const std::vector<Tensor>& parts) {
      std::map<std::string, Tensor> here = tensors;
      for (std::size_t i = 0; i < parts.size(); ++i) here[inputs[i].first] = parts[i];
      std::vector<std::vector<Tensor>> counted(first.counts.outputs.size());
      for (std::size_t j = 0; j < microbatches.size(); ++j) {
        const Graph& counts = microbatches[j]->step().counts;
        const std::vector<Tensor> found = inline_graph(*parts[0].builder(), counts, operands_of(counts, here, ports, j));
        for (std::size_t i = 0; i < found.size(); ++i) counted[i].push_back(found[i]);
      }
      std::vector<Tensor> added;
      for (const std::vector<Tensor>& each : counted) added.push_back(add_n(each));
      return added;
    });
    for (std::size_t i = 0; i < sums.size(); ++i) tensors[concat("sum.", i)] = sums[i];
    std::int64_t samples = 0;
    for (const ExportedModel* model : microbatches) samples += model->samples();
    std::vector<Tensor> divisors = inline_graph(*sums[0].builder(), first.divisors, operands_of(first.divisors, tensors, ports, 0));
    for (Tensor& divisor : divisors) divisor = divisor * (1.0 / static_cast<double>(samples));
    return divisors;
  });
  for (std::size_t i = 0; i < out.outputs.size(); ++i) out.output_names.push_back(concat("count.", i));
  return out;
}

}  // namespace penstock
