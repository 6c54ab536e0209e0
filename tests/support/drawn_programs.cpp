// SPDX-License-Identifier: Apache-2.0
#include "support/drawn_programs.h"

#include <string>
#include <vector>

#include "base/text.h"
#include "config/compile.h"
#include "lower/lower.h"
#include "models/registry.h"
#include "penstock/compile.h"
#include "penstock/error.h"
#include "penstock/step.h"
#include "schedule/traits.h"

namespace penstock::test {
namespace {

Config config_of(const std::vector<std::string>& settings) {
  std::vector<Override> overrides;
  for (const char* setting : {"width=8", "heads=2", "context=4", "vocabulary=16", "layers=4", "dtype=f32"})
    overrides.push_back(parse_override(setting));
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  return load_config("", overrides, builtin_models());
}

std::string one_of(Random& random, std::initializer_list<const char*> list) {
  return list.begin()[draw(random, 0, static_cast<int>(list.size()) - 1)];
}

}  // namespace

Program of_random_table(Random& random) {
  const int microbatches = draw(random, 1, 4), batch = 2 * microbatches;
  const std::string model = coin(random, 0.5) ? "gpt" : "two-branch";
  const Prepared prepared = prepare(
      config_of({"model.name=" + model, "schedule=gpipe", "actors=4", concat("microbatches=", microbatches), concat("batch=", batch)}),
      builtin_models());
  const Graph step = training_step(*prepared.model, {batch, 4, microbatches}, {});
  const StagedStep staged = prepare_stages(step);
  const StageShape shape = cut(staged, std::vector<bool>(staged.stages.size(), true)).shape;
  return lower(step, random_schedule(random, shape, draw(random, 1, 4), microbatches, {.foreign_weight = 0.2, .replica = 0.3}));
}

Program of_groups(Random& random) {
  std::vector<std::string> settings = {"schedule=" + one_of(random, {"1f1b", "zb-h1", "gpipe"}),
                                       "actors=2",
                                       "microbatches=2",
                                       "batch=16",
                                       "zero=" + one_of(random, {"0", "1", "2", "3"}),
                                       "update=" + one_of(random, {"end", "stage", "validated"}),
                                       "clip=" + one_of(random, {"0", "1"}),
                                       "tied=" + one_of(random, {"0", "1"}),
                                       "pipeline.data=2"};
  if (coin(random, 0.3)) settings.insert(settings.end(), {"pipeline.local=2", "zero=3"});
  const Config config = config_of(settings);
  return compile_training(config, prepare(config, builtin_models()));
}

std::optional<Program> of_mesh(Random& random) {
  const std::string schedule =
      one_of(random, {"1f1b", "zb-h1", "gpipe", "interleaved-1f1b", "chimera", "pipedream", "hetpipe", "layerpipe", "xpipe"});
  const int pipe = schedule == "chimera" ? 2 : draw(random, 1, 2), data = draw(random, 1, 2), microbatches = 2 * draw(random, 1, 2);
  const bool is_window = takes(schedule, "--window") || coin(random, 0.4);
  std::vector<std::string> settings = {
      "schedule=" + schedule,
      concat("actors=", pipe),
      concat("pipeline.data=", data),
      concat("microbatches=", microbatches),
      concat("batch=", microbatches * data),
      concat("chunks=", schedule == "interleaved-1f1b" ? 2 : 1),
      concat("window=", is_window ? draw(random, 2, 3) : 1),
      "slices=" + one_of(random, {"1", "1", "2"}),
      one_of(random, {"pipeline.context=2", "pipeline.tensor=2", "pipeline.tensor=1", "pipeline.tensor=1"}),
      "pipeline.recompute=" + one_of(random, {"none", "none", "selective", "inputs"}),
      "clip=" + one_of(random, {"0", is_window ? "0" : "1"}),
      "tied=" + one_of(random, {"0", is_window ? "0" : "1"})};
  if (data > 1 && is_window && coin(random, 0.3))
    settings.insert(settings.end(), {"pipeline.distance=1", "optimiser=sgd", "momentum=0"});
  else if (data > 1)
    settings.push_back("zero=" + one_of(random, {"0", "1", "2", "3"}));
  try {
    const Config config = config_of(settings);
    return compile_training(config, prepare(config, builtin_models()));
  } catch (const Error&) {
    return std::nullopt;
  }
}

Program of_classes(Random& random) {
  ModelOptions sizes;
  sizes.stages = 2;
  sizes.numbers = {{"width", 8}, {"context", 4}, {"vocabulary", 16}};
  const std::unique_ptr<Model> model = make_model(builtin_models(), "mlp", sizes);
  std::vector<Graph> classes;
  for (const int length : {4, 2}) classes.push_back(training_step(*model, {2, length, 1, BatchCount::port}, {}));
  const int microbatches = draw(random, 2, 5);
  std::vector<int> shapes(static_cast<std::size_t>(microbatches));
  for (int& shape : shapes) shape = draw(random, 0, 1);
  const char* schedule = coin(random, 0.5) ? "1f1b" : "zb-h1";
  return compile(classes, shapes, make_schedule(schedule, {.actors = 2, .microbatches = microbatches}),
                 {.devices = {draw(random, 1, 2), 1}});
}

}  // namespace penstock::test
