// SPDX-License-Identifier: Apache-2.0
// Micro-batches of different shapes in one step: loss and gradients are those of one padded batch.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "base/text.h"
#include "config/compile.h"
#include "driver/check.h"
#include "models/registry.h"
#include "penstock/compile.h"
#include "penstock/step.h"
#include "schedule/generators.h"
#include "torch/run_step.h"

namespace penstock {
namespace {

// Sample i has lengths[i] tokens and as many targets, behind which everything is padding.
class DrawnSequences : public DataSource {
 public:
  explicit DrawnSequences(std::vector<std::int64_t> lengths) : lengths_(std::move(lengths)) {}

  void fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows, std::span<std::byte> out) const override {
    const std::span<std::int64_t> values(reinterpret_cast<std::int64_t*>(out.data()), out.size() / sizeof(std::int64_t));
    const std::string_view name = data_name(port);
    if (name == "seed") {
      values[0] = input.seed;
    } else if (name == "count") {
      values[0] = std::accumulate(lengths_.begin(), lengths_.end(), std::int64_t{0});
    } else if (name == "rows") {
      std::iota(values.begin(), values.end(), first_row);
    } else {
      const bool targets = name == "targets";
      const std::int64_t length = std::ssize(values) / rows;
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t i = 0; i < length; ++i) {
          const bool padding = i >= lengths_.at(first_row + r);
          values[r * length + i] = padding ? (targets ? kIgnored : 0) : (31 * (first_row + r) + 7 * (i + targets)) % 256;
        }
    }
  }

 private:
  std::vector<std::int64_t> lengths_;
};

TEST(ShapeClasses, GradientsAreThoseOfOnePaddedBatch) {
  const Config config = parse_config(
      "[model]\nname = \"gpt\"\nlayers = 4\nwidth = 16\nheads = 2\ncontext = 32\n[train]\ndtype = \"f64\"\nbatch = "
      "12\n[pipeline]\nmicrobatches = 4\n",
      "test", {}, builtin_models());
  const std::vector<std::int64_t> lengths = {32, 30, 17, 16, 12, 9, 8, 8, 5, 3, 1, 0};
  const auto data = std::make_shared<DrawnSequences>(lengths);
  const Prepared whole = prepare_sequential(config, builtin_models());
  const StepGradients expected = test::step_on(data, config, whole, compile_gradients(config, whole));

  struct Shape {
    int rows, length;
  };
  const std::vector<Shape> shapes = {{2, 32}, {3, 17}, {1, 9}};
  const std::vector<int> shape_class = {0, 1, 2, 1, 1};  // 2 + 3 + 1 + 3 + 3 samples
  for (const char* schedule : {"sequential", "gpipe", "1f1b", "zb-h1"}) {
    const int actors = std::string(schedule) == "sequential" ? 1 : 2;
    const Prepared prepared = prepare(config, make_schedule(schedule, {.actors = actors, .microbatches = 5}), 5, builtin_models());
    std::vector<Graph> steps;
    for (const Shape& shape : shapes) steps.push_back(gradient_step(*prepared.model, {shape.rows, shape.length, 1, BatchCount::port}));
    const Program program = compile(steps, shape_class, prepared.schedule);
    const StepGradients found = test::step_on(data, config, prepared, program);
    const Comparison difference = compare(found, expected);
    EXPECT_LT(difference.loss_difference, 1e-12) << schedule;
    EXPECT_LT(difference.gradient_difference, 1e-10) << schedule << ", " << difference.worst;
  }
}

// Devices share each micro-batch in parts of one class, hold state in shares, or split tensors.
TEST(ShapeClasses, GradientsOnMeshesAreThoseOfOnePaddedBatch) {
  const std::string text =
      "[model]\nname = \"gpt\"\nlayers = 4\nwidth = 16\nheads = 2\ncontext = 32\n[train]\ndtype = \"f64\"\nbatch = "
      "16\n[pipeline]\nmicrobatches = 4\n";
  const std::vector<std::int64_t> lengths = {32, 30, 31, 2, 17, 16, 12, 9, 8, 8, 9, 9, 5, 3, 1, 0};
  const auto data = std::make_shared<DrawnSequences>(lengths);
  const Config small = parse_config(text, "test", {}, builtin_models());
  const Prepared whole = prepare_sequential(small, builtin_models());
  const StepGradients expected = test::step_on(data, small, whole, compile_gradients(small, whole));
  struct Shape {
    int rows, length;
  };
  struct Mesh {
    std::vector<const char*> settings;
    std::vector<Shape> shapes;
    std::vector<int> shape_class;
  };
  const std::vector<Shape> halves = {{2, 32}, {3, 17}, {1, 9}, {2, 5}}, wholes = {{4, 32}, {5, 17}, {1, 9}};
  const std::vector<int> of_halves = {0, 1, 2, 3}, of_wholes = {0, 1, 1, 2, 2};
  for (const Mesh& mesh : std::vector<Mesh>{{{"pipeline.data=2"}, halves, of_halves},
                                            {{"pipeline.data=2", "zero=1"}, halves, of_halves},
                                            {{"pipeline.data=2", "zero=2"}, halves, of_halves},
                                            {{"pipeline.data=2", "zero=3"}, halves, of_halves},
                                            {{"pipeline.tensor=2"}, wholes, of_wholes},
                                            {{"pipeline.data=2", "pipeline.tensor=2"}, halves, of_halves}})
    for (const char* schedule : {"1f1b", "zb-h1"}) {
      std::vector<Override> overrides;
      for (const char* setting : mesh.settings) overrides.push_back(parse_override(setting));
      const Config config = parse_config(text, "test", overrides, builtin_models());
      const int microbatches = static_cast<int>(mesh.shape_class.size());
      Prepared prepared =
          prepare(config, make_schedule(schedule, {.actors = 2, .microbatches = microbatches}), microbatches, builtin_models());
      spread_actors(config, prepared);
      std::vector<Graph> steps;
      for (const Shape& shape : mesh.shapes)
        steps.push_back(gradient_step(*prepared.model, {shape.rows, shape.length, 1, BatchCount::port}));
      const Program program = compile(steps, mesh.shape_class, prepared.schedule, prepared.options);
      const StepGradients found = test::step_on(data, config, prepared, program);
      const Comparison difference = compare(found, expected);
      const std::string name = concat(join({mesh.settings.begin(), mesh.settings.end()}, " "), ", ", schedule);
      EXPECT_LT(difference.loss_difference, 1e-12) << name;
      EXPECT_LT(difference.gradient_difference, 1e-10) << name << ", " << difference.worst;
    }
}

}  // namespace
}  // namespace penstock
