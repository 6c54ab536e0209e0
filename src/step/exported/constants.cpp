// SPDX-License-Identifier: Apache-2.0
#include "exported/constants.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "ops/infer.h"

namespace penstock {
namespace {

using Operands = std::vector<const ConstantTensor*>;
using Result = std::optional<ConstantTensor>;

constexpr std::int64_t kMost = std::int64_t{1} << 24;

std::int64_t count(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

// Fills a tensor with f(index) of each index; nothing where a value has more than 32 bits.
template <class F>
Result fill(const Shape& shape, F f) {
  ConstantTensor out{shape, {}};
  out.values.reserve(static_cast<std::size_t>(count(shape)));
  const bool fits = for_each_index(shape, [&](const Integers& index) {
    const std::int64_t value = f(index);
    out.values.push_back(static_cast<std::int32_t>(value));
    return value == out.values.back();
  });
  return fits ? Result(std::move(out)) : std::nullopt;
}

using Function = std::int64_t (*)(std::int64_t, std::int64_t);

// The function that an op is of two numbers; null for other ops.
Function function_of(std::string_view name) {
  static const std::map<std::string_view, Function> functions = {
      {"add", [](std::int64_t a, std::int64_t b) { return a + b; }},
      {"sub", [](std::int64_t a, std::int64_t b) { return a - b; }},
      {"mul", [](std::int64_t a, std::int64_t b) { return a * b; }},
      {"maximum", [](std::int64_t a, std::int64_t b) { return std::max(a, b); }},
      {"minimum", [](std::int64_t a, std::int64_t b) { return std::min(a, b); }},
      {"eq", [](std::int64_t a, std::int64_t b) { return std::int64_t{a == b}; }},
      {"ne", [](std::int64_t a, std::int64_t b) { return std::int64_t{a != b}; }},
      {"lt", [](std::int64_t a, std::int64_t b) { return std::int64_t{a < b}; }},
      {"le", [](std::int64_t a, std::int64_t b) { return std::int64_t{a <= b}; }},
      {"gt", [](std::int64_t a, std::int64_t b) { return std::int64_t{a > b}; }},
      {"ge", [](std::int64_t a, std::int64_t b) { return std::int64_t{a >= b}; }},
      {"logical_and", [](std::int64_t a, std::int64_t b) { return a & b; }},
      {"logical_or", [](std::int64_t a, std::int64_t b) { return a | b; }},
  };
  const auto found = functions.find(name);
  return found == functions.end() ? nullptr : found->second;
}

// An op of two operands, or of one and the number "other".
Result of_pair(const Op& op, Function f, const Operands& operands, const Shape& shape) {
  if (operands.size() == 2) return fill(shape, [&](const Integers& i) { return f(element(*operands[0], i), element(*operands[1], i)); });
  const double number = number_attribute(op, "other");
  const auto whole = static_cast<std::int64_t>(number);
  if (static_cast<double>(whole) != number) return std::nullopt;
  return fill(shape, [&](const Integers& i) { return f(element(*operands[0], i), whole); });
}

Result reordered(const Op& op, const ConstantTensor& x, const Shape& shape) {
  Integers dims(shape.size());
  std::iota(dims.begin(), dims.end(), 0);
  if (op.name == "transpose")
    std::swap(dims[static_cast<std::size_t>(attribute<std::int64_t>(op, "dim0"))],
              dims[static_cast<std::size_t>(attribute<std::int64_t>(op, "dim1"))]);
  else
    dims = attribute<Integers>(op, "dims");
  Integers from(shape.size());
  return fill(shape, [&](const Integers& i) {
    for (std::size_t d = 0; d < i.size(); ++d) from[static_cast<std::size_t>(dims[d])] = i[d];
    return element(x, from);
  });
}

Result sliced(const Op& op, const ConstantTensor& x, const Shape& shape) {
  const auto dim = static_cast<std::size_t>(attribute<std::int64_t>(op, "dim"));
  const std::int64_t start = wrap(attribute<std::int64_t>(op, "start"), x.shape[dim]), step = attribute<std::int64_t>(op, "step");
  Integers from;
  return fill(shape, [&](const Integers& i) {
    from = i;
    from[dim] = start + i[dim] * step;
    return element(x, from);
  });
}

Result selected(const Op& op, const ConstantTensor& x, const Shape& shape) {
  const auto dim = static_cast<std::size_t>(attribute<std::int64_t>(op, "dim"));
  const std::int64_t index = wrap(attribute<std::int64_t>(op, "index"), x.shape[dim]);
  return fill(shape, [&](Integers i) {
    i.insert(i.begin() + static_cast<std::ptrdiff_t>(dim), index);
    return element(x, i);
  });
}

Result joined(const Op& op, const Operands& parts, const Shape& shape) {
  const auto dim = static_cast<std::size_t>(attribute<std::int64_t>(op, "dim"));
  return fill(shape, [&](Integers i) {
    std::size_t p = 0;
    for (; i[dim] >= parts[p]->shape[dim]; ++p) i[dim] -= parts[p]->shape[dim];
    return element(*parts[p], i);
  });
}

Result summed_up(const Op& op, const ConstantTensor& x) {
  ConstantTensor out = x;
  const auto dim = static_cast<std::size_t>(attribute<std::int64_t>(op, "dim"));
  const std::int64_t inner = count({x.shape.begin() + static_cast<std::ptrdiff_t>(dim) + 1, x.shape.end()});
  for (std::int64_t e = 0; e < std::ssize(out.values); ++e)
    if (e / inner % x.shape[dim] > 0) out.values[static_cast<std::size_t>(e)] += out.values[static_cast<std::size_t>(e - inner)];
  return out;
}

// x[indices...], where the indices are tensors that broadcast and stand for the leading dims of x.
Result indexed(const Op& op, const Operands& operands, const Shape& shape) {
  if (op.attributes.contains("none")) return std::nullopt;
  const ConstantTensor& x = *operands[0];
  if (operands.size() > x.shape.size() + 1 || shape.size() + operands.size() - 1 < x.shape.size()) return std::nullopt;
  const std::size_t rank = shape.size() + operands.size() - 1 - x.shape.size();  // of what the indices broadcast to
  const Shape place(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(rank));
  for (std::size_t k = 1; k < operands.size(); ++k) {
    const auto is_inside = [&](std::int64_t index) { return index >= -x.shape[k - 1] && index < x.shape[k - 1]; };
    if (!broadcasts(*operands[k], place) || !std::ranges::all_of(operands[k]->values, is_inside)) return std::nullopt;
  }
  if (!std::equal(shape.begin() + static_cast<std::ptrdiff_t>(rank), shape.end(),
                  x.shape.end() - std::ssize(shape) + static_cast<std::ptrdiff_t>(rank)))
    return std::nullopt;
  return fill(shape, [&](const Integers& i) {
    const Integers at(i.begin(), i.begin() + static_cast<std::ptrdiff_t>(rank));
    Integers from;
    for (std::size_t k = 1; k < operands.size(); ++k) from.push_back(wrap(element(*operands[k], at), x.shape[k - 1]));
    from.insert(from.end(), i.begin() + static_cast<std::ptrdiff_t>(rank), i.end());
    return element(x, from);
  });
}

Result constant(const Op& op, const Shape& shape) {
  if (op.name == "arange") return fill(shape, [](const Integers& i) { return i[0]; });
  if (op.name != "full") return std::nullopt;
  const auto value = static_cast<std::int64_t>(number_attribute(op, "fill_value"));
  return fill(shape, [&](const Integers&) { return value; });
}

Result value_of_op(const Op& op, const Operands& operands, const Shape& shape) {
  if (operands.empty()) return constant(op, shape);
  const ConstantTensor& x = *operands[0];
  if (const Function f = function_of(op.name)) return of_pair(op, f, operands, shape);
  if (op.name == "reshape" || op.name == "unsqueeze" || op.name == "squeeze") return ConstantTensor{shape, x.values};
  if (op.name == "to" || op.name == "expand") return fill(shape, [&](const Integers& i) { return element(x, i); });
  if (op.name == "logical_not") return fill(shape, [&](const Integers& i) { return std::int64_t{element(x, i) == 0}; });
  if (op.name == "where") return fill(shape, [&](const Integers& i) { return element(*operands[element(x, i) != 0 ? 1 : 2], i); });
  if (op.name == "transpose" || op.name == "permute") return reordered(op, x, shape);
  if (op.name == "slice") return sliced(op, x, shape);
  if (op.name == "select") return selected(op, x, shape);
  if (op.name == "cat") return joined(op, operands, shape);
  if (op.name == "cumsum") return summed_up(op, x);
  if (op.name == "aten::index.Tensor") return indexed(op, operands, shape);
  return std::nullopt;
}

// The keys that this mask keeps.
Kept kept_of(const ConstantTensor& mask) {
  bool all = true, causal = mask.shape.size() >= 2 && mask.shape[mask.shape.size() - 2] == mask.shape.back();
  for_each_index(mask.shape, [&](const std::vector<std::int64_t>& index) {
    const bool kept = element(mask, index) != 0;
    all = all && kept;
    causal = causal && kept == (index.back() <= index[index.size() - 2]);
    return all || causal;
  });
  return all ? Kept::all : causal ? Kept::causal : Kept::other;
}

}  // namespace

bool broadcasts(const ConstantTensor& x, const Shape& shape) {
  if (x.shape.size() > shape.size()) return false;
  const std::size_t leading = shape.size() - x.shape.size();
  for (std::size_t d = 0; d < x.shape.size(); ++d)
    if (x.shape[d] != 1 && x.shape[d] != shape[leading + d]) return false;
  return true;
}

std::int64_t element(const ConstantTensor& x, const Integers& index) {
  std::int64_t place = 0;
  const std::size_t leading = index.size() - x.shape.size();
  for (std::size_t d = 0; d < x.shape.size(); ++d) place = place * x.shape[d] + (x.shape[d] == 1 ? 0 : index[leading + d]);
  return x.values[static_cast<std::size_t>(place)];
}

Result Constants::compute(Tensor x) {
  const Op* producer = x.builder()->producer(ValueId(x.value()));
  if (!producer || producer->results.size() != 1 || is_floating(x.dtype()) || x.type().elements() > kMost) return std::nullopt;
  const Op op = *producer;
  Operands operands;
  for (ValueId operand : op.operands) {
    operands.push_back(value_of({x.builder(), operand.value}));
    if (!operands.back()) return std::nullopt;
  }
  // Truth values as indices choose elements, and a cast to bool is no move of elements.
  const auto is_truth = [&](ValueId operand) { return x.builder()->graph.type(operand).dtype == DType::boolean; };
  if (op.name == "aten::index.Tensor" && std::any_of(op.operands.begin() + 1, op.operands.end(), is_truth)) return std::nullopt;
  if (op.name == "to" && x.dtype() == DType::boolean) {
    ConstantTensor truth = *operands[0];
    for (std::int32_t& value : truth.values) value = value != 0;
    return truth;
  }
  return value_of_op(op, operands, x.shape());
}

const ConstantTensor* Constants::value_of(Tensor x) {
  if (!x) return nullptr;
  auto found = known_.find(x.value());
  if (found == known_.end()) found = known_.emplace(x.value(), compute(x)).first;
  return found->second ? &*found->second : nullptr;
}

Kept Constants::kept_by(Tensor mask) {
  const auto found = kept_.find(mask.value());
  if (found != kept_.end()) return found->second;
  const ConstantTensor* value = value_of(mask);
  return kept_[mask.value()] = value ? kept_of(*value) : Kept::other;
}

}  // namespace penstock
