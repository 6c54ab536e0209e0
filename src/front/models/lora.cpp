// SPDX-License-Identifier: Apache-2.0
#include "models/lora.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {

std::map<std::string, double> lora_numbers() {
  return {{"lora", 0}, {"lora_alpha", 0}};
}

std::map<std::string, std::string> lora_words() {
  return {{"lora_to", "all"}};
}

LoraConfig lora_config(const ModelOptions& options) {
  const double rank = options.number("lora"), alpha = options.number("lora_alpha");
  const std::string& to = options.word("lora_to");
  if (!(rank >= 0 && rank <= 1e9) || rank != std::floor(rank))
    throw Error(concat("model option \"lora\", the adapters' rank, is ", number(rank)), {},
                "give a whole number from 1 on, such as 8, or 0 to train the model without adapters");
  check_word("lora_to", to, {"all", "attention", "mlp"});
  if (rank == 0 && (alpha != 0 || to != "all"))
    throw Error(alpha != 0 ? concat("model option \"lora_alpha\" is ", number(alpha), ", but there are no adapters")
                           : concat("model option \"lora_to\" is ", quote(to), ", but there are no adapters"),
                {"model option \"lora\", the adapters' rank, is 0"}, "give a rank too: --set lora=8");
  if (!(alpha >= 0) || !std::isfinite(alpha))
    throw Error(concat("model option \"lora_alpha\" is ", number(alpha)), {},
                "give a number above 0: what adapters add is multiplied by lora_alpha / lora; 0 stands for lora, the rank");
  if (rank == 0) return {};
  return {static_cast<std::int64_t>(rank), alpha == 0 ? 1 : alpha / rank, to != "mlp", to != "attention"};
}

LoraAdapter::LoraAdapter(ParameterList& specs, const std::string& path, const LoraConfig& config, const nn::LinearShape& shape)
    : path_(path), rank_(config.rank), scale_(config.scale) {
  if (rank_ == 0) return;
  if (const std::int64_t most = std::min(shape.in, shape.out); rank_ > most)
    throw Error(concat("model option \"lora\" is ", rank_, ", but the rank of ", quote(path + ".weight"), " is ", most, " at most"),
                {concat("it maps ", shape.in, " numbers to ", shape.out)}, concat("use a rank from 1 to ", most));
  const double deviation = 1 / std::sqrt(static_cast<double>(shape.in));
  specs.list.push_back({.name = path + ".lora_A.weight",
                        .type = {specs.dtype, {rank_, shape.in}},
                        .initial = {Initialiser::Kind::normal, deviation},
                        .dims = {{"lora"}, shape.dims.in},
                        .adapter = true});
  specs.list.push_back({.name = path + ".lora_B.weight",
                        .type = {specs.dtype, {shape.out, rank_}},
                        .initial = {Initialiser::Kind::zeros, 0},
                        .dims = {shape.dims.out, {"lora"}},
                        .adapter = true});
}

Tensor LoraAdapter::operator()(const Parameters& p, Tensor x, Tensor y) const {
  if (rank_ == 0) return y;
  const Origin origin(path_);
  // The scale meets the smallest of the tensors.
  const Tensor low = linear(x, to(p[path_ + ".lora_A.weight"], x.dtype()));
  return y + linear(scale_ == 1 ? low : low * scale_, to(p[path_ + ".lora_B.weight"], x.dtype()));
}

void freeze_base(ParameterList& specs, const LoraConfig& config) {
  if (config.rank == 0) return;
  for (ParameterSpec& spec : specs.list) spec.trained = spec.adapter;
}

}  // namespace penstock
