// SPDX-License-Identifier: Apache-2.0
// Residuals that go over the host's memory: the same gradients, bit by bit.
#include <gtest/gtest.h>

#include "base/text.h"
#include "config/compile.h"
#include "driver/check.h"
#include "models/registry.h"
#include "support/random_schedule.h"
#include "torch/test_cluster.h"

namespace penstock {
namespace {

struct Outcome {
  StepGradients step;
  std::int64_t host_bytes = 0;
};

Outcome step_of(const Config& config, const Prepared& prepared) {
  const Program program = compile_gradients(config, prepared);
  const auto data = std::make_shared<RandomBatch>(text_ports(context_of(config)), vocabulary_of(config));
  const auto cluster = test::make_test_cluster(program.devices.size(), data);
  cluster->load(program);
  StateSource state;
  state.seed = config.train.seed;
  state.parameters = prepared.parameters;
  cluster->set_state(state);
  Outcome out{step_gradients(program, *cluster, prepared.parameters, config.train.seed)};
  for (const DeviceProgram& device : program.devices) out.host_bytes += device.host_bytes;
  return out;
}

TEST(Offload, ChangesNoBitOfTheGradients) {
  const std::uint64_t seed = 20260301;
  test::Random random(seed);
  for (const char* model : {"gpt", "two-branch"})
    for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "interleaved-1f1b"}) {
      SCOPED_TRACE(concat("seed ", seed, " ", model, " ", schedule));
      std::vector<Override> overrides = {parse_override(concat("model.name=", model)), parse_override(concat("schedule=", schedule))};
      for (const char* setting : {"width=16", "heads=2", "context=8", "vocabulary=32", "batch=8", "microbatches=4", "dtype=f64"})
        overrides.push_back(parse_override(setting));
      overrides.push_back(parse_override(model == std::string("gpt") ? "layers=4" : "layers=3"));
      if (schedule == std::string("interleaved-1f1b")) overrides.push_back(parse_override("chunks=2"));
      const Config config = load_config("", overrides, builtin_models());
      Prepared prepared = prepare(config, builtin_models());
      const Outcome expected = step_of(config, prepared);
      EXPECT_EQ(expected.host_bytes, 0);
      const Schedule plain = prepared.schedule;
      for (double probability : {0.5, 1.0}) {
        prepared.schedule = test::with_host_copies(random, plain, probability);
        const Outcome found = step_of(config, prepared);
        EXPECT_GT(found.host_bytes, 0);
        EXPECT_EQ(found.step.loss, expected.step.loss) << print(prepared.schedule);
        EXPECT_EQ(found.step.gradients, expected.step.gradients) << print(prepared.schedule);
      }
    }
}

}  // namespace
}  // namespace penstock
