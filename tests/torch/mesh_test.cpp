// Steps of random models under every mesh of up to 8 devices against the sequential step. PENSTOCK_SEED chooses what is drawn;
// with PENSTOCK_SOAK every mesh is drawn many times.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <random>

#include "base/text.h"
#include "config/mesh.h"
#include "models/registry.h"
#include "penstock/error.h"
#include "support/random_schedule.h"
#include "torch/run_step.h"

namespace penstock {
namespace {

using test::coin;
using test::draw;
using test::Random;

struct Mesh {
  int pipe = 1, data = 1, context = 1, tensor = 1;
  int devices() const { return pipe * data * context * tensor; }
  std::string text(bool context_last) const {
    const std::string inner =
        context_last ? concat("tensor=", tensor, ",context=", context) : concat("context=", context, ",tensor=", tensor);
    return concat("pipe=", pipe, ",data=", data, ",", inner);
  }
};

bool is_soak() {
  return std::getenv("PENSTOCK_SOAK") != nullptr;
}

// Whether a training step can be compiled too, as far as is known: not where sums over a pipeline are of shares, nor along `context`.
bool can_update(const Config::Pipeline& pipeline) {
  return is_soak() || (pipeline.context == 1 && (pipeline.actors == 1 || pipeline.zero < 1));
}

// Those in which tensors are split.
std::vector<Mesh> meshes(int most_devices) {
  std::vector<Mesh> out;
  for (int pipe = 1; pipe <= most_devices; ++pipe)
    for (int data = 1; pipe * data <= most_devices; ++data)
      for (int context = 1; pipe * data * context <= most_devices; ++context)
        for (int tensor = 1; pipe * data * context * tensor <= most_devices; ++tensor)
          if (context * tensor > 1) out.push_back({pipe, data, context, tensor});
  return out;
}

template <class T>
const T& one_of(Random& random, const std::vector<T>& all) {
  return all[static_cast<std::size_t>(draw(random, 0, static_cast<int>(all.size()) - 1))];
}

// Sizes that the axes divide and others.
std::vector<std::string> draw_sizes(Random& random, const Mesh& mesh, const std::string& model) {
  const int vocabulary = draw(random, std::max(10, mesh.tensor), 40);
  if (model == "mlp")
    return {concat("layers=", draw(random, std::max(2, mesh.pipe), 8)), concat("width=", draw(random, std::max(3, mesh.tensor), 17)),
            concat("context=", draw(random, 3, 9)), concat("vocabulary=", vocabulary)};
  const int heads = draw(random, mesh.tensor, std::max(5, mesh.tensor));
  int length = draw(random, std::max(3, mesh.context * mesh.tensor), 13);
  // Where a sequence of uneven halves is cut along two axes the members may disagree on the order of collectives, and are refused.
  if (model == "t5" && mesh.context > 1 && mesh.tensor > 1 && !is_soak()) length = 2 * mesh.context * draw(random, 1, 2);
  std::vector<std::string> out = {concat("heads=", heads), concat("width=", heads * 2 * draw(random, 1, 2)), concat("context=", length),
                                  concat("vocabulary=", vocabulary)};
  if (model == "t5") {
    out.push_back(concat("layers=", draw(random, 1, 2)));
    return out;
  }
  out.push_back(concat("layers=", draw(random, mesh.pipe, std::max(3, mesh.pipe + 1))));
  out.push_back(concat("tied=", draw(random, 0, 1)));
  out.push_back(coin(random, 0.3) ? "dropout=0.2" : "dropout=0.0");
  return out;
}

std::vector<std::string> draw_pipeline(Random& random, const Mesh& mesh) {
  const ScheduleInfo& schedule = one_of(random, schedules());
  const int microbatches = draw(random, 1, 3) * (coin(random, 0.5) ? mesh.pipe : 1);
  std::vector<std::string> out = {concat("schedule=", schedule.name), concat("microbatches=", microbatches),
                                  concat("batch=", microbatches * mesh.data * draw(random, 1, 2)),
                                  concat("chunks=", schedule.chunked ? draw(random, 1, 2) : 1)};
  if (mesh.data > 1) out.push_back(concat("zero=", draw(random, 0, 3)));
  if (coin(random, 0.2)) out.push_back("recompute=inputs");
  return out;
}

struct Trial {
  Config config;
  std::string text;
};

Trial draw_trial(Random& random, const Mesh& mesh, const std::string& model) {
  std::vector<std::string> settings = {"model.name=" + model, "dtype=f64", concat("train.seed=", draw(random, 0, 1000))};
  for (const auto& more : {draw_sizes(random, mesh, model), draw_pipeline(random, mesh)})
    settings.insert(settings.end(), more.begin(), more.end());
  if (model != "mlp" && mesh.tensor > 1 && coin(random, 0.4)) settings.push_back("layout.sequence=tensor");
  const std::string placed = mesh.text(coin(random, 0.5));
  std::vector<Override> overrides;
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  for (Override& axis : parse_mesh(placed)) overrides.push_back(std::move(axis));
  return {load_config("", overrides, builtin_models()), concat("--mesh ", placed, " --set ", join(settings, " --set "))};
}

// Nothing where schedule, model and mesh do not fit together.
std::optional<Prepared> prepared_for(const Config& config) {
  try {
    return prepare(config, builtin_models());
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Whether the trial could be tried.
bool expect_equal_step(const Trial& trial) {
  const std::optional<Prepared> prepared = prepared_for(trial.config);
  if (!prepared) return false;
  try {
    if (can_update(trial.config.pipeline)) compile_training(trial.config, *prepared);  // which checks what updates leave
    const StepGradients found = test::step_of(trial.config, *prepared, compile_gradients(trial.config, *prepared));
    const Comparison comparison = compare(found, test::sequential_step(trial.config));
    EXPECT_LE(comparison.loss_difference, 1e-10) << trial.text;
    EXPECT_LE(comparison.gradient_difference, 1e-10) << trial.text << "\n" << comparison.worst;
  } catch (const std::exception& error) {
    ADD_FAILURE() << trial.text << "\n" << error.what();
  }
  return true;
}

std::uint64_t seed_of_environment() {
  const char* seed = std::getenv("PENSTOCK_SEED");
  return seed ? std::stoull(seed) : std::random_device{}();
}

class Meshes : public testing::TestWithParam<std::string> {};

TEST_P(Meshes, EqualTheSequentialStepInF64) {
  const std::uint64_t seed = seed_of_environment();
  Random random(seed);
  const bool soak = is_soak();
  std::vector<Mesh> all = meshes(8);
  if (GetParam() == "mlp") std::erase_if(all, [](const Mesh& mesh) { return mesh.context > 1; });
  int tried = 0;
  for (int trial = 0; trial < (soak ? 40 * static_cast<int>(all.size()) : 120); ++trial)
    tried +=
        expect_equal_step(draw_trial(random, soak ? all[static_cast<std::size_t>(trial) % all.size()] : one_of(random, all), GetParam()));
  EXPECT_GE(tried, 5);
  std::printf("%d steps, seed %llu\n", tried, static_cast<unsigned long long>(seed));
}

INSTANTIATE_TEST_SUITE_P(Models, Meshes, testing::Values("gpt", "t5", "mlp"), [](const auto& test) { return test.param; });

}  // namespace
}  // namespace penstock
