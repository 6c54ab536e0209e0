// SPDX-License-Identifier: Apache-2.0
// Operators of the stand-in: any of ATen's, as work on the current stream that runs the CPU's kernel over the same bytes.
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "standin/memory.h"
#include "standin/streams.h"

namespace penstock::standin {
namespace {

using at::Tensor;
using c10::IValue;
using Values = std::vector<IValue>;

bool is_here(const Tensor& x) {
  return x.defined() && x.device().type() == kType;
}

// The tensor as work on a stream sees it: on the CPU, over the bytes themselves.
Tensor as_host(const Tensor& x) {
  if (!is_here(x)) return x;
  return at::from_blob(memory().bytes_of(x.const_data_ptr()), x.sizes(), x.strides(), at::TensorOptions(x.scalar_type()));
}

Tensor as_meta(const Tensor& x) {
  return is_here(x) ? at::empty_strided(x.sizes(), x.strides(), x.options().device(at::kMeta)) : x;
}

Tensor as_zeros(const Tensor& x) {
  return is_here(x) ? at::empty_strided(x.sizes(), x.strides(), x.options().device(at::kCPU)).zero_() : x;
}

// Returns the new tensor that one of the meta device or of the host stands for.
Tensor made_here(const Tensor& x) {
  return x.defined() ? at::empty_strided(x.sizes(), x.strides(), x.options().device(kType)) : x;
}

// The value with each tensor in it replaced, and with the stand-in replaced by `device`.
template <class F>
IValue mapped(const IValue& value, c10::DeviceType device, const F& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> out;
    for (const Tensor& x : value.toTensorVector()) out.push_back(f(x));
    return out;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> out;
    for (const auto& x : value.toOptionalTensorVector()) out.push_back(x ? std::optional(f(*x)) : std::nullopt);
    return out;
  }
  if (value.isDevice() && value.toDevice().type() == kType) return c10::Device(device);
  return value;
}

template <class F>
Values mapped(const Values& values, c10::DeviceType device, const F& f) {
  Values out;
  for (const IValue& value : values) out.push_back(mapped(value, device, f));
  return out;
}

Values called(const c10::OperatorHandle& op, Values arguments) {
  op.callBoxed(arguments);
  return arguments;
}

// Returns what the operator would return, without data: on the meta device, or, as C++ has not all operators there, of zeros on the host.
// None where the size depends on the data.
std::optional<Values> results_like(const c10::OperatorHandle& op, const Values& arguments) {
  if (op.hasTag(at::Tag::dynamic_output_shape)) return std::nullopt;
  try {
    return called(op, mapped(arguments, c10::DeviceType::Meta, as_meta));
  } catch (const c10::Error&) {
    return called(op, mapped(arguments, c10::DeviceType::CPU, as_zeros));
  }
}

void copy_into(const Values& to, const Values& from) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (to[i].isTensor() && to[i].toTensor().defined()) to[i].toTensor().copy_(from[i].toTensor());
    if (!to[i].isTensorList()) continue;
    const std::vector<Tensor> into = to[i].toTensorVector(), values = from[i].toTensorVector();
    for (std::size_t k = 0; k < into.size(); ++k) into[k].copy_(values[k]);
  }
}

// The arguments that the operator writes to, which are what it returns; none: it returns new tensors.
Values written(const c10::FunctionSchema& schema, const Values& arguments) {
  Values out;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias && alias->isWrite() && out.size() < schema.returns().size()) out.push_back(arguments[i]);
  }
  return out;
}

// An out variant gives results that have no elements yet their size.
void give_sizes(const c10::OperatorHandle& op, const Values& arguments, const Values& results) {
  const auto has_no_elements = [](const IValue& value) { return value.isTensor() && value.toTensor().numel() == 0; };
  if (std::none_of(results.begin(), results.end(), has_no_elements)) return;
  const std::optional<Values> sized = results_like(op, arguments);
  TORCH_CHECK(sized, "stand-in: the size of what ", c10::toString(op.operator_name()), " gives is known only when it has run");
  for (std::size_t i = 0; i < results.size(); ++i)
    if (has_no_elements(results[i])) at::native::resize_(results[i].toTensor(), (*sized)[i].toTensor().sizes());
}

