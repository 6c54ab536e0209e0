// SPDX-License-Identifier: Apache-2.0
// Texts with images: micro-batches with different numbers of images, encoded in parts, have the loss and gradients of one padded batch.
#include <gtest/gtest.h>

#include <numeric>

#include "base/text.h"
#include "batch/module_plan.h"
#include "config/compile.h"
#include "data/image_text_dataset.h"
#include "driver/check.h"
#include "models/registry.h"
#include "penstock/compile.h"
#include "penstock/step.h"
#include "support/random_schedule.h"
#include "torch/run_step.h"

namespace penstock {
namespace {

// The samples of a list, whatever the step says.
class ListedSamples : public DataSource {
 public:
  ListedSamples(std::shared_ptr<const Dataset> data, std::vector<std::int64_t> samples)
      : data_(std::move(data)), samples_(std::move(samples)) {}
  void fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows, std::span<std::byte> out) const override {
    StepInput listed = input;
    listed.samples = samples_;
    data_->fill(port, listed, first_row, rows, out);
  }

 private:
  std::shared_ptr<const Dataset> data_;
  std::vector<std::int64_t> samples_;
};

Config config_of(int actors) {
  return parse_config(concat("[model]\nname = \"multimodal\"\ninput = \"images\"\nlayers = 4\nvision_layers = 4\nwidth = 16\nheads = 2\n"
                             "context = 32\nimages = 3\nimage_size = 8\nimage_tokens = 2\n[train]\ndtype = \"f64\"\nbatch = 8\n"
                             "[pipeline]\nschedule = \"interleaved-1f1b\"\nchunks = 2\nmicrobatches = 4\nactors = ",
                             actors, "\n"),
                      "test", {}, builtin_models());
}

struct ImageBatch {
  std::vector<std::int64_t> samples;
  std::vector<BatchShape> shapes;  // of its micro-batches, two samples each
};

// Samples from `first` on, without those that have images where `images` says so.
ImageBatch batch_from(const Dataset& data, std::int64_t first, bool images) {
  ImageBatch out;
  for (std::int64_t sample = first; out.samples.size() < 8; ++sample)
    if (images || data.images(sample) == 0) out.samples.push_back(sample);
  for (std::size_t i = 0; i < 8; i += 2) {
    const std::int64_t a = out.samples[i], b = out.samples[i + 1];
    out.shapes.push_back({2, std::max(data.length(a), data.length(b)), 0, data.images(a) + data.images(b), 2});
  }
  return out;
}

// The step of the batch under a table that is searched for it; `split`: of split backwards, on stages that go over the actors and back.
Program planned_step(const Prepared& prepared, const ImageBatch& batch, int actors, bool split, Recompute recompute) {
  ModuleProblem problem = module_problem(batch.shapes, {.part_fixed = 1, .fixed = 1}, actors, 1, 1);
  problem.folded = problem.split = split;
  const Schedule table = schedule_of(problem, search_modules(problem, {.rollouts = 50, .nodes = 100}).table);
  std::vector<Graph> steps;
  std::vector<int> shape_class;
  for (const BatchShape& shape : batch.shapes) {
    shape_class.push_back(static_cast<int>(steps.size()));
    steps.push_back(gradient_step(
        *prepared.model, {2, static_cast<int>(shape.input), 1, BatchCount::port, {.parts = even_parts(shape.images, shape.part)}}));
  }
  return compile(steps, shape_class, table, {.recompute = recompute});
}

void expect_gradients(std::int64_t first, bool images) {
  for (const int actors : {1, 2, 4}) {
    const Config config = config_of(actors);
    const Prepared prepared = prepare(config, builtin_models()), whole = prepare_sequential(config, builtin_models());
    const auto drawn = std::make_shared<DrawnImagesDataset>(image_ports_of(data_of(config, *prepared.model)), 8, 3);
    const ImageBatch batch = batch_from(*drawn, first, images);
    const auto data = std::make_shared<ListedSamples>(drawn, batch.samples);
    const StepGradients expected = test::step_on(data, config, whole, compile_gradients(config, whole));
    const auto expect_equal = [&](const Program& program, const std::string& what) {
      const Comparison difference = compare(test::step_on(data, config, prepared, program), expected);
      EXPECT_LT(difference.loss_difference, 1e-12) << actors << " actors, " << what;
      EXPECT_LT(difference.gradient_difference, 1e-10) << actors << " actors, " << what << ": " << difference.worst;
    };
    expect_equal(compile_gradients(config, prepared), "padded");
    for (const bool split : {false, true})
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::inputs})
        expect_equal(planned_step(prepared, batch, actors, split, recompute),
                     concat(split ? "split" : "whole", ", recompute ", static_cast<int>(recompute)));
  }
}

TEST(ImageClasses, GradientsAreThoseOfOnePaddedBatch) {
  for (const std::int64_t first : {0, 8}) expect_gradients(first, true);
}

// Nothing reads the encoder's parameters then: their gradients are zero.
TEST(ImageClasses, ABatchWithoutImages) {
  expect_gradients(0, false);
}

}  // namespace
}  // namespace penstock
