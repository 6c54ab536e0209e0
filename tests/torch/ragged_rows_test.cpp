// SPDX-License-Identifier: Apache-2.0
// Rows that hold several samples, maybe cut into slices, and pairs of an input and a target: loss and gradients are those of one padded
// batch.
#include <gtest/gtest.h>

#include <numeric>

#include "base/text.h"
#include "batch/chunk_schedule.h"
#include "config/compile.h"
#include "data/row_ports.h"
#include "driver/check.h"
#include "models/registry.h"
#include "penstock/compile.h"
#include "penstock/step.h"
#include "schedule/generators.h"
#include "support/errors.h"
#include "torch/run_step.h"
#include "transform/slices.h"

namespace penstock {
namespace {

// Tokens of its row, how many of the last of these have a target that counts, and, of a pair, tokens of its input.
struct Sample {
  std::int64_t length = 0, counted = 0, input = 0;
};
using Samples = std::vector<Sample>;
using Rows = std::vector<std::vector<std::int64_t>>;  // of the batch: the samples that each holds
using Cuts = std::vector<std::vector<std::int64_t>>;  // the lengths of each one's slices, which make up the row

class DrawnRows : public DataSource {
 public:
  DrawnRows(Samples samples, Rows rows, bool several) : samples_(std::move(samples)), rows_(std::move(rows)), several_(several) {}

  void fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows, std::span<std::byte> out) const override {
    const std::span<std::int64_t> values(reinterpret_cast<std::int64_t*>(out.data()), out.size() / sizeof(std::int64_t));
    if (data_name(port) == "seed") {
      values[0] = input.seed;
    } else if (data_name(port) == "count") {
      values[0] = 0;
      for (const Sample& sample : samples_) values[0] += sample.counted;
    } else {
      const std::int64_t width = std::ssize(values) / rows;
      for (std::int64_t r = 0; r < rows; ++r) fill_row(data_name(port), rows_.at(first_row + r), values.subspan(r * width, width));
    }
  }

 private:
  void fill_row(std::string_view port, const std::vector<std::int64_t>& row, std::span<std::int64_t> out) const {
    std::vector<RowPlace> places;
    RowPlace next;
    for (const std::int64_t s : row) {
      next.length = samples_[s].length;
      next.input_length = samples_[s].input;
      places.push_back(next);
      next.begin += next.length;
      next.input_begin += next.input_length;
    }
    if (port == "rows" && !several_) {
      out[0] = row[0];
      return;
    }
    if (fill_row_port(port, places, out)) return;
    std::ranges::fill(out, port == "targets" ? kIgnored : 0);
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool inputs = port == "inputs";
      const std::int64_t length = inputs ? places[i].input_length : places[i].length;
      for (std::int64_t t = 0; t < length; ++t) out[(inputs ? places[i].input_begin : places[i].begin) + t] = value(port, row[i], t);
    }
  }

  std::int64_t value(std::string_view port, std::int64_t sample, std::int64_t token) const {
    if (port == "rows") return sample;
    const Sample& of = samples_[sample];
    if (port == "targets" && token < of.length - of.counted) return kIgnored;
    return (31 * sample + 7 * (token + (port == "targets")) + 3 * (port == "inputs")) % 256;
  }

  Samples samples_;
  Rows rows_;
  bool several_;
};

std::int64_t longest(const Samples& samples, std::int64_t Sample::* length) {
  std::int64_t out = 1;
  for (const Sample& sample : samples) out = std::max(out, sample.*length);
  return out;
}

// The lengths to which the rows of a micro-batch are padded.
struct RowShape {
  std::int64_t tokens = 0, inputs = 0, rows = 1;
  std::vector<std::int64_t> slices = {};
  auto operator<=>(const RowShape&) const = default;
};

RowShape ragged_shape(const Samples& samples, const std::vector<std::int64_t>& row) {
  constexpr std::int64_t kRound = 8;
  RowShape sum;
  for (const std::int64_t s : row) {
    sum.tokens += samples[s].length;
    sum.inputs += samples[s].input;
  }
  const auto up = [](std::int64_t length) { return std::max<std::int64_t>((length + kRound - 1) / kRound, 1) * kRound; };
  return {up(sum.tokens), longest(samples, &Sample::input) > 1 ? up(sum.inputs) : 0};
}

// The table of rows in so many slices; `again`: with an R before each backward.
Schedule table_of(const Cuts& cuts, int actors, bool again) {
  std::vector<int> chunks;
  for (const auto& row : cuts) chunks.push_back(static_cast<int>(row.size()));
  Schedule out = sequence_schedule(actors, chunks);
  for (std::vector<Action>& row : out.actors)
    for (std::size_t i = 0; again && i < row.size(); ++i)
      if (row[i].kind == Kind::B) row.insert(row.begin() + static_cast<std::ptrdiff_t>(i++), {row[i].stage, Kind::R, row[i].microbatch});
  return out;
}

