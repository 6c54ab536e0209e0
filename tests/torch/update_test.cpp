// Stages updated as soon as their gradients are complete: the same training, bit by bit.
#include <gtest/gtest.h>

#include <map>

#include "base/text.h"
#include "models/registry.h"
#include "runtime/check.h"
#include "runtime/thread_cluster.h"
#include "runtime/training.h"
#include "torch/executor.h"

namespace penstock {
namespace {

struct Trained {
  std::map<std::string, std::vector<std::byte>> state;
  int updates = 0;  // of states, in runs of U
};

Trained train_three_steps(const std::string& model, const std::vector<std::string>& settings) {
  std::vector<Override> overrides = {parse_override("model.name=" + model)};
  for (const char* setting : {"width=16", "heads=2", "context=8", "vocabulary=32", "batch=8", "microbatches=4"})
    overrides.push_back(parse_override(setting));
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  const Config config = load_config("", overrides, builtin_models());
  const Prepared prepared = prepare(config, builtin_models());
  const Program program = compile_training(config, prepared);
  const auto data = std::make_shared<RandomBatch>(context_of(config), vocabulary_of(config));
  const auto cluster = make_thread_cluster(static_cast<int>(program.devices.size()), torch_executor_factory(), data);
  const std::uint64_t key = cluster->load(program);
  cluster->set_state(fresh_start(config, prepared).state);
  for (std::int64_t step = 1; step <= 3; ++step) cluster->step(key, {step, 0, false, {}});
  Trained out;
  for (const DeviceProgram& device : program.devices) {
    for (const Slot& slot : device.slots)
      for (const std::string& name : slot.names) out.state.emplace(name, cluster->state(name));
    for (const Instruction& i : device.instructions)
      for (const Result& result : device.results_of(i))
        out.updates += i.action && i.kind == Kind::U && device.slots[result.slot.index()].kind == SlotClass::state;
  }
  return out;
}

TEST(Updates, PerStageChangeNothing) {
  for (const char* model : {"gpt", "two-branch"})
    for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "interleaved-1f1b"})
      for (const char* clip : {"clip=0", "clip=1"})
        for (const char* tied : {"tied=0", "tied=1"}) {
          std::vector<std::string> settings = {concat("schedule=", schedule), clip,
                                               schedule == std::string("interleaved-1f1b") ? "chunks=2" : "chunks=1"};
          if (model == std::string("gpt")) settings.insert(settings.end(), {"layers=4", tied});
          SCOPED_TRACE(concat(model, " ", join(settings, ", ")));
          const Trained expected = train_three_steps(model, settings);
          settings.push_back("update=stage");
          const Trained found = train_three_steps(model, settings);
          EXPECT_EQ(found.state, expected.state);
          EXPECT_EQ(expected.updates, 0);
          // The global norm needs every gradient: a U then adds up its stage's share of it, and the updates stay at the end.
          EXPECT_EQ(found.updates > 0, clip == std::string("clip=0"));
        }
}

}  // namespace
}  // namespace penstock
