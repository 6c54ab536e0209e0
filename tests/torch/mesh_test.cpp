// SPDX-License-Identifier: Apache-2.0
// Steps of random models under every mesh of up to 8 devices against the sequential step. PENSTOCK_SEED chooses what is drawn;
// with PENSTOCK_SOAK every mesh is drawn many times.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>

#include "base/text.h"
#include "config/mesh.h"
#include "driver/training.h"
#include "models/registry.h"
#include "penstock/error.h"
#include "program/piece.h"
#include "state/checkpoint.h"
#include "support/random_schedule.h"
#include "support/seed.h"
#include "support/temporary.h"
#include "torch/run_step.h"
#include "torch/test_cluster.h"

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

// The meshes in which tensors are split.
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
  const int shortest = std::max(3, mesh.context * mesh.tensor);
  int length = draw(random, shortest, std::max(13, shortest));
  // Where a sequence of uneven halves is cut along two axes the members may disagree on the order of collectives, and are refused.
  if (model == "t5" && mesh.context > 1 && mesh.tensor > 1 && !test::is_soak()) length = 2 * mesh.context * draw(random, 1, 2);
  std::vector<std::string> out = {concat("heads=", heads), concat("width=", heads * 2 * draw(random, 1, 2)), concat("context=", length),
                                  concat("vocabulary=", vocabulary), concat("train.seed=", draw(random, 0, 1000))};
  if (model == "t5") {
    out.push_back(concat("layers=", draw(random, 1, 2)));
    return out;
  }
  out.push_back(concat("layers=", draw(random, mesh.pipe, std::max(3, mesh.pipe + 1))));
  out.push_back(concat("tied=", draw(random, 0, 1)));
  out.push_back(coin(random, 0.3) ? "dropout=0.2" : "dropout=0.0");
  return out;
}

// `batch`: 0 where it may be any.
std::vector<std::string> draw_pipeline(Random& random, const Mesh& mesh, int batch) {
  const ScheduleInfo& schedule = one_of(random, schedules());
  const int microbatches = draw(random, 1, 3) * (coin(random, 0.5) ? mesh.pipe : 1);
  std::vector<std::string> out = {concat("schedule=", schedule.name), concat("microbatches=", microbatches),
                                  concat("batch=", batch > 0 ? batch : microbatches * mesh.data * draw(random, 1, 2)),
                                  concat("chunks=", schedule.chunked ? draw(random, 1, 2) : 1)};
  if (mesh.data > 1) out.push_back(concat("zero=", draw(random, 0, 3)));
  if (coin(random, 0.2)) out.push_back("recompute=inputs");
  return out;
}

struct Trial {
  Config config;
  std::string text;
};