Graph in_slices(const Graph& step, const std::vector<std::int64_t>& lengths) {
  const std::vector<LayoutAxis> axes = {{"slice", static_cast<int>(lengths.size()), {}}};
  return unroll_slices(prepare_stages(step, true, axes).step, std::ssize(lengths), lengths);
}

class RaggedRows : public testing::Test {
 protected:
  void expect_padded(const std::string& model, const Samples& samples, const Rows& microbatches, const std::vector<std::string>& schedules,
                     int actors, Recompute recompute = Recompute::none) {
    std::vector<Schedule> tables;
    for (const std::string& schedule : schedules)
      tables.push_back(make_schedule(schedule, {.actors = actors, .microbatches = static_cast<int>(microbatches.size())}));
    expect_padded(model, samples, microbatches, tables, {}, recompute);
  }

  void expect_padded(const std::string& model, const Samples& samples, const Rows& microbatches, const std::vector<Schedule>& tables,
                     const Cuts& cuts = {}, Recompute recompute = Recompute::none) {
    const bool of_pairs = longest(samples, &Sample::input) > 1;
    const Config config = parse_config(concat("[model]\n", model, "\ncontext = 32\n[data]\npairs = ", of_pairs ? "[\"pairs\"]" : "[]",
                                              "\n[train]\ndtype = \"f64\"\nbatch = ", samples.size(), "\n[pipeline]\nmicrobatches = 1\n"),
                                       "test", {}, builtin_models());
    Rows alone;
    for (std::size_t s = 0; s < samples.size(); ++s) alone.push_back({static_cast<std::int64_t>(s)});
    const Prepared whole = prepare_sequential(config, builtin_models());
    const StepGradients expected =
        test::step_on(std::make_shared<DrawnRows>(samples, alone, false), config, whole, compile_gradients(config, whole));
    for (const Schedule& table : tables) {
      const Prepared prepared = prepare(config, table, std::ssize(microbatches), builtin_models());
      std::vector<RowShape> shapes;
      std::vector<int> shape_class;
      std::vector<Graph> steps;
      for (std::size_t m = 0; m < microbatches.size(); ++m) {
        RowShape shape = ragged_shape(samples, microbatches[m]);
        if (!cuts.empty()) shape.slices = cuts[m];
        const auto known = std::ranges::find(shapes, shape);
        shape_class.push_back(static_cast<int>(known - shapes.begin()));
        if (known != shapes.end()) continue;
        shapes.push_back(shape);
        steps.push_back(gradient_step(*prepared.model,
                                      {1, static_cast<int>(shape.tokens), 1, BatchCount::port, {.several = true, .inputs = shape.inputs}}));
        if (!cuts.empty()) steps.back() = in_slices(steps.back(), shape.slices);
      }
      const Program program = compile(steps, shape_class, prepared.schedule, {.recompute = recompute});
      const StepGradients found = test::step_on(std::make_shared<DrawnRows>(samples, microbatches, true), config, prepared, program);
      const Comparison difference = compare(found, expected);
      EXPECT_LT(difference.loss_difference, 1e-12) << table.name << " on " << table.actors.size();
      EXPECT_LT(difference.gradient_difference, 1e-10) << table.name << " on " << table.actors.size() << ", " << difference.worst;
    }
  }

  const std::vector<std::string> one = {"sequential"}, many = {"gpipe", "1f1b", "zb-h1"};
  const std::string gpt = "name = \"gpt\"\nlayers = 4\nwidth = 16\nheads = 2";
  const std::string t5 = "name = \"t5\"\nlayers = 2\nwidth = 16\nheads = 2\nbuckets = 8\ndistance = 12";
  // Some count only their last targets, one counts none.
  const Samples texts = {{32, 32}, {30, 4}, {17, 17}, {16, 0}, {12, 12}, {9, 9}, {8, 1}, {8, 8}, {5, 5}, {3, 3}, {1, 1}};
  const Samples pairs = {{32, 32, 5}, {3, 3, 32}, {17, 17, 9}, {0, 0, 11}, {12, 12, 1}, {1, 1, 16}, {8, 8, 8}};
};

TEST_F(RaggedRows, OfTextsGiveTheGradientsOfThePaddedBatch) {
  const Rows rows = {{0, 10}, {3, 2}, {1}, {4, 5, 6, 7}, {9, 8}};
  expect_padded(gpt, texts, rows, one, 1);
  for (const int actors : {2, 4}) expect_padded(gpt, texts, rows, many, actors);
  expect_padded(gpt, texts, rows, {"1f1b"}, 2, Recompute::inputs);
}

