#include "exported/rename_rows.h"
#include "ops/infer.h"

namespace penstock {
namespace {

using Tensors = std::vector<Tensor>;
using Integers = std::vector<std::int64_t>;

Integers dims_of(const NamedCall& call) {
  return attribute_or(call.op, "dim", Integers());
}

// ATen casts first, where another dtype is asked for.
Tensor in_asked_dtype(const NamedCall& call) {
  const Tensor x = call.operand(0);
  return call.op.attributes.contains("dtype") ? cast(x, call.results[0].dtype) : x;
}

template <Tensor (*Reduce)(Tensor, Integers, bool)>
Tensors reduced(const NamedCall& call) {
  return {Reduce(in_asked_dtype(call), dims_of(call), attribute_or(call.op, "keepdim", false))};
}

Tensors summed_up(const NamedCall& call) {
  return {cumsum(in_asked_dtype(call), static_cast<int>(attribute<std::int64_t>(call.op, "dim")))};
}

}  // namespace

std::span<const RenameRow> reduction_rows() {
  static constexpr RenameRow all[] = {
      {"aten::sum", reduced<sum>},       {"aten::sum.dim_IntList", reduced<sum>}, {"aten::mean", reduced<mean>},
      {"aten::mean.dim", reduced<mean>}, {"aten::amax", reduced<amax>},           {"aten::cumsum", summed_up},
  };
  return all;
}

}  // namespace penstock
