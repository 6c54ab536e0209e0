// SPDX-License-Identifier: Apache-2.0
// Many drawn batches, each with a program of its own: proven, within its cap, with the memory that it planned, and leaving nothing behind.
// PENSTOCK_SEED chooses what is drawn; with PENSTOCK_SOAK there are 10,000 batches, and 2,000 programs run one after the other.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <random>

#include "base/text.h"
#include "driver/batch_steps.h"
#include "driver/outputs.h"
#include "models/registry.h"
#include "schedule/generators.h"
#include "support/sample.h"
#include "support/seed.h"
#include "support/temporary.h"
#include "torch/test_cluster.h"

namespace penstock {
namespace {

// Sample i has lengths[i] tokens and as many targets.
class DrawnLengths : public Dataset {
 public:
  DrawnLengths(std::int64_t context, std::vector<std::int64_t> lengths) : context_(context), lengths_(std::move(lengths)) {}

  std::vector<std::int64_t> training_samples(std::int64_t) const override { return {}; }
  std::vector<std::int64_t> validation_samples(std::int64_t) const override { return {}; }
  std::int64_t tokens() const override { return context_; }
  std::string summary() const override { return "drawn lengths"; }
  std::int64_t length(std::int64_t sample) const override { return lengths_.at(static_cast<std::size_t>(sample)); }
  void fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows, std::span<std::byte> out) const override {
    const std::span<std::int64_t> values(reinterpret_cast<std::int64_t*>(out.data()), out.size() / sizeof(std::int64_t));
    const std::string_view name = data_name(port);
    for (std::int64_t i = 0; i < std::ssize(values); ++i) {
      const std::int64_t width = std::max<std::int64_t>(1, std::ssize(values) / std::max<std::int64_t>(rows, 1));
      const std::int64_t sample = rows > 0 && !input.samples.empty() ? sample_in_row(input, first_row + i / width) : 0;
      if (name == "tokens" || name == "targets")
        values[i] = i % width < length(sample) ? (31 * sample + 7 * (i % width)) % 64 : name == "targets" ? kIgnored : 0;
      else
        values[i] = name == "rows" ? sample : std::accumulate(lengths_.begin(), lengths_.end(), std::int64_t{0});
    }
  }

 private:
  std::int64_t context_;
  std::vector<std::int64_t> lengths_;
};

Config config_of(int actors, int samples, std::int64_t context, double memory, const std::string& planner = "dynapipe") {
  return parse_config(concat("[model]\nname = \"gpt\"\nlayers = 4\nwidth = 16\nheads = 2\nvocabulary = 64\ncontext = ", context,
                             "\n[train]\nbatch = ", samples, "\n[batch]\nplanner = \"", planner, "\"\nclasses = 60\nmemory = ", memory,
                             "\n[pipeline]\nactors = ", actors, "\nmicrobatches = ", samples, "\n"),
                      "test", {}, builtin_models());
}

std::vector<std::int64_t> draw_lengths(std::mt19937_64& random, std::size_t count, std::int64_t context) {
  std::lognormal_distribution<double> length(std::log(static_cast<double>(context) / 4), 1);
  std::vector<std::int64_t> out(count);
  for (std::int64_t& one : out) one = std::clamp<std::int64_t>(std::llround(length(random)), 1, context);
  return out;
}

// The most tokens, padding counted, between the forwards and backwards of a device's micro-batches.
std::int64_t peak_tokens(const Program& program, const DeviceProgram& device) {
  std::vector<std::int64_t> tokens;  // by micro-batch
  for (const Port& port : program.data)
    if (data_name(port) == "tokens") tokens.push_back(port.type.elements());
  std::int64_t live = 0, peak = 0;
  for (const Instruction& i : device.instructions) {
    if (i.opcode != Opcode::run || !i.action) continue;
    if (i.kind == Kind::F) peak = std::max(peak, live += tokens.at(i.microbatch));
    if (i.kind == Kind::B) live -= tokens.at(i.microbatch);
  }
  EXPECT_EQ(live, 0);
  return peak;
}

TEST(BatchPrograms, OfDrawnBatchesAreProvenAndKeepTheirCap) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  constexpr std::int64_t kContext = 64;
  const int batches = test::is_soak() ? 10'000 : 200;
  for (int drawn = 0; drawn < batches;) {
    const int actors = 1 << random() % 3, samples = 1 + static_cast<int>(random() % 24);
    // From room for one micro-batch of the longest sample to room for all.
    const double cap = static_cast<double>(kContext * (1 + random() % (2 * samples)));
    const Config config = config_of(actors, samples, kContext, cap);
    const Prepared prepared = prepare(config, builtin_models());
    const DrawnLengths data(kContext, draw_lengths(random, 20 * static_cast<std::size_t>(samples), kContext));
    BatchSteps steps(config, prepared, data);
    std::vector<std::int64_t> batch(samples);
    for (int b = 0; b < 20; ++b, ++drawn) {
      std::iota(batch.begin(), batch.end(), std::int64_t{b} * samples);
      const BatchStep step = steps.step(batch);
      std::vector<std::int64_t> sorted = step.samples;
      std::ranges::sort(sorted);
      ASSERT_EQ(sorted, batch) << "each sample is there once";
      for (const DeviceProgram& device : step.program->devices)
        ASSERT_LE(static_cast<double>(peak_tokens(*step.program, device)), cap)
            << actors << " actors, " << samples << " samples, cap " << cap;
    }
  }
}