// Nothing where the batch does not come out even.
std::optional<Trial> draw_trial(Random& random, const Mesh& mesh, const std::string& model, const std::vector<std::string>& sizes,
                                int batch = 0) {
  std::vector<std::string> settings = {"model.name=" + model, "dtype=f64"};
  for (const auto& more : {sizes, draw_pipeline(random, mesh, batch)}) settings.insert(settings.end(), more.begin(), more.end());
  if (model != "mlp" && mesh.tensor > 1 && coin(random, 0.4)) settings.push_back("layout.sequence=tensor");
  if (mesh.context > 1 && coin(random, 0.4)) settings.push_back("attention=heads");
  if (mesh.pipe > 1 && coin(random, 0.3)) settings.push_back(mesh.tensor > 1 ? "layout.links=tensor" : "layout.links=context");
  const std::string placed = mesh.text(coin(random, 0.5));
  std::vector<Override> overrides;
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  for (Override& axis : parse_mesh(placed)) overrides.push_back(std::move(axis));
  try {
    return Trial{load_config("", overrides, builtin_models()), concat("--mesh ", placed, " --set ", join(settings, " --set "))};
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Nothing where schedule, model and mesh do not fit together.
std::optional<Prepared> prepared_for(const Config& config) {
  try {
    Prepared prepared = prepare(config, builtin_models());
    if (!prepared.schedule.predecessors.empty()) return std::nullopt;  // for models of several backbones
    return prepared;
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Whether the trial could be tried.
bool expect_equal_step(const Trial& trial) {
  const std::optional<Prepared> prepared = prepared_for(trial.config);
  if (!prepared) return false;
  try {
    compile_training(trial.config, *prepared);  // which checks what updates leave
    const StepGradients found = test::step_of(trial.config, *prepared, compile_gradients(trial.config, *prepared));
    const Comparison comparison = compare(found, test::sequential_step(trial.config));
    EXPECT_LE(comparison.loss_difference, 1e-10) << trial.text;
    EXPECT_LE(comparison.gradient_difference, 1e-10) << trial.text << "\n" << comparison.worst;
  } catch (const std::exception& error) {
    ADD_FAILURE() << trial.text << "\n" << error.what();
  }
  return true;
}

class Meshes : public testing::TestWithParam<std::string> {};

TEST_P(Meshes, EqualTheSequentialStepInF64) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  Random random(seed);
  const bool soak = test::is_soak();
  std::vector<Mesh> all = meshes(8);
  if (GetParam() == "mlp") std::erase_if(all, [](const Mesh& mesh) { return mesh.context > 1; });
  int tried = 0;
  for (int trial = 0; trial < (soak ? 40 * static_cast<int>(all.size()) : 120); ++trial) {
    const Mesh mesh = soak ? all[static_cast<std::size_t>(trial) % all.size()] : one_of(random, all);
    tried += expect_equal_step(draw_trial(random, mesh, GetParam(), draw_sizes(random, mesh, GetParam())).value());
  }
  EXPECT_GE(tried, 5);
  std::printf("%d steps, seed %llu\n", tried, static_cast<unsigned long long>(seed));
}

using State = std::map<std::string, std::vector<std::byte>>;

// One step of training from a checkpoint, or from the beginning; the state behind it goes to a checkpoint under `out`.
State train_step(const Config& config, const Prepared& prepared, std::int64_t step, const StateSource& from, const std::string& out) {
  const Program program = compile_training(config, prepared);
  const auto data = std::make_shared<RandomBatch>(data_of(config, *prepared.model), vocabulary_of(config));
  const auto cluster = test::make_test_cluster(program.devices.size(), data);
  const std::uint64_t key = cluster->load(program);
  cluster->set_state(from);
  cluster->step(key, {step, 0, false, {}});
  Checkpoint info;
  info.step = step;
  write_checkpoint(out, info, 2, [&](const std::string& folder) { return cluster->save_state(folder); });
  State state;
  for (const DeviceProgram& device : program.devices)
    for (const Slot& slot : device.slots)
      for (const std::string& name : slot.names)
        if (const std::string tensor = parse_piece(name).tensor; !state.contains(tensor)) state.emplace(tensor, cluster->state(tensor));
  return state;
}

// Two steps, the second from the first's checkpoint.
State train_twice(const std::array<const Trial*, 2>& trials, const std::array<const Prepared*, 2>& prepared) {
  const test::TemporaryFolder out;
  train_step(trials[0]->config, *prepared[0], 1, fresh_start(trials[0]->config, *prepared[0]).state, out.path().string());
  StateSource source;
  source.kind = StateSource::Kind::checkpoint;
  source.path = checkpoint_folders(out.path().string()).begin()->second;
  return train_step(trials[1]->config, *prepared[1], 2, source, out.path().string());
}

double largest_difference(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  std::vector<double> x(a.size() / sizeof(double)), y(b.size() / sizeof(double));
  std::memcpy(x.data(), a.data(), a.size());
  std::memcpy(y.data(), b.data(), b.size());
  double out = x.size() == y.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) out = std::max(out, std::abs(x[i] - y[i]));
  return out;
}

// A step under one mesh, and one from its checkpoint under another, against two of the sequential program. Whether they could be tried.
bool expect_to_resume(Random& random, const std::vector<Mesh>& all, const std::string& model) {
  const Mesh first = one_of(random, all), second = one_of(random, all);
  const Mesh both{std::max(first.pipe, second.pipe), 1, std::max(first.context, second.context), std::max(first.tensor, second.tensor)};
  std::vector<std::string> sizes = draw_sizes(random, both, model);
  sizes.insert(sizes.end(), {"learning_rate=1e-2", "warmup=0", coin(random, 0.5) ? "clip=0.1" : "clip=0"});
  const std::optional<Trial> one = draw_trial(random, first, model, sizes, 24), other = draw_trial(random, second, model, sizes, 24);
  if (!one || !other) return false;
  const std::optional<Prepared> prepared = prepared_for(one->config), then = prepared_for(other->config);
  if (!prepared || !then) return false;
  SCOPED_TRACE(concat(one->text, "\n", other->text));
  try {
    const Prepared alone = prepare_sequential(one->config, builtin_models(), 1);
    const State expected = train_twice({&*one, &*one}, {&alone, &alone});
    const State found = train_twice({&*one, &*other}, {&*prepared, &*then});
    EXPECT_EQ(found.size(), expected.size());
    for (const auto& [name, bytes] : expected) {
      if (name == "step") continue;
      EXPECT_LE(largest_difference(found.at(name), bytes), 1e-8) << name;
    }
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();  // here, where the trace still says what was tried
  }
  return true;
}

TEST_P(Meshes, ResumeEachOthersCheckpoints) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  Random random(seed);
  std::vector<Mesh> all = meshes(8);
  if (GetParam() == "mlp") std::erase_if(all, [](const Mesh& mesh) { return mesh.context > 1; });
  int tried = 0;
  for (int trial = 0; trial < 2000 && tried < (test::is_soak() ? 400 : 8); ++trial) tried += expect_to_resume(random, all, GetParam());
  EXPECT_GE(tried, 5);
  std::printf("%d pairs of meshes, seed %llu\n", tried, static_cast<unsigned long long>(seed));
}

INSTANTIATE_TEST_SUITE_P(Models, Meshes, testing::Values("gpt", "t5", "mlp"), [](const auto& test) { return test.param; });

}  // namespace
}  // namespace penstock
