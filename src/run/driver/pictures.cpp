// SPDX-License-Identifier: Apache-2.0
#include "driver/pictures.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "base/hash.h"
#include "base/invariant.h"
#include "base/text.h"
#include "config/compile.h"
#include "driver/outputs.h"
#include "models/layers.h"
#include "penstock/error.h"
#include "state/draws.h"
#include "state/initialise.h"

namespace penstock {
namespace {

// The values that a step reads. The loop changes them between steps, while no device reads them.
class StepValues : public DataSource {
 public:
  void fill(const Port& port, const StepInput&, std::int64_t, std::int64_t, std::span<std::byte> out) const override {
    const std::vector<double>& found = values.at(port.name);
    invariant(out.size() == static_cast<std::size_t>(port.type.bytes()) && std::ssize(found) == port.type.elements(),
              "a picture's step reads whole ports");
    for (std::size_t i = 0; i < found.size(); ++i) store_element(port.type.dtype, found[i], out, i);
  }

  std::map<std::string, std::vector<double>> values;
};

std::vector<double> noise(std::int64_t elements, std::int64_t seed) {
  Hash key;
  key.add("picture");
  key.add(static_cast<std::uint64_t>(seed));
  std::vector<double> out(static_cast<std::size_t>(elements));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = normal_draws(key.value(), i / 2)[i % 2];
  return out;
}

// From planes of colours, whose values are from 0 to 1.
Picture picture_of(const std::vector<double>& planes, std::int64_t size) {
  const auto places = static_cast<std::size_t>(size * size);
  invariant(planes.size() == places * kColours, "a picture has three colours");
  Picture out{size, {}};
  for (std::size_t i = 0; i < places; ++i)
    for (std::size_t colour = 0; colour < kColours; ++colour)
      out.pixels.push_back(static_cast<std::uint8_t>(std::lround(255 * std::clamp(planes[colour * places + i], 0.0, 1.0))));
  return out;
}

void check(const std::string& model, const PictureSteps& can, const PictureOptions& options) {
  if (options.label < 0 || options.label >= can.classes)
    throw Error(concat("--class is ", options.label, "; the model was trained on ", can.classes, " classes"), {},
                concat("use 0 to ", can.classes - 1));
  if (options.steps < 1 || options.steps > can.levels)
    throw Error(concat("--steps is ", options.steps, "; model ", quote(model), " has ", can.levels, " levels of noise"), {},
                concat("use 1 to ", can.levels));
}

}  // namespace

std::vector<std::int64_t> levels_of_steps(std::int64_t levels, std::int64_t steps) {
  std::vector<std::int64_t> out;
  for (std::int64_t left = steps; left >= 0; --left) out.push_back(left * levels / steps - 1);
  return out;
}

Picture make_picture(const Config& config, const ModelRegistry& models, const StateSource& state, const PictureOptions& options,
                     const OneDevice& one_device) {
  const Prepared prepared = prepare_sequential(config, models);
  const std::optional<PictureSteps> can = prepared.model->picture_steps();
  if (!can) throw Error(concat("model ", quote(config.model.name), " makes no pictures"));
  check(config.model.name, *can, options);
  const Program program = compile_picture_step(prepared);
  const auto values = std::make_shared<StepValues>();
  const std::unique_ptr<Cluster> cluster = one_device(values);
  const std::uint64_t hash = cluster->load(program);
  cluster->set_state(state);

  values->values = {{"latents", noise(can->latents.elements(), options.seed)},
                    {"label", {static_cast<double>(options.label)}},
                    {"guidance", {options.guidance}}};
  const std::vector<std::int64_t> levels = levels_of_steps(can->levels, options.steps);
  std::vector<double> planes;
  for (std::size_t i = 0; i + 1 < levels.size(); ++i) {
    values->values["level"] = {static_cast<double>(levels[i])};
    values->values["next"] = {static_cast<double>(levels[i + 1])};
    const StepResult result = cluster->step(hash, {.step = static_cast<std::int64_t>(i) + 1});
    values->values["latents"] = output_values(program, result, "latents");
    planes = output_values(program, result, "picture");
  }
  return picture_of(planes, can->size);
}

}  // namespace penstock
