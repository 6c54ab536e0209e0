#include "ops/optimiser.h"

#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"

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

// Positions among the operands.
constexpr std::size_t kGradient = 1, kAdamW = 6;             // adamw: the gradient's position; the number of operands
constexpr std::size_t kUpdated = 3, kFactor = kUpdated + 7;  // adamw_validated: where adamw's operands begin; the factor's position

// (parameter, gradient, first, second, learning_rate, step) -> (parameter, first, second)
std::vector<TensorType> infer_adamw(const Op& op, Types operands) {
  require_count(op, operands, kAdamW, kAdamW);
  require_update(op, operands, 2);
  require(operands[5] == TensorType{DType::i64, {}}, op, operands, "the step must be an i64 scalar");
  require_numbers(op, {"beta1", "beta2", "eps", "weight_decay"});
  return {operands[0], operands[0], operands[0]};
}

void require_factor(const Op& op, Types operands, std::size_t index) {
  require(operands[0].dtype == DType::f32 || operands[0].dtype == DType::f64, op, operands, "what is kept must be f32 or f64");
  require(operands[index] == TensorType{operands[0].dtype, {}}, op, operands, "a factor must be a scalar of the parameter's type");
}

// (adamw's operands, assumed) -> (parameter, first, second, kept parameter, kept first, kept second)
std::vector<TensorType> infer_adamw_ahead(const Op& op, Types operands) {
  require_count(op, operands, kAdamW + 1, kAdamW + 1);
  infer_adamw(op, operands.first(kAdamW));
  require_factor(op, operands, kAdamW);
  return std::vector<TensorType>(6, operands[0]);
}

// (parameter, first, second, adamw's operands with what was kept, assumed, factor) -> (parameter, first, second)
std::vector<TensorType> infer_adamw_validated(const Op& op, Types operands) {
  require_count(op, operands, kFactor + 1, kFactor + 1);
  std::vector<TensorType> types = infer_adamw(op, operands.subspan(kUpdated, kAdamW));
  for (const TensorType& type : operands.first(kUpdated))
    require(type == types[0], op, operands, "the update must have the kept parameter's type");
  require_factor(op, operands, kFactor - 1);
  require_factor(op, operands, kFactor);
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

double flops_adamw(const Op&, Types operands, Types) {
  return 15 * static_cast<double>(operands[0].elements());
}

// Bytes: as a rule the update stands, and validating it touches no element.
double no_bytes(const Op&, Types, Types) {
  return 0;
}

double flops_sgd(const Op&, Types operands, Types) {
  return 6 * static_cast<double>(operands[0].elements());
}

}  // namespace

std::span<const OpDefinition> optimiser_ops() {
  static constexpr OpDefinition all[] = {
      {.name = "adamw", .infer = infer_adamw, .flops = flops_adamw, .elementwise = true, .layout = all_dims},
      {.name = "adamw_ahead", .infer = infer_adamw_ahead, .flops = flops_adamw, .elementwise = true, .layout = all_dims},
      {.name = "adamw_validated",
       .infer = infer_adamw_validated,
       .flops = flops_none,
       .bytes = no_bytes,
       .elementwise = true,
       .revises = true,
       .layout = all_dims},
      {.name = "predict_adamw", .infer = infer_predict_adamw, .flops = flops_sgd, .elementwise = true, .layout = all_dims},
      {.name = "predict_sgd", .infer = infer_predict_sgd, .flops = flops_sgd, .elementwise = true, .layout = all_dims},
      {.name = "sgd", .infer = infer_sgd, .flops = flops_sgd, .elementwise = true, .layout = all_dims},
  };
  return all;
}

AdamWResult adamw(Tensor parameter, Tensor gradient, Tensor first, Tensor second, Tensor learning_rate, Tensor step, double beta1,
                  double beta2, double eps, double weight_decay) {
  const Tensor operands[] = {parameter, gradient, first, second, learning_rate, step};
  const std::vector<Tensor> out =
      emit_all("adamw", operands, {{"beta1", beta1}, {"beta2", beta2}, {"eps", eps}, {"weight_decay", weight_decay}});
  return {out[0], out[1], out[2]};
}

AdamWAhead adamw_ahead(Tensor parameter, Tensor gradient, Tensor first, Tensor second, Tensor learning_rate, Tensor step, Tensor assumed,
                       double beta1, double beta2, double eps, double weight_decay) {
  const Tensor operands[] = {parameter, gradient, first, second, learning_rate, step, assumed};
  const std::vector<Tensor> out =
      emit_all("adamw_ahead", operands, {{"beta1", beta1}, {"beta2", beta2}, {"eps", eps}, {"weight_decay", weight_decay}});
  return {{out[0], out[1], out[2]}, {out[3], out[4], out[5]}};
}

AdamWResult adamw_validated(const AdamWAhead& update, Tensor gradient, Tensor learning_rate, Tensor step, Tensor assumed, Tensor factor,
                            double beta1, double beta2, double eps, double weight_decay) {
  const auto& [ahead, kept] = update;
  const Tensor operands[] = {ahead.parameter, ahead.first,   ahead.second, kept.parameter, gradient, kept.first,
                             kept.second,     learning_rate, step,         assumed,        factor};
  const std::vector<Tensor> out =
      emit_all("adamw_validated", operands, {{"beta1", beta1}, {"beta2", beta2}, {"eps", eps}, {"weight_decay", weight_decay}});
  return {out[0], out[1], out[2]};
}

SgdResult sgd(Tensor parameter, Tensor gradient, Tensor velocity, Tensor learning_rate, double momentum, double weight_decay) {
  const Tensor operands[] = {parameter, gradient, velocity, learning_rate};
  const std::vector<Tensor> out = emit_all("sgd", operands, {{"momentum", momentum}, {"weight_decay", weight_decay}});
  return {out[0], out[1]};
}

std::optional<Op> prediction_of(const Op& update, std::int64_t ahead) {
  Op out;
  out.attributes["ahead"] = ahead;
  const std::vector<ValueId>& in = update.operands;
  if (update.name == "sgd") {
    out.name = "predict_sgd";
    out.operands = {in[0], in[2], in[3]};
    return out;
  }
  if (update.name != "adamw") return std::nullopt;
  out.name = "predict_adamw";
  out.operands = {in[0], in[2], in[3], in[4], in[5]};
  for (const char* name : {"beta1", "beta2", "eps"}) out.attributes[name] = update.attributes.at(name);
  return out;
}

bool validates(const Op& validated, const Op& ahead) {
  if (ahead.name != "adamw_ahead" || validated.name != "adamw_validated") return false;
  const std::vector<ValueId>& in = validated.operands;
  const std::vector<ValueId> taken = {in[0], in[1], in[2], in[kUpdated], in[kUpdated + 2], in[kUpdated + 3]};
  return ahead.results == taken && ahead.operands[kGradient] == in[kUpdated + kGradient];
}

ScaledUpdate as_one_update(const Op& ahead, const Op& validated, ValueId scaled) {
  ScaledUpdate out{{}, validated};
  out.scale.name = "mul";
  out.scale.operands = {ahead.operands[kGradient], validated.operands[kFactor]};
  out.scale.results = {scaled};
  out.scale.sequence = validated.sequence;
  out.update.name = "adamw";
  out.update.operands.assign(ahead.operands.begin(), ahead.operands.begin() + kAdamW);
  out.update.operands[kGradient] = scaled;
  return out;
}

}  // namespace penstock