TEST_F(RaggedRows, DropWhatThePaddedBatchDrops) {
  expect_padded(gpt + "\ndropout = 0.1", texts, {{0, 10}, {3, 2}, {1}, {4, 5, 6, 7}, {9, 8}}, many, 2);
  expect_padded(gpt + "\ndropout = 0.1", texts, {{0, 10, 3, 2, 1, 4, 5, 6, 7, 9, 8}}, one, 1);
}

TEST_F(RaggedRows, OfPairsGiveTheGradientsOfThePaddedBatch) {
  const Rows rows = {{0, 3}, {1, 2}, {4, 5, 6}};
  expect_padded(t5, pairs, rows, one, 1);
  for (const int actors : {2, 4}) expect_padded(t5, pairs, rows, many, actors);
  expect_padded(t5, pairs, rows, {"1f1b"}, 2, Recompute::inputs);
}

// Rows in one, two and three slices in one step; some samples lie in several of them, some slices have tails and short samples.
TEST_F(RaggedRows, InSlicesOfTheirOwnNumberGiveTheGradientsOfThePaddedBatch) {
  const Rows two = {{0, 10, 1, 2, 3}, {4, 5, 6, 7, 9, 8}};
  const Cuts cut = {{16, 80}, {48}};
  expect_padded(gpt, texts, two, {table_of(cut, 2, false)}, cut);
  const Rows rows = {{1}, {0, 10}, {4, 5, 6, 7}, {3, 2}, {9, 8}};
  const Cuts cuts = {{8, 8, 16}, {16, 24}, {16, 24}, {40}, {8}};
  for (const int actors : {1, 2, 4}) expect_padded(gpt + "\ndropout = 0.1", texts, rows, {table_of(cuts, actors, false)}, cuts);
  expect_padded(gpt, texts, rows, {table_of(cuts, 2, /*again=*/true)}, cuts);
  expect_padded(gpt, texts, rows, {table_of(cuts, 2, false)}, cuts, Recompute::inputs);
  Cuts alone;  // each in one
  for (const auto& row : cuts) alone.push_back({std::accumulate(row.begin(), row.end(), std::int64_t{0})});
  expect_padded(gpt, texts, rows, {table_of(alone, 2, false)}, alone);
}

TEST_F(RaggedRows, MayBeFewerThanActorsOrOfOneSample) {
  for (const std::string& model : {gpt, t5}) {
    const Samples& samples = model == gpt ? texts : pairs;
    Rows two = {{0, 2, 4, 6}, {1, 3, 5}};
    for (std::int64_t s = 7; s < std::ssize(samples); ++s) two[1].push_back(s);
    expect_padded(model, samples, two, many, 4);
    expect_padded(model, {samples[2]}, {{0}}, many, 2);
    // A row without a target of its own, and one without a sample.
    expect_padded(model, {samples[2], samples[3]}, {{0}, {1}, {}}, many, 2);
  }
}

TEST_F(RaggedRows, AreRefusedByOtherModels) {
  const auto refusal = [](const std::string& model, const TextRows& rows) {
    const Config config = parse_config(concat("[model]\nname = \"", model, "\"\n"), "test", {}, builtin_models());
    const Prepared prepared = prepare_sequential(config, builtin_models());
    return test::message_of([&] { gradient_step(*prepared.model, {1, 16, 1, BatchCount::port, rows}); });
  };
  EXPECT_EQ(refusal("moe", {.several = true}),
            "the model does not read rows of several texts\n  a sample's loss would not be that of the sample alone\n"
            "  hint: pad all samples to the context: --set batch.planner=pad");
  EXPECT_EQ(refusal("t5", {.several = true}), refusal("moe", {.several = true}));
  EXPECT_EQ(refusal("mlp", {.several = true}),
            "the model does not read rows of several texts\n  a sample's loss would not be that of the sample alone\n"
            "  hint: give each sample a row of its own: --set batch.planner=dynapipe");
  // Capacities and balance are of a row's tokens, halves and stretches of its length.
  for (const char* model : {"moe", "t5", "multimodal"})
    EXPECT_EQ(refusal(model, {.shorter = true}),
              "the model does not read texts in rows that are shorter than its context\n"
              "  a sample's loss would depend on the padding behind it, and so on the samples beside it\n"
              "  hint: pad all samples to the context: --set batch.planner=pad");
  EXPECT_EQ(refusal("gpt", {.inputs = 8}),
            "the model does not read pairs\n  a sample's loss would not be that of the sample alone\n  hint: give it texts");
  EXPECT_EQ(
      refusal("mlp", {.several = true, .inputs = 8}),
      "the model does not read rows of several pairs\n  a sample's loss would not be that of the sample alone\n  hint: give it texts");
}

}  // namespace
}  // namespace penstock
