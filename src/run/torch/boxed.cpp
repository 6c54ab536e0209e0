// SPDX-License-Identifier: Apache-2.0
// Runs ops by name through libtorch's dispatcher.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/text.h"
#include "penstock/error.h"
#include "torch/kernel.h"

namespace penstock {
namespace {

c10::OperatorHandle find_operator(const Op& op) {
  const std::string full = op.name.find("::") == std::string::npos ? "aten::" + op.name : op.name;
  const std::size_t overload = full.find('.');
  const c10::OperatorName name(full.substr(0, overload), overload == std::string::npos ? "" : full.substr(overload + 1));
  if (auto handle = c10::Dispatcher::singleton().findSchema(name)) return *handle;
  throw Error(concat("no kernel for op ", quote(op.name)),
              {"Penstock does not define it, and libtorch's dispatcher has no operator of that name"},
              "names are those of the dispatcher, with namespace and overload: aten::add.Tensor");
}

[[noreturn]] void fail(const Op& op, const std::string& what, const c10::FunctionSchema& schema) {
  throw Error(concat("op ", quote(op.name), ": ", what), {concat("schema: ", c10::toString(schema))});
}

// Walks over the schema's tensor arguments: each takes the next operand, except those that are absent.
class TensorArguments {
 public:
  explicit TensorArguments(const Site& site, const c10::FunctionSchema& schema)
      : site_(site),
        schema_(schema),
        none_(attribute_or(site.op, "none", std::vector<std::int64_t>())),
        lists_(attribute_or(site.op, "lists", std::vector<std::int64_t>())) {}

  std::optional<at::Tensor> next() {
    if (std::ranges::find(none_, place_++) != none_.end()) return std::nullopt;
    if (operand_ == site_.operands.size())
      fail(site_.op, concat("it has ", site_.operands.size(), " operands, the schema wants more (absent ones stand in \"none\")"), schema_);
    return site_.operands[operand_++];
  }

  std::int64_t next_length() {
    if (list_ == lists_.size()) fail(site_.op, "the lengths of its tensor lists are missing (attribute \"lists\")", schema_);
    return lists_[list_++];
  }

  void finish() const {
    if (operand_ != site_.operands.size())
      fail(site_.op, concat("it has ", site_.operands.size(), " operands, the schema takes ", operand_), schema_);
  }

 private:
  const Site& site_;
  const c10::FunctionSchema& schema_;
  std::vector<std::int64_t> none_, lists_;
  std::int64_t place_ = 0;
  std::size_t operand_ = 0, list_ = 0;
};

bool is_tensor(const c10::Type& type) {
  return type.kind() == c10::TypeKind::TensorType;
}

// The type inside of Optional[...], or the type itself.
c10::TypePtr without_optional(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::OptionalType ? type->castRaw<c10::OptionalType>()->getElementType() : type;
}

bool is_tensor_list(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::ListType && is_tensor(*without_optional(type->castRaw<c10::ListType>()->getElementType()));
}

c10::IValue tensor_list(const c10::TypePtr& type, TensorArguments& tensors) {
  const std::int64_t length = tensors.next_length();
  if (type->castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::OptionalType) {
    c10::List<std::optional<at::Tensor>> list;
    for (std::int64_t i = 0; i < length; ++i) list.push_back(tensors.next());
    return list;
  }
  c10::List<at::Tensor> list;
  for (std::int64_t i = 0; i < length; ++i) list.push_back(tensors.next().value_or(at::Tensor()));
  return list;
}

// The attribute as the schema's type wants it: an integer widens to a float, a number to a list of one; lists of bools are written as 0 and
// 1.
c10::IValue value_of(const Attribute& attribute, const c10::Type& type) {
  if (const auto* text = std::get_if<std::string>(&attribute)) return *text;
  if (const auto* dtype = std::get_if<DType>(&attribute)) return scalar_type(*dtype);
  if (const auto* flag = std::get_if<bool>(&attribute)) return *flag;
  if (const auto* real = std::get_if<double>(&attribute)) return *real;
  if (const auto* reals = std::get_if<std::vector<double>>(&attribute)) return *reals;
  const bool list = type.kind() == c10::TypeKind::ListType;
  const bool real =
      list ? type.castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::FloatType : type.kind() == c10::TypeKind::FloatType;
  if (const auto* integer = std::get_if<std::int64_t>(&attribute)) {
    if (list) return std::vector<std::int64_t>{*integer};
    return real ? c10::IValue(static_cast<double>(*integer)) : c10::IValue(*integer);
  }
  const auto& integers = std::get<std::vector<std::int64_t>>(attribute);
  if (list && type.castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::BoolType) {
    c10::List<bool> flags;
    for (std::int64_t flag : integers) flags.push_back(flag != 0);
    return flags;
  }
  if (real) return std::vector<double>(integers.begin(), integers.end());
  return integers;
}

std::vector<c10::IValue> arguments_of(const Site& site, const c10::FunctionSchema& schema) {
  std::vector<c10::IValue> stack;
  TensorArguments tensors(site, schema);
  for (const c10::Argument& argument : schema.arguments()) {
    const c10::TypePtr type = without_optional(argument.type());
    if (is_tensor(*type)) {
      std::optional<at::Tensor> tensor = tensors.next();
      stack.push_back(tensor ? c10::IValue(*tensor) : c10::IValue());
    } else if (is_tensor_list(type)) {
      stack.push_back(tensor_list(type, tensors));
    } else if (auto it = site.op.attributes.find(argument.name()); it != site.op.attributes.end()) {
      stack.push_back(value_of(it->second, *type));
    } else if (argument.default_value()) {
      stack.push_back(*argument.default_value());
    } else if (argument.type()->kind() == c10::TypeKind::OptionalType) {
      stack.emplace_back();
    } else {
      fail(site.op, concat("argument ", quote(argument.name()), " has no attribute and no default"), schema);
    }
  }
  tensors.finish();
  return stack;
}

// The tensors that the operator returned, also those in tensor lists. An undefined tensor is no result.
std::vector<at::Tensor> tensors_of(const std::vector<c10::IValue>& stack) {
  std::vector<at::Tensor> out;
  const auto take = [&](const at::Tensor& tensor) {
    if (tensor.defined()) out.push_back(tensor);
  };
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) take(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) take(tensor);
  }
  return out;
}

