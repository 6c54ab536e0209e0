// VGG and ResNet pipelined against one device, and that they learn.
#include <gtest/gtest.h>

#include "base/text.h"
#include "models/registry.h"
#include "runtime/check.h"
#include "runtime/compile.h"
#include "runtime/outputs.h"
#include "runtime/thread_cluster.h"
#include "runtime/training.h"
#include "torch/executor.h"

namespace penstock {
namespace {

Config config_of(const std::string& model, std::vector<std::string> settings) {
  settings.insert(settings.begin(), {"model.name=" + model, "width=2", "batch=16", "microbatches=4"});
  std::vector<Override> overrides;
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  return load_config("", overrides, builtin_models());
}

std::unique_ptr<Cluster> cluster_of(const Config& config, const Prepared& prepared, const Program& program,
                                    std::shared_ptr<const DataSource> data) {
  auto cluster = make_thread_cluster(static_cast<int>(program.devices.size()), torch_executor_factory(), std::move(data));
  cluster->load(program);
  cluster->set_state(fresh_start(config, prepared).state);
  return cluster;
}

StepGradients gradients_of(const Config& config, const Prepared& prepared) {
  const Program program = compile_gradients(config, prepared);
  const auto data = std::make_shared<RandomBatch>(data_of(config, *prepared.model), 0);
  return step_gradients(program, *cluster_of(config, prepared, program, data), prepared.parameters, config.train.seed);
}

StepGradients sequential_gradients(const Config& config, std::int64_t microbatches) {
  return gradients_of(config, prepare_sequential(config, builtin_models(), microbatches));
}

class ImageModels : public testing::TestWithParam<std::string> {};

TEST_P(ImageModels, EqualTheSequentialStepInF64) {
  const StepGradients expected = sequential_gradients(config_of(GetParam(), {"dtype=f64"}), GetParam() == "resnet" ? 4 : 1);
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1"}) {
    for (int actors : {2, 4}) {
      SCOPED_TRACE(concat(schedule, ", ", actors, " actors"));
      const Config config = config_of(GetParam(), {"dtype=f64", concat("schedule=", schedule), concat("actors=", actors)});
      const Comparison comparison = compare(gradients_of(config, prepare(config, builtin_models())), expected);
      EXPECT_LE(comparison.loss_difference, 1e-10);
      EXPECT_LE(comparison.gradient_difference, 1e-10) << comparison.worst;
    }
  }
}

// Every sample comes once: what falls is the loss on images not seen before.
TEST_P(ImageModels, Learn) {
  const Config config = config_of(GetParam(), {"learning_rate=0.01", "classes=4"});
  const Prepared prepared = prepare(config, builtin_models());
  const Program program = compile_training(config, prepared);
  const auto data = make_dataset(config, *prepared.model);
  const auto cluster = cluster_of(config, prepared, program, data);
  const std::uint64_t key = cluster->load(program);
  constexpr int kSteps = 60;
  double first = 0, last = 0;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const StepInput input{step + 1, config.train.seed, false, data->training_samples(step * config.train.batch)};
    const double loss = scalar_output(program, cluster->step(key, input), "loss");
    if (step < 5) first += loss / 5;
    if (step >= kSteps - 5) last += loss / 5;
  }
  EXPECT_LT(last, 0.5 * first);
}

INSTANTIATE_TEST_SUITE_P(All, ImageModels, testing::Values("resnet", "vgg"));

// Why a batch norm is compared with equal micro-batches only.
TEST(BatchNorm, DependsOnTheMicrobatches) {
  const Config config = config_of("resnet", {"dtype=f64"});
  EXPECT_GT(compare(sequential_gradients(config, 4), sequential_gradients(config, 1)).loss_difference, 1e-4);
}

}  // namespace
}  // namespace penstock
