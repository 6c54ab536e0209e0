// SPDX-License-Identifier: Apache-2.0
// A kernel is a function that gets one op and the memory of its operands and results, and returns the call to make each time the op runs.
// Everything that can be decided before the first step (attributes, strides, which library) is decided there; the call itself looks nothing
// up.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <string_view>

#include "ops/definition.h"
#include "penstock/graph.h"

namespace penstock {

// The call for one op at one place in memory; empty where there is nothing to do.
using Bound = std::function<void()>;

class Faults;  // torch/faults.h

struct Site {
  const Graph& graph;
  const Op& op;
  std::span<const at::Tensor> operands;
  // Memory to write: dense, or of any strides where writes_strided(op) (libtorch's out variants do not all keep to theirs).
  std::span<const at::Tensor> results;
  unsigned accumulate = 0;   // bit i: add to result i; set only where Kernel::accumulates allows it
  Faults* faults = nullptr;  // of a device that the host does not look at; null on the host, whose kernels throw
};

struct Kernel {
  std::string_view name;                 // the op's name
  Bound (*bind)(const Site&) = nullptr;  // for a view op it copies what the view would show
  // The same for memory that the host cannot read; null: `bind` serves all devices.
  Bound (*bind_device)(const Site&) = nullptr;
  // Binds a half of an optimiser's op (ops/optimiser.h) there, empty where it does not take the operands; null: it is put together.
  Bound (*bind_half)(const Site&) = nullptr;
  unsigned accumulates = 0;  // bit i: can add to result i
  bool widens = false;       // whether a bf16 result may be written, or added, to f32 memory without being rounded
  // For view ops: result i as a view of operand 0; undefined where only a copy will do.
  at::Tensor (*view)(const Op&, const TensorType& result, const at::Tensor& operand, std::size_t i) = nullptr;
  // The inverse: the operand of which `result` is a view; undefined where the op shows only a part of it.
  at::Tensor (*unview)(const Op&, const TensorType& operand, const at::Tensor& result) = nullptr;
};

// The kernel of an op; null where it runs by name through the dispatcher.
const Kernel* find_kernel(std::string_view name);

// The families of kernels. Each function returns a static table.
std::span<const Kernel> elementwise_kernels();
std::span<const Kernel> activation_kernels();
std::span<const Kernel> reduction_kernels();
std::span<const Kernel> shape_kernels();
std::span<const Kernel> product_kernels();
std::span<const Kernel> convolution_kernels();
std::span<const Kernel> normalisation_kernels();
std::span<const Kernel> attention_kernels();
std::span<const Kernel> embedding_kernels();
std::span<const Kernel> loss_kernels();
std::span<const Kernel> random_kernels();
std::span<const Kernel> optimiser_kernels();

// Binds an op by its name in libtorch's dispatcher, boxed: one that Penstock does not know ("aten::renorm"), or one of ours without a
// kernel
// ("gather", "pow.Tensor_Tensor"), whose name is that of ATen's without the namespace and whose attributes are its arguments. Operands are
// the schema's Tensor arguments in order; every other argument is the attribute of its name, or the schema's default. Two attributes say
// more:
//   lists = [n, ..]  lengths of the Tensor[] arguments, in order
//   none = [i, ..]   places (counted over Tensor arguments and list elements) that are absent; the other places take the next operand
// dtype arguments are dtype attributes; device, layout, pin_memory and generator take their defaults. Throws Error where the dispatcher has
// no such op, an argument has neither attribute nor default, or a result has another type than the graph declares (the call does, where the
// operator cannot tell before).
Bound bind_by_name(const Site& site);

// A user's own op (OpDefinition::compute), on dense copies of operands that are not dense.
Bound bind_own(const Site& site, OpFunction compute);

at::ScalarType scalar_type(DType dtype);
// A dense tensor over memory of the device that somebody else owns.
at::Tensor tensor_at(std::byte* memory, const TensorType& type, c10::Device device = c10::DeviceType::CPU);

}  // namespace penstock