// Rows in slices of their own number, some of which are recomputed: making a program proves it.
TEST(BatchPrograms, InSlicesAreProven) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  constexpr std::int64_t kContext = 64;
  std::int64_t recomputed = 0, most = 0;
  // Three runs may need neither slices nor recomputation: then more are drawn.
  const auto is_enough = [&](int drawn) { return drawn >= (test::is_soak() ? 100 : 3) && recomputed > 0 && most > 1; };
  for (int drawn = 0; drawn < 100 && !is_enough(drawn); ++drawn) {
    const int actors = 1 << random() % 3, samples = 1 + static_cast<int>(random() % 12);
    Config config = config_of(actors, samples, kContext, static_cast<double>(kContext + random() % 64), "infinipipe");
    config.batch.round = 8;
    config.batch.fixed = 0;
    config.batch.recompute = Recompute::inputs;
    const Prepared prepared = prepare(config, builtin_models());
    const DrawnLengths data(kContext, draw_lengths(random, 8 * static_cast<std::size_t>(samples), kContext));
    BatchSteps steps(config, prepared, data);
    std::vector<std::int64_t> batch(samples);
    for (int b = 0; b < 8; ++b) {
      std::iota(batch.begin(), batch.end(), std::int64_t{b} * samples);
      const BatchStep step = steps.step(batch);
      std::vector<std::int64_t> sorted = step.samples;
      std::ranges::sort(sorted);
      ASSERT_EQ(sorted, batch) << "each sample is there once";
      recomputed += layers_again(step);
      for (const DeviceProgram& device : step.program->devices)
        recomputed += std::ranges::any_of(device.instructions, [](const Instruction& i) { return i.kind == Kind::R && i.action; });
      most = std::max<std::int64_t>(most, step.plan.schedule.slices);
    }
  }
  EXPECT_GT(recomputed, 0);
  EXPECT_GT(most, 1);
}

// The memory of this process, in bytes; `own` is no file's: a library's pages the system takes and brings back as other processes need
// memory.
struct Resident {
  std::int64_t all = 0, own = 0;
};

Resident resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t size = 0, resident = 0, of_files = 0;
  statm >> size >> resident >> of_files;
  return {resident * sysconf(_SC_PAGESIZE), (resident - of_files) * sysconf(_SC_PAGESIZE)};
}

TEST(BatchPrograms, RunInTheMemoryThatTheyPlannedAndLeaveNothingBehind) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  constexpr std::int64_t kContext = 96;
  constexpr int kSamples = 16;
  const int programs = test::is_soak() ? 2000 : 120, warm = programs / 3;
  Config config = config_of(2, kSamples, kContext, 0);
  config.batch.classes = 16;  // as many shapes as are kept have been met before the memory is measured first
  const Prepared prepared = prepare(config, builtin_models());
  std::vector<std::int64_t> lengths = draw_lengths(random, kSamples * static_cast<std::size_t>(programs), kContext);
  std::fill_n(lengths.begin(), kSamples, kContext);  // no batch is larger, so arenas have their last size from the first one on
  const auto data = std::make_shared<DrawnLengths>(kContext, lengths);
  BatchSteps steps(config, prepared, *data);
  const auto cluster = test::make_test_cluster(2, data);
  std::vector<std::int64_t> batch(kSamples);
  std::uint64_t loaded = 0;
  Resident resident;
  for (int p = 0; p < programs; ++p) {
    if (p == warm) resident = resident_bytes();
    std::iota(batch.begin(), batch.end(), std::int64_t{p} * kSamples);
    const BatchStep step = steps.step(batch);
    const std::uint64_t program = cluster->load(step.program);
    if (p > 0 && program != loaded) cluster->unload(loaded);
    loaded = program;
    if (p == 0) {
      StateSource state;
      state.parameters = prepared.parameters;
      cluster->set_state(state);
    }
    StepInput input;
    input.step = p + 1;
    input.samples = step.samples;
    for (const DeviceReport& device : cluster->step(program, input).devices) {
      EXPECT_GE(device.measured_bytes, device.planned_bytes);
      EXPECT_LE(static_cast<double>(device.measured_bytes), 1.03 * static_cast<double>(device.planned_bytes)) << "program " << p;
    }
  }
  EXPECT_LE(static_cast<double>(resident_bytes().own - resident.own), 0.02 * static_cast<double>(resident.all))
      << resident.all << " bytes after " << warm << " programs";
}

