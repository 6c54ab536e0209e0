// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty_like.h>

#include "base/text.h"
#include "penstock/error.h"
#include "torch/kernel.h"

namespace penstock {
namespace {

std::vector<TensorMemory> memory_of(const std::vector<at::Tensor>& tensors, std::span<const ValueId> values, const Graph& graph) {
  std::vector<TensorMemory> out;
  for (std::size_t i = 0; i < tensors.size(); ++i) out.push_back({static_cast<std::byte*>(tensors[i].data_ptr()), graph.type(values[i])});
  return out;
}

// AtTensors may move between calls.
void set_places(const std::vector<at::Tensor>& tensors, std::vector<TensorMemory>& memory) {
  for (std::size_t i = 0; i < tensors.size(); ++i) memory[i].data = static_cast<std::byte*>(tensors[i].data_ptr());
}

}  // namespace

Bound bind_own(const Site& site, OpFunction compute) {
  for (const at::Tensor& result : site.results)
    if (!result.is_cpu())
      throw Error(concat("op ", quote(site.op.name), " is computed by a function of the program's own, which runs on the host only"), {},
                  "--device cpu");
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // to, from
  std::vector<at::Tensor> operands, results(site.results.begin(), site.results.end());
  for (const at::Tensor& operand : site.operands) {
    operands.push_back(operand.is_contiguous() ? operand : at::empty_like(operand, at::MemoryFormat::Contiguous));
    if (!operand.is_contiguous()) copies.emplace_back(operands.back(), operand);
  }
  return [compute, copies, operands, results, op = site.op, from = memory_of(operands, site.op.operands, site.graph),
          to = memory_of(results, site.op.results, site.graph)]() mutable {
    set_places(operands, from);
    set_places(results, to);
    for (const auto& [dense, operand] : copies) dense.copy_(operand);
    compute(op, from, to);
  };
}

}  // namespace penstock
