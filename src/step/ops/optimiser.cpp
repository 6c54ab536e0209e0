// SPDX-License-Identifier: Apache-2.0
#include "ops/optimiser.h"

#include <algorithm>

#include "base/text.h"
#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"
#include "penstock/error.h"

namespace penstock {
namespace {

void require_numbers(const Op& op, std::initializer_list<std::string_view> names) {
  for (std::string_view name : names) number_attribute(op, name);
}

// Checks the operands of an update: parameter, gradient and `moments` more, all of one floating type, then the learning rate.
void require_update(const Op& op, Types operands, std::size_t moments) {
  require_floating(op, operands);
  for (const TensorType& type : operands.first(2 + moments))
    require(type == operands[0], op, operands, "parameter, gradient and moments must have one type");
  const TensorType& rate = operands[2 + moments];
  require(is_floating(rate.dtype) && rate.shape.empty(), op, operands, "the learning rate must be a floating scalar");
}

// (parameter, gradient, first, second, learning_rate, step) -> (parameter, first, second)
std::vector<TensorType> infer_adamw(const Op& op, Types operands) {
  require_count(op, operands, 6, 6);
  require_update(op, operands, 2);
  require(operands[5] == TensorType{DType::i64, {}}, op, operands, "the step must be an i64 scalar");
  require_numbers(op, {"beta1", "beta2", "eps", "weight_decay"});
  return {operands[0], operands[0], operands[0]};
}

// Where the operands of a half stand, by their number. Both halves have `tensors` results; ahead of the update's own operands the second
// has those of the first, and behind them is assumed, and the factor.
struct HalfOperands {
  std::size_t begin, count;  // the update's
  std::size_t tensors;       // the parameter and what is kept
};

const OpDefinition& updating(const Op& half) {
  const std::string& name = attribute<std::string>(half, "update");
  const OpDefinition* definition = find_op(name);
  if (!definition || !definition->update) throw Error(concat(half.name, ": ", quote(name), " is no optimiser's op"));
  return *definition;
}

HalfOperands operands_in(const Op& half, std::size_t operands) {
  const auto scalars = static_cast<std::size_t>(updating(half).update->scalars);
  const bool is_second = is_update_validated(half);
  const std::size_t others = scalars + (is_second ? 3 : 2);  // and the gradient
  const std::size_t tensors = operands < others ? 0 : (operands - others) / (is_second ? 2 : 1);
  return {is_second ? tensors : 0, tensors + 1 + scalars, tensors};
}

Op without_results(const Op& half) {
  Op out = half;
  out.name = attribute<std::string>(half, "update");
  out.attributes.erase("update");
  out.results.clear();
  return out;
}

void require_factor(const Op& op, Types operands, std::size_t index) {
  require(operands[0].dtype == DType::f32 || operands[0].dtype == DType::f64, op, operands, "what is kept must be f32 or f64");
  require(operands[index] == TensorType{operands[0].dtype, {}}, op, operands, "a factor must be a scalar of the parameter's type");
}

// (the update's operands, assumed) -> (its results, what they were)
std::vector<TensorType> infer_ahead(const Op& op, Types operands) {
  const HalfOperands in = operands_in(op, operands.size());
  require(in.tensors > 1 && operands.size() == in.count + 1, op, operands, "it takes the operands of its update, and a factor");
  std::vector<TensorType> types = updating(op).infer(without_results(op), operands.first(in.count));
  require_factor(op, operands, in.count);
  for (std::size_t i = 0; i < in.tensors; ++i) types.push_back(TensorType(types[i]));
  return types;
}

// (the results ahead, the update's operands with what was there before, assumed, factor) -> (the update's results)
std::vector<TensorType> infer_validated(const Op& op, Types operands) {
  const HalfOperands in = operands_in(op, operands.size());
  require(in.tensors > 1 && operands.size() == in.begin + in.count + 2, op, operands,
          "it takes what its update made, the operands of that, and two factors");
  std::vector<TensorType> types = updating(op).infer(without_results(op), operands.subspan(in.begin, in.count));
  for (std::size_t i = 0; i < in.tensors; ++i)
    require(operands[i] == types[i], op, operands, "the update must have the kept parameter's type");
  require_factor(op, operands, in.begin + in.count);
  require_factor(op, operands, in.begin + in.count + 1);
  return types;
}

// (parameter, gradient, velocity, learning_rate) -> (parameter, velocity)
std::vector<TensorType> infer_sgd(const Op& op, Types operands) {
  require_count(op, operands, 4, 4);
  require_update(op, operands, 1);
  require_numbers(op, {"momentum", "weight_decay"});
  return {operands[0], operands[0]};
}

// Checks the operands of a prediction: parameter and `moments` more, all of one floating type, then the learning rate.
void require_prediction(const Op& op, Types operands, std::size_t moments) {
  require_floating(op, operands);
  for (const TensorType& type : operands.first(1 + moments))
    require(type == operands[0], op, operands, "parameter and moments must have one type");
  require(is_floating(operands[1 + moments].dtype) && operands[1 + moments].shape.empty(), op, operands,
          "the learning rate must be a floating scalar");
  require(attribute<std::int64_t>(op, "ahead") > 0, op, operands, "it must be ahead by at least 1");
}

// (parameter, velocity, learning_rate) -> parameter, `ahead` updates later if the velocity stays
std::vector<TensorType> infer_predict_sgd(const Op& op, Types operands) {
  require_count(op, operands, 3, 3);
  require_prediction(op, operands, 1);
  return {operands[0]};
}

// (parameter, first, second, learning_rate, step) -> parameter; step: the number of the update to come, from 1
std::vector<TensorType> infer_predict_adamw(const Op& op, Types operands) {
  require_count(op, operands, 5, 5);
  require_prediction(op, operands, 2);
  require(operands[4] == TensorType{DType::i64, {}}, op, operands, "the step must be an i64 scalar");
  require_numbers(op, {"beta1", "beta2", "eps"});
  return {operands[0]};
}

double flops_ahead(const Op& op, Types operands, Types results) {
  return updating(op).flops(without_results(op), operands, results);
}

// Bytes: as a rule the update stands, and validating it touches no element.
double no_bytes(const Op&, Types, Types) {
  return 0;
}

Op predict_adamw(const Op& update, std::int64_t ahead) {
  const std::vector<ValueId>& in = update.operands;
  Op out;
  out.name = "predict_adamw";
  out.operands = {in[0], in[2], in[3], in[4], in[5]};
  out.attributes["ahead"] = ahead;
  for (const char* name : {"beta1", "beta2", "eps"}) out.attributes[name] = update.attributes.at(name);
  return out;
}

Op predict_sgd(const Op& update, std::int64_t ahead) {
  Op out;
  out.name = "predict_sgd";
  out.operands = {update.operands[0], update.operands[2], update.operands[3]};
  out.attributes["ahead"] = ahead;
  return out;
}

constexpr UpdateRules kAdamW{.scalars = 2, .predict = predict_adamw};
constexpr UpdateRules kSgd{.momentum = "momentum", .by_rows = "sgd_rows", .predict = predict_sgd};

const UpdateRules& rules_of(const Op& op) {
  static constexpr UpdateRules none;
  const OpDefinition* definition = find_op(op.name);
  return definition && definition->update ? *definition->update : none;
}

}  // namespace

std::span<const OpDefinition> optimiser_ops() {
  static constexpr OpDefinition all[] = {
      {.name = "adamw", .infer = infer_adamw, .flops = flops_by_operand<15>, .elementwise = true, .layout = all_dims, .update = &kAdamW},
      {.name = "predict_adamw", .infer = infer_predict_adamw, .flops = flops_by_operand<6>, .elementwise = true, .layout = all_dims},
      {.name = "predict_sgd", .infer = infer_predict_sgd, .flops = flops_by_operand<6>, .elementwise = true, .layout = all_dims},
      {.name = "sgd", .infer = infer_sgd, .flops = flops_by_operand<6>, .elementwise = true, .layout = all_dims, .update = &kSgd},
      {.name = "update_ahead", .infer = infer_ahead, .flops = flops_ahead, .elementwise = true, .layout = all_dims},
      {.name = "update_validated",
       .infer = infer_validated,
       .flops = flops_none,
       .bytes = no_bytes,
       .elementwise = true,
       .revises = true,
       .layout = all_dims},
  };
  return all;
}

AdamWState adamw(const AdamWState& now, Tensor gradient, Tensor learning_rate, Tensor step, const ParameterGroup& numbers) {
  const Tensor operands[] = {now.parameter, gradient, now.first, now.second, learning_rate, step};
  const std::vector<Tensor> out =
      emit_all("adamw", operands,
               {{"beta1", numbers.beta1}, {"beta2", numbers.beta2}, {"eps", numbers.eps}, {"weight_decay", numbers.weight_decay}});
  return {out[0], out[1], out[2]};
}

SgdState sgd(const SgdState& now, Tensor gradient, Tensor learning_rate, const ParameterGroup& numbers) {
  const Tensor operands[] = {now.parameter, gradient, now.velocity, learning_rate};
  const std::vector<Tensor> out = emit_all("sgd", operands, {{"momentum", numbers.momentum}, {"weight_decay", numbers.weight_decay}});
  return {out[0], out[1]};
}

bool is_update(const Op& op) {
  const OpDefinition* definition = find_op(op.name);
  return definition && definition->update;
}

bool forgets(const Op& update) {
  const std::string_view momentum = rules_of(update).momentum;
  return !momentum.empty() && attribute<double>(update, momentum) == 0;
}

std::optional<Op> update_of_rows(const Op& update, ValueId indices) {
  const UpdateRules& rules = rules_of(update);
  if (rules.by_rows.empty() || !forgets(update) || attribute<double>(update, "weight_decay") != 0) return std::nullopt;
  Op out = update;
  out.name = rules.by_rows;
  out.operands = {update.operands[0], update.operands[1], indices, update.operands[3]};
  out.results.resize(1);
  out.attributes.clear();
  return out;
}

std::string moves_rows(const Op& update) {
  const UpdateRules& rules = rules_of(update);
  if (!rules.by_rows.empty())
    for (const std::string_view name : {rules.momentum, std::string_view("weight_decay")})
      if (const auto value = attribute<double>(update, name); value != 0) return concat("with ", name, " = ", number(value));
  return concat("by ", quote(update.name));
}

ValueId indices_of_rows(const Op& update) {
  const int indices = rules_of(update).indices;
  return indices < 0 ? ValueId() : update.operands[static_cast<std::size_t>(indices)];
}

std::optional<Op> prediction_of(const Op& update, std::int64_t ahead) {
  const UpdateRules& rules = rules_of(update);
  return rules.predict ? std::optional(rules.predict(update, ahead)) : std::nullopt;
}

std::vector<Tensor> update_ahead(const UpdateOp& op, Tensor assumed) {
  std::vector<Tensor> operands = op.operands;
  operands.push_back(assumed);
  return emit_all("update_ahead", operands, with(op.attributes, "update", op.name));
}

std::vector<Tensor> update_validated(const UpdateOp& op, const std::vector<Tensor>& ahead, Tensor assumed, Tensor factor) {
  const std::ptrdiff_t tensors = std::ssize(ahead) / 2;
  std::vector<Tensor> operands(ahead.begin(), ahead.begin() + tensors), own = op.operands;
  own[0] = ahead[static_cast<std::size_t>(tensors)];
  std::copy(ahead.begin() + tensors + 1, ahead.end(), own.begin() + 2);
  operands.insert(operands.end(), own.begin(), own.end());
  operands.insert(operands.end(), {assumed, factor});
  return emit_all("update_validated", operands, with(op.attributes, "update", op.name));
}

bool is_update_ahead(const Op& op) {
  return op.name == "update_ahead";
}

bool is_update_validated(const Op& op) {
  return op.name == "update_validated";
}

Op update_in(const Op& half) {
  const HalfOperands in = operands_in(half, half.operands.size());
  Op out = without_results(half);
  const auto begin = half.operands.begin() + static_cast<std::ptrdiff_t>(in.begin);
  out.operands.assign(begin, begin + static_cast<std::ptrdiff_t>(in.count));
  out.results.assign(half.results.begin(), half.results.begin() + static_cast<std::ptrdiff_t>(in.tensors));
  return out;
}

bool validates(const Op& validated, const Op& ahead) {
  if (!is_update_ahead(ahead) || !is_update_validated(validated)) return false;
  const Op again = update_in(validated);
  std::vector<ValueId> taken(validated.operands.begin(), validated.operands.begin() + std::ssize(validated.results));
  taken.push_back(again.operands[0]);
  taken.insert(taken.end(), again.operands.begin() + 2, again.operands.begin() + 1 + std::ssize(validated.results));
  return ahead.results == taken && ahead.operands[1] == again.operands[1];
}

ScaledUpdate as_one_update(const Op& ahead, const Op& validated, ValueId scaled) {
  ScaledUpdate out{{}, update_in(ahead)};
  out.scale.name = "mul";
  out.scale.operands = {ahead.operands[1], validated.operands.back()};
  out.scale.results = {scaled};
  out.scale.sequence = out.update.sequence = validated.sequence;
  out.update.results = validated.results;
  out.update.operands[1] = scaled;
  return out;
}

}  // namespace penstock
