// SPDX-License-Identifier: Apache-2.0
#include "models/registry.h"

#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"

namespace penstock {

namespace {

template <class Map>
[[noreturn]] void fail_unknown(const std::string& what, const std::string& name, const Map& known) {
  std::vector<std::string> names;
  for (const auto& entry : known) names.push_back(entry.first);
  throw Error(concat(what, " ", quote(name)), {concat("known: ", join(names, ", "))}, did_you_mean(name, names));
}

// Adds the defaults for the keys that are not given.
template <class Options>
void complete(const std::string& model, Options& options, const Options& defaults) {
  for (const auto& option : options) {
    if (!defaults.contains(option.first)) fail_unknown(concat("model ", quote(model), " has no option"), option.first, defaults);
  }
  options.insert(defaults.begin(), defaults.end());
}

}  // namespace

const ModelRegistry& builtin_models() {
  static const ModelRegistry models = {{"candle-uno", candle_uno_model()},
                                       {"dlrm", dlrm_model()},
                                       {"exported", exported_model()},
                                       {"gpt", gpt_model()},
                                       {"latent_diffusion", latent_diffusion_model()},
                                       {"mlp", mlp_model()},
                                       {"moe", moe_model()},
                                       {"multimodal", multimodal_model()},
                                       {"reference", reference_model()},
                                       {"resnet", resnet_model()},
                                       {"t5", t5_model()},
                                       {"two-branch", two_branch_model()},
                                       {"vgg", vgg_model()}};
  return models;
}

std::unique_ptr<Model> make_model(const ModelRegistry& registry, const std::string& name, ModelOptions options) {
  const auto found = registry.find(name);
  if (found == registry.end()) fail_unknown("no model", name, registry);
  complete(name, options.numbers, found->second.numbers);
  complete(name, options.words, found->second.words);
  return found->second.make(options);
}

}  // namespace penstock
