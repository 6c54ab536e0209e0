// SPDX-License-Identifier: Apache-2.0
// The models that Penstock brings, by name.
#pragma once

#include <memory>
#include <string>

#include "penstock/trace.h"

namespace penstock {

const ModelRegistry& builtin_models();

// Makes the model of that name. Options that are not given have the entry's defaults. Throws Error for an unknown model or option, naming
// the nearest, and where the model refuses a value.
std::unique_ptr<Model> make_model(const ModelRegistry& registry, const std::string& name, ModelOptions options);

// The entries of single models.
ModelEntry gpt_model();
ModelEntry moe_model();
ModelEntry reference_model();
ModelEntry two_branch_model();
ModelEntry mlp_model();
ModelEntry candle_uno_model();
ModelEntry multimodal_model();
std::unique_ptr<Model> vision_language_model(const ModelOptions& options);  // of multimodal, with input = "images"
ModelEntry latent_diffusion_model();
ModelEntry dlrm_model();
ModelEntry t5_model();
ModelEntry resnet_model();
ModelEntry vgg_model();
ModelEntry exported_model();

}  // namespace penstock