std::string type_of(const at::Tensor& tensor) {
  std::string dtype = c10::toString(tensor.scalar_type());
  for (const DType known : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32, DType::boolean})
    if (scalar_type(known) == tensor.scalar_type()) dtype = name(known);
  return concat(dtype, "[", join(tensor.sizes(), ",", [](std::int64_t size) { return concat(size); }), "]");
}

// Whether the operator leaves a result empty that its rule for types gives a size, as its sum of bags has no need of it.
bool is_left_empty(const c10::FunctionSchema& schema, const at::Tensor& given) {
  return given.numel() == 0 && schema.name() == "aten::_embedding_bag";
}

// Fills what bags that are summed leave empty: the bag of each index (result 1), which their backward reads and counts from where each bag
// begins (operand 2), and what only other modes have.
void fill_left_empty(const std::vector<c10::IValue>& arguments, std::size_t i, const at::Tensor& result) {
  result.zero_();
  if (i != 1) return;
  const at::Tensor offsets = arguments[2].toTensor(), begins = offsets.masked_select(offsets.lt(result.size(0)));
  result.index_add_(0, begins, at::ones_like(begins)).cumsum_(0).sub_(1);
}

// Checks that an op run by name gives the types that its graph declares: its results' memory is made for these.
void check_types(const Op& op, const c10::FunctionSchema& schema, const std::vector<at::Tensor>& given,
                 const std::vector<at::Tensor>& declared) {
  if (given.size() < declared.size()) fail(op, concat("it gives ", given.size(), " tensors, the graph declares ", declared.size()), schema);
  for (std::size_t i = 0; i < declared.size(); ++i)
    if (!is_left_empty(schema, given[i]) &&
        (given[i].sizes() != declared[i].sizes() || given[i].scalar_type() != declared[i].scalar_type()))
      fail(op, concat("its result ", i, " is ", type_of(given[i]), ", the graph declares ", type_of(declared[i])), schema);
}

// The same argument on the meta device, which has no memory.
c10::IValue on_meta(const c10::IValue& value) {
  const auto tensor_on_meta = [](const at::Tensor& tensor) {
    return tensor.defined() ? at::empty(tensor.sizes(), tensor.options().device(at::kMeta)) : tensor;
  };
  if (value.isTensor()) return tensor_on_meta(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(tensor_on_meta(tensor));
  return list;
}

// The results that the operator would give, found without memory or work; none where only running it can tell.
std::optional<std::vector<at::Tensor>> types_given(const c10::OperatorHandle& handle, const std::vector<c10::IValue>& arguments) {
  std::vector<c10::IValue> stack;
  for (const c10::IValue& argument : arguments) stack.push_back(on_meta(argument));
  try {
    handle.callBoxed(stack);
  } catch (const c10::Error&) {
    return std::nullopt;
  }
  return tensors_of(stack);
}

}  // namespace

Bound bind_by_name(const Site& site) {
  const c10::OperatorHandle handle = find_operator(site.op);
  const c10::FunctionSchema& schema = handle.schema();
  if (schema.is_mutable()) fail(site.op, "it writes to its operands; use its functional form", schema);
  auto arguments = arguments_of(site, schema);
  std::vector<at::Tensor> results(site.results.begin(), site.results.end());
  if (const auto given = types_given(handle, arguments)) check_types(site.op, schema, *given, results);
  return [op = site.op, handle, arguments, results] {
    std::vector<c10::IValue> stack = arguments;
    handle.callBoxed(stack);
    const std::vector<at::Tensor> given = tensors_of(stack);
    check_types(op, handle.schema(), given, results);
    for (std::size_t i = 0; i < results.size(); ++i)
      if (is_left_empty(handle.schema(), given[i]))
        fill_left_empty(arguments, i, results[i]);
      else
        results[i].copy_(given[i]);
  };
}

}  // namespace penstock
