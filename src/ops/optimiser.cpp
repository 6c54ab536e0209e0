#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"

namespace penstock {
namespace {

void require_numbers(const Op& op, std::initializer_list<std::string_view> names) {
  for (std::string_view name : names) number_attribute(op, name);
}

// Parameter, gradient and `moments` more of one floating type, then the learning rate.
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

// (parameter, gradient, velocity, learning_rate) -> (parameter, velocity)
std::vector<TensorType> infer_sgd(const Op& op, Types operands) {
  require_count(op, operands, 4, 4);
  require_update(op, operands, 1);
  require_numbers(op, {"momentum", "weight_decay"});
  return {operands[0], operands[0]};
}

double flops_adamw(const Op&, Types operands, Types) {
  return 15 * static_cast<double>(operands[0].elements());
}

double flops_sgd(const Op&, Types operands, Types) {
  return 6 * static_cast<double>(operands[0].elements());
}

constexpr OpDefinition kOps[] = {
    {.name = "adamw", .infer = infer_adamw, .flops = flops_adamw, .elementwise = true},
    {.name = "sgd", .infer = infer_sgd, .flops = flops_sgd, .elementwise = true},
};

}  // namespace

std::span<const OpDefinition> optimiser_ops() {
  return kOps;
}

AdamWResult adamw(Tensor parameter, Tensor gradient, Tensor first, Tensor second, Tensor learning_rate, Tensor step, double beta1,
                  double beta2, double eps, double weight_decay) {
  const Tensor operands[] = {parameter, gradient, first, second, learning_rate, step};
  const std::vector<Tensor> out =
      emit_all("adamw", operands, {{"beta1", beta1}, {"beta2", beta2}, {"eps", eps}, {"weight_decay", weight_decay}});
  return {out[0], out[1], out[2]};
}

SgdResult sgd(Tensor parameter, Tensor gradient, Tensor velocity, Tensor learning_rate, double momentum, double weight_decay) {
  const Tensor operands[] = {parameter, gradient, velocity, learning_rate};
  const std::vector<Tensor> out = emit_all("sgd", operands, {{"momentum", momentum}, {"weight_decay", weight_decay}});
  return {out[0], out[1]};
}

}  // namespace penstock
