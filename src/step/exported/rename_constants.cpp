// SPDX-License-Identifier: Apache-2.0
#include "exported/rename_rows.h"
#include "ops/infer.h"

namespace penstock {
namespace {

Tensors constant(const NamedCall& call, double value) {
  const TensorType& type = call.results[0];
  return {emit_constant(call.builder, "full", {{"size", type.shape}, {"fill_value", value}, {"dtype", type.dtype}})};
}

template <int Value>
Tensors all_of(const NamedCall& call) {
  return constant(call, Value);
}

// A constant whose value is the attribute of this name, a number or a truth value.
template <TextArgument Name>
Tensors with_value(const NamedCall& call) {
  const auto found = call.op.attributes.find(Name.text);
  const bool* flag = found == call.op.attributes.end() ? nullptr : std::get_if<bool>(&found->second);
  return constant(call, flag ? static_cast<double>(*flag) : number_attribute(call.op, Name.text));
}

// start, start + step, ..., without `end`; of whole numbers only.
Tensors counted(const NamedCall& call) {
  const TensorType& type = call.results[0];
  const std::int64_t start = attribute_or(call.op, "start", std::int64_t{0}), step = attribute_or(call.op, "step", std::int64_t{1});
  const std::int64_t end = attribute<std::int64_t>(call.op, "end");
  if (step < 1 || type.shape != Shape{end <= start ? 0 : (end - start - 1) / step + 1}) return {};
  Tensor out = emit_constant(call.builder, "arange", {{"end", type.shape[0]}, {"dtype", type.dtype}});
  if (step != 1) out = out * static_cast<double>(step);
  if (start != 0) out = out + static_cast<double>(start);
  return {out};
}

}  // namespace

std::span<const RenameRow> constant_rows() {
  static constexpr RenameRow all[] = {
      {"aten::zeros", all_of<0>},
      {"aten::zeros_like", all_of<0>},
      {"aten::new_zeros", all_of<0>},
      // A tensor without values yet may have any.
      {"aten::empty.memory_format", all_of<0>},
      {"aten::empty_like", all_of<0>},
      {"aten::new_empty", all_of<0>},
      {"aten::ones", all_of<1>},
      {"aten::ones_like", all_of<1>},
      {"aten::new_ones", all_of<1>},
      {"aten::full", with_value<"fill_value">},
      {"aten::full_like", with_value<"fill_value">},
      {"aten::new_full", with_value<"fill_value">},
      {"aten::scalar_tensor", with_value<"s">},
      {"aten::arange", counted},
      {"aten::arange.start", counted},
      {"aten::arange.start_step", counted},
  };
  return all;
}

}  // namespace penstock