// Runs now, while the host waits: nothing else can say how large what it gives is.
Values run_at_once(const c10::OperatorHandle& op, const Values& arguments) {
  synchronise(current_stream());
  const Values given = called(op, mapped(arguments, c10::DeviceType::CPU, as_host));
  return mapped(given, kType, [](const Tensor& x) {
    const Tensor here = made_here(x);
    if (here.defined()) as_host(here).copy_(x);
    return here;
  });
}

template <class F>
void for_tensors(const IValue& value, const F& f) {
  if (value.isTensor()) f(value.toTensor());
  if (value.isTensorList()) std::ranges::for_each(value.toTensorVector(), f);
  if (value.isOptionalTensorList())
    for (const auto& x : value.toOptionalTensorVector())
      if (x) f(*x);
}

void append_access(const IValue& value, bool writes, std::vector<Access>& out) {
  for_tensors(value, [&](const Tensor& x) {
    if (x.defined() && x.numel() > 0) out.push_back(access_of(x, writes));
  });
}

// The memory of the values' tensors, and not the tensors, so that an allocator's counts are of what the host uses, as CUDA's are.
using Held = std::vector<std::shared_ptr<const void>>;
void hold(const Values& values, Held& out) {
  for (const IValue& value : values)
    for_tensors(value, [&](const Tensor& x) {
      if (is_here(x)) out.push_back(memory().hold(x.storage().data()));
    });
}

Touched touched_by(const c10::FunctionSchema& schema, const Values& arguments, const Values& results) {
  Touched out{schema.name()};
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    append_access(arguments[i], alias && alias->isWrite(), out.bytes);
  }
  for (const IValue& result : results) append_access(result, true, out.bytes);
  return out;
}

void run_any(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const Values arguments = torch::jit::pop(*stack, schema.arguments().size());
  Values results = written(schema, arguments), made;
  if (!results.empty()) {
    give_sizes(op, arguments, results);
  } else if (const std::optional<Values> like = results_like(op, arguments)) {
    results = mapped(*like, kType, made_here);
    made = mapped(results, c10::DeviceType::CPU, as_host);
  } else {
    for (IValue& result : run_at_once(op, arguments)) stack->push_back(std::move(result));
    return;
  }
  // The work holds their memory, so that it is not given to others before it has run.
  Held held;
  hold(arguments, held);
  hold(results, held);
  const Values on_host = mapped(arguments, c10::DeviceType::CPU, as_host);
  enqueue(current_stream(), [op, on_host, made, held] { copy_into(made, called(op, on_host)); }, touched_by(schema, arguments, results));
  for (IValue& result : results) stack->push_back(std::move(result));
}

Tensor empty_memory_format(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                           std::optional<c10::Device>, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  constexpr c10::DispatchKeySet key(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(sizes, &memory(), key, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                     std::optional<c10::Device>, std::optional<bool>) {
  constexpr c10::DispatchKeySet key(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(sizes, strides, &memory(), key, c10::dtype_or_default(dtype));
}

Tensor as_strided(const Tensor& x, c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(x, sizes, strides, offset);
}

Tensor view(const Tensor& x, c10::IntArrayRef sizes) {
  return at::native::view(x, sizes);
}

Tensor reshape_alias(const Tensor& x, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  return at::native::_reshape_alias(x, sizes, strides);
}

// As on a GPU, the host waits where it is an end of the copy, unless it says that it does not; and such a copy is captured only where that
// is pinned.
Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  const auto is_left_to_the_device = [](const Tensor& x) { return is_here(x) || x.numel() == 0 || memory().is_pinned(x.const_data_ptr()); };
  TORCH_CHECK(!is_captured(current_stream()) || (is_left_to_the_device(from) && is_left_to_the_device(to)),
              "stand-in: a captured stream is to copy from or to memory of the host that is not pinned");
  Touched touched{"copy"};
  append_access(from, false, touched.bytes);
  append_access(to, true, touched.bytes);
  Held held;
  hold({from, to}, held);
  enqueue(current_stream(), [source = as_host(from), target = as_host(to), held] { target.copy_(source); }, std::move(touched));
  if ((from.is_cpu() || to.is_cpu()) && !non_blocking) synchronise(current_stream());
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  at::native::resize_(to, from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const Tensor& x) {
  synchronise(current_stream());
  return as_host(x).item();
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty_memory_format);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
  // libtorch would take these apart before it asks for a device's own.
  for (const char* name : {"convolution", "convolution_backward", "native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_any>());
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_any>());
}

}  // namespace penstock::standin
