// SPDX-License-Identifier: Apache-2.0
// Backwards that compute some layers of a stage again, as many for each micro-batch, slice and stage as is drawn: planned batches have the
// loss and gradients of the sequential step, and keep less.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "base/text.h"
#include "driver/batch_planner.h"
#include "driver/check.h"
#include "lower/stage_bytes.h"
#include "models/registry.h"
#include "support/sample.h"
#include "support/seed.h"
#include "support/temporary.h"
#include "torch/test_cluster.h"

namespace penstock {
namespace {

using Settings = std::vector<std::string>;

Config config_of(const Settings& settings) {
  std::vector<Override> overrides;
  for (const std::string& setting : settings) {
    const std::vector<Override> mesh = setting.starts_with("mesh=") ? parse_mesh(setting.substr(5)) : std::vector{parse_override(setting)};
    overrides.insert(overrides.end(), mesh.begin(), mesh.end());
  }
  return load_config("", overrides, builtin_models());
}

StepGradients gradients_of(const Prepared& prepared, const Program& program, const std::shared_ptr<const Dataset>& data, StepInput input) {
  const auto cluster = test::make_test_cluster(program.devices.size(), data);
  cluster->load(program);
  cluster->set_state({.seed = 0, .parameters = prepared.parameters});
  return step_gradients(program, *cluster, prepared.parameters, input);
}

// The planned batch with drawn layers beside the sequential step.
void expect_equal(const Settings& settings, std::mt19937_64& random) {
  SCOPED_TRACE(join(settings, " "));
  const Config config = config_of(settings);
  const Prepared prepared = prepare(config, builtin_models()), whole = prepare_sequential(config, builtin_models());
  const std::shared_ptr<const Dataset> data = make_dataset(config, *prepared.model);
  const StepInput input{.step = 1, .samples = data->training_samples(0)};
  const StepGradients expected = gradients_of(whole, compile_gradients(config, whole), data, input);
  BatchStep step = batch_planner(config, prepared, *data)(input.samples);
  const std::size_t stages = at(step.table.stages() / step.table.slices);
  for (BatchShape& shape : step.shapes) {
    const std::size_t images = at(config.batch.part > 0 ? (shape.images + shape.part - 1) / shape.part : 0);
    shape.again.resize(config.batch.part > 0 ? at(config.pipeline.table.actors) * (images + 1)
                                             : stages * std::max(shape.slices.size(), std::size_t{1}));
    for (int& layers : shape.again) layers = static_cast<int>(random() % 4);
  }
  EXPECT_GT(layers_again(step), 0);
  StepInput cut = input;
  cut.samples = step.samples;
  cut.begins = step.begins;
  const Comparison difference = compare(gradients_of(prepared, gradient_program(config, prepared, step), data, cut), expected);
  EXPECT_LT(difference.loss_difference, 1e-12);
  EXPECT_LT(difference.gradient_difference, 1e-10) << difference.worst;
}

std::string texts(const test::TemporaryFolder& folder, std::mt19937_64& random) {
  std::string lines;
  for (int i = 0; i < 24; ++i) {
    lines += "{\"text\": \"";
    for (std::int64_t left = 2 + static_cast<std::int64_t>(random() % 70); left > 0; --left)
      lines += static_cast<char>('a' + random() % 26);
    lines += "\"}\n";
  }
  const std::string file = folder.file("texts.jsonl");
  write_file(file, lines);
  return file;
}

TEST(LayersAgain, EqualTheSequentialStep) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  const test::TemporaryFolder folder;
  const Settings texts_of = {concat("data.documents=", texts(folder, random)),
                             "data.validation=0",
                             "model.name=gpt",
                             "layers=4",
                             "width=16",
                             "heads=2",
                             "model.context=64",
                             "batch=8",
                             "microbatches=4",
                             "dtype=f64",
                             "batch.round=8"};
  const Settings images = {
      "model.name=multimodal", "input=images", "model.layers=4", "vision_layers=4", "width=16",  "heads=2",  "model.context=48",
      "model.images=3",        "image_size=8", "batch=8",        "microbatches=4",  "dtype=f64", "chunks=2", "batch.planner=dip",
      "batch.part=2"};
  test::Sample sample(1);
  for (const Settings& more :
       std::vector<Settings>{{"batch.planner=infinipipe", "batch.fixed=0", "actors=1"},
                             {"batch.planner=infinipipe", "batch.fixed=0", "actors=2", "batch.slices=8"},
                             {"batch.planner=infinipipe", "batch.fixed=0", "actors=2", "dropout=0.1"},
                             {"batch.planner=infinipipe", "batch.fixed=0", "mesh=pipe=2,context=2", "positions=rotary"},
                             {"batch.planner=infinipipe", "batch.fixed=0", "mesh=pipe=2,tensor=2"},
                             {"batch.planner=infinipipe", "batch.fixed=0", "mesh=pipe=2,data=2", "zero=3"},
                             {"batch.planner=dynapipe", "actors=2"},
                             {"batch.planner=balanced", "actors=2", "schedule=zb-h1"},
                             {"schedule=interleaved-1f1b", "actors=2"},
                             {"schedule=zb-v", "actors=2"},
                             {"schedule=zb-v", "mesh=pipe=2,tensor=2"}}) {
    if (!sample.takes()) continue;
    Settings settings = more[0].starts_with("schedule") ? images : texts_of;
    settings.insert(settings.end(), more.begin(), more.end());
    expect_equal(settings, random);
  }
}

// Each layer that is computed again is less to keep, the first as much as the last.
TEST(LayersAgain, KeepLess) {
  const Config config =
      config_of({"model.name=gpt", "layers=8", "width=16", "heads=2", "model.context=32", "batch=4", "microbatches=2", "actors=2"});
  const Prepared prepared = prepare(config, builtin_models());
  ShapePrograms programs(config, prepared);
  const Schedule table = make_schedule("1f1b", {.actors = 2, .microbatches = 1});
  std::vector<double> live;
  for (int layers = 0; layers <= 4; ++layers)
    live.push_back(stage_bytes(programs.class_of({.samples = 2, .input = 24, .again = {layers, 0}}, table)[0])[0].live);
  for (int layers = 1; layers <= 4; ++layers) EXPECT_EQ(live[at(layers - 1)] - live[at(layers)], (live[0] - live[4]) / 4) << layers;
  EXPECT_LT(live[4], live[0] / 4);
  const auto bytes = [&](std::vector<int> again) {
    const Program program = programs
                                .program(std::vector<BatchShape>(2, {.samples = 2, .input = 24, .again = std::move(again)}),
                                         make_schedule("1f1b", {.actors = 2, .microbatches = 2}))
                                .program;
    return program.devices[0].device_bytes();
  };
  EXPECT_LT(bytes({4, 4}), bytes({2, 2}));
  EXPECT_LT(bytes({2, 2}), bytes({}));
}

}  // namespace
}  // namespace penstock