// So many devices for these samples of the batch.
struct DrawnGroup {
  int degree;
  std::vector<std::size_t> samples;
};

// Groups one after the other, in one micro-batch of the pipeline after the other.
PlannedBatch planned(const std::vector<DrawnGroup>& groups, const std::vector<std::int64_t>& batch, const Dataset& data, int actors) {
  PlannedBatch out;
  for (const auto& [degree, samples] : groups) {
    std::vector<SampleLengths> lengths;
    for (const std::size_t i : samples) lengths.push_back({data.length(batch[i]), 0});
    std::vector<std::size_t> all(samples.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    out.samples.push_back(samples);
    out.loads.push_back(ragged_load(lengths, all, 8));
    out.loads.back().shape.degree = degree;
  }
  out.schedule = make_schedule(actors > 1 ? "zb-h1" : "sequential", {.actors = actors, .microbatches = static_cast<int>(groups.size())});
  return out;
}

// The losses of three steps of AdamW.
std::vector<double> losses_of(const std::string& documents, const std::string& settings, int actors,
                              const std::vector<DrawnGroup>& groups) {
  const Config config =
      parse_config(concat("[model]\nname = \"gpt\"\nlayers = 4\nwidth = 16\nheads = 8\ncontext = 64\ndropout = 0.1\n[train]\n",
                          "batch = 8\ndtype = \"f64\"\n[data]\ndocuments = [\"", documents, "\"]\nvalidation = 0\n[pipeline]\n",
                          "microbatches = 8\nactors = ", actors, "\n", settings),
                   "test", {}, builtin_models());
  const Prepared prepared = prepare(config, builtin_models());
  const auto data = make_dataset(config, *prepared.model);
  BatchSteps steps(config, prepared, *data);
  std::vector<double> out;
  std::unique_ptr<Cluster> cluster;
  for (int s = 0; s < 3; ++s) {
    const std::vector<std::int64_t> batch = data->training_samples(8 * s);
    const BatchStep step = steps.lowered(batch, planned(groups, batch, *data, actors));
    const auto devices = static_cast<int>(step.program->devices.size());
    if (!cluster) cluster = test::make_test_cluster(devices, data);
    const std::uint64_t program = cluster->load(step.program);
    if (s == 0) {
      StateSource state;
      state.parameters = prepared.parameters;
      cluster->set_state(state);
    }
    StepInput input;
    input.step = s + 1;
    input.samples = step.samples;
    input.begins = step.begins;
    out.push_back(scalar_output(*step.program, cluster->step(program, input), "loss"));
  }
  return out;
}

// FlexSP's groups: members of the sequence's axis do micro-batches of their own, alone, in twos, or all together; each is as many devices
// as tensors are split over.
TEST(BatchPrograms, OfGroupsTrainAsOneDeviceDoes) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  const test::TemporaryFolder folder;
  const std::string documents = folder.file("texts.jsonl");
  std::string text;
  for (const std::int64_t length : draw_lengths(random, 24, 64)) {
    text += "{\"text\": \"";
    for (std::int64_t i = 0; i <= length; ++i) text += static_cast<char>('a' + random() % 26);
    text += "\"}\n";
  }
  write_file(documents, text);
  const std::vector<double> expected = losses_of(documents, "[batch]\nplanner = \"balanced\"\n", 1, {{0, {0, 1, 2, 3, 4, 5, 6, 7}}});
  test::Sample sample(1);
  int done = 0;
  for (const std::vector<DrawnGroup>& groups :
       std::vector<std::vector<DrawnGroup>>{{{4, {0, 1}}, {2, {2}}, {1, {3}}, {1, {4}}, {2, {5, 6}}, {2, {7}}},
                                            {{1, {0}}, {1, {1, 2}}, {1, {3}}, {1, {4, 5, 6, 7}}},
                                            {{2, {7, 0}}, {1, {6}}, {1, {5}}, {4, {4, 3, 2, 1}}}})
    for (const auto& [actors, tensor] : {std::pair{1, 1}, {2, 1}, {4, 1}, {1, 2}, {2, 2}}) {
      if (!sample.takes()) continue;
      const std::string settings = concat("context = 4\ntensor = ", tensor, "\n[batch]\nplanner = \"flexsp\"\n");
      const std::vector<double> found = losses_of(documents, settings, actors, groups);
      for (std::size_t s = 0; s < expected.size(); ++s)
        EXPECT_NEAR(found[s], expected[s], 1e-11 * expected[s])
            << groups.size() << " groups, " << actors << " actors, tensor " << tensor << ", step " << s + 1;
      ++done;
    }
  EXPECT_GE(done, test::rounds(15));
}

}  // namespace
}  // namespace penstock
