// SPDX-License-Identifier: Apache-2.0
// The defaults of Model's functions.
#include "penstock/error.h"
#include "penstock/trace.h"

namespace penstock {

std::vector<DataPort> text_ports(std::int64_t context) {
  const TensorType type{DType::i64, {context}};
  return {{.name = "tokens", .type = type, .kind = DataPort::Kind::tokens, .below = 0, .of = {}},
          {.name = "targets", .type = type, .kind = DataPort::Kind::targets, .below = 0, .of = {}}};
}

bool reads_text(const std::vector<DataPort>& ports) {
  for (const DataPort& port : ports)
    if (port.is_text()) return true;
  return false;
}

bool reads_images(const std::vector<DataPort>& ports) {
  for (const DataPort& port : ports)
    if (port.kind == DataPort::Kind::slots) return true;
  return false;
}

Tensor count_targets(Tensor targets) {
  return sum(to(ne(targets, static_cast<double>(kIgnored)), DType::i64));
}

Tensor Model::count(const Batch& batch) const {
  if (batch.targets) return count_targets(batch.targets);
  return full(batch.rows, {}, static_cast<double>(batch.rows.size(0)), DType::i64);
}

StepSums Model::sums(const Parameters& parameters, const Batch& batch) const {
  Parameters trained;
  for (const ParameterSpec& spec : this->parameters())
    if (spec.trained) trained.set(spec.name, parameters[spec.name]);
  const ValueAndGradient found = value_and_grad(trained, [&](const Parameters& local) {
    Parameters all = parameters;
    for (const auto& [name, tensor] : local.entries()) all.set(name, tensor);
    return loss(all, batch);
  });
  return {found.value, found.gradient};
}

Parameters Model::shared(const Parameters&, const Batch&, int) const {
  return {};
}

bool Model::generates() const {
  return reads_text(data(1));
}

Tensor Model::logits(const Parameters&, const Batch&) const {
  throw Error("this model does not continue a text", {"it has no logits of a next token"},
              "generate with gpt, moe, reference, mlp or two-branch");
}

Tensor Model::next_latents(const Parameters&, const Batch&) const {
  throw Error("this model makes no pictures", {"it has no step that takes noise away"}, "generate with latent_diffusion");
}

Tensor Model::picture(const Parameters&, Tensor) const {
  throw Error("this model makes no pictures", {"it does not decode what it takes noise from"}, "generate with latent_diffusion");
}

}  // namespace penstock
