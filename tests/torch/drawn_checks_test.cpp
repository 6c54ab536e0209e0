// Drawn configurations, as `penstock check` compares them: each is the sequential step, or is refused in words for its user.
// PENSTOCK_SEED chooses what is drawn; with PENSTOCK_SOAK there are 60 times as many, each shown ahead of its run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <random>

#include "base/text.h"
#include "driver/check_configuration.h"
#include "driver/outputs.h"
#include "models/registry.h"
#include "penstock/schedule.h"
#include "state/initialise.h"
#include "support/seed.h"
#include "support/temporary.h"
#include "torch/test_cluster.h"

namespace penstock {
namespace {

using Settings = std::vector<std::string>;

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  template <class T>
  T one_of(std::initializer_list<T> all) {
    return all.begin()[random_() % all.size()];
  }
  const char* one_of(std::initializer_list<const char*> all) { return all.begin()[random_() % all.size()]; }
  std::size_t below(std::size_t most) { return random_() % most; }
  bool in(int times) { return random_() % static_cast<unsigned>(times) == 0; }  // once in so many times
  std::int64_t length(std::int64_t mean, std::int64_t most) {
    std::lognormal_distribution<double> length(std::log(static_cast<double>(mean)), 1);
    return std::clamp<std::int64_t>(std::llround(length(random_)), 1, most);
  }
  std::string text(std::int64_t length) {
    std::string out;
    for (std::int64_t i = 0; i < length; ++i) out += static_cast<char>('a' + random_() % 26);
    return out;
  }

 private:
  std::mt19937_64 random_;
};

// Files with 48 texts, and 48 pairs, of lengths around a quarter of the context and up to more than it.
struct DrawnFiles {
  test::TemporaryFolder folder;
  std::string texts = folder.file("texts.jsonl"), pairs = folder.file("pairs.jsonl");

  DrawnFiles(Draw& draw, std::int64_t context) {
    std::string lines, of_pairs;
    for (int i = 0; i < 48; ++i) {
      lines += concat("{\"text\": \"", draw.text(1 + draw.length(context / 4, context + 9)), "\"}\n");
      of_pairs += concat("{\"input\": \"", draw.text(draw.length(context / 4, context + 9)), "\", \"target\": \"",
                         draw.text(draw.length(context / 4, context + 9)), "\"}\n");
    }
    write_file(texts, lines);
    write_file(pairs, of_pairs);
  }
};

Config config_of(const Settings& settings) {
  std::vector<Override> overrides;
  for (const std::string& setting : settings) {
    if (setting.starts_with("mesh=")) {
      const std::vector<Override> mesh = parse_mesh(setting.substr(5));
      overrides.insert(overrides.end(), mesh.begin(), mesh.end());
    } else {
      overrides.push_back(parse_override(setting));
    }
  }
  return load_config("", overrides, builtin_models());
}

std::unique_ptr<Cluster> threads(int devices, std::shared_ptr<const DataSource> data) {
  return test::make_test_cluster(devices, std::move(data));
}

CheckResult checked(const Config& config) {
  return *check_configuration({.config = config,
                               .models = builtin_models(),
                               .start = [&](const Prepared& prepared) { return fresh_start(config, prepared); },
                               .cluster =
                                   [](const std::vector<int>& groups, std::shared_ptr<const DataSource> data) {
                                     return threads(std::accumulate(groups.begin(), groups.end(), 0), std::move(data));
                                   },
                               .local = threads});
}

// What training leaves of some steps, each of a batch of its own.
struct Trained {
  std::vector<double> losses;
  std::vector<double> parameters;
};

Trained trained(const Config& config, const Prepared& prepared, bool planned, int steps) {
  const auto data = make_dataset(config, *prepared.model);
  const PlanStep plan = planned ? batch_planner(config, prepared, *data) : PlanStep();
  const std::vector<int> counts = devices_of_actors(prepared);
  const auto cluster = threads(std::accumulate(counts.begin(), counts.end(), 0), data);
  Trained out;
  for (int s = 0; s < steps; ++s) {
    StepInput input{.step = s + 1, .seed = config.train.seed, .samples = data->training_samples(s * config.train.batch)};
    std::shared_ptr<const Program> program;
    if (plan) {
      const BatchStep step = plan(input.samples);
      input.samples = step.samples;
      input.begins = step.begins;
      program = step.program;
    } else {
      program = std::make_shared<const Program>(compile_training(config, prepared));
    }
    const std::uint64_t loaded = cluster->load(program);
    if (s == 0) cluster->set_state(fresh_start(config, prepared).state);
    out.losses.push_back(scalar_output(*program, cluster->step(loaded, input), "loss"));
  }
  for (const ParameterSpec& spec : prepared.parameters) {
    const std::vector<std::byte> bytes = cluster->state(spec.name);
    for (std::int64_t i = 0; i < spec.type.elements(); ++i) out.parameters.push_back(load_element(spec.type.dtype, bytes, i));
  }
  return out;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-9 * std::max(1.0, std::abs(expected[i]))) << i;
}

// Whether a message speaks of what its reader never named.
bool is_internal(const std::string& message) {
  return std::ranges::any_of(std::initializer_list<const char*>{"this is a bug", "invariant", "shape class", "differ in more"},
                             [&](const char* words) { return message.find(words) != std::string::npos; });
}

struct Counts {
  int equal = 0, refused = 0;
  // Whether so many that are equal were found, or 60 times as many where PENSTOCK_SOAK is set, or something failed.
  bool is_enough(int wanted) const {
    wanted *= test::is_soak() ? 60 : 1;
    return equal >= wanted || refused >= 30 * wanted || testing::Test::HasFailure();
  }
};

void report(std::uint64_t seed, const Counts& counts) {
  EXPECT_GT(counts.equal, 0);
  std::printf("seed %llu: %d equal, %d refused\n", static_cast<unsigned long long>(seed), counts.equal, counts.refused);
}

// Holds a configuration to its word: equal to 1e-9, or refused for what its user can change.
template <class Compare>
void expect_equal_or_refused(const Settings& settings, Counts& counts, Compare&& compare) {
  SCOPED_TRACE(join(settings, " "));
  if (test::is_soak()) std::fprintf(stderr, "%s\n", join(settings, " ").c_str());
  try {
    compare(config_of(settings));
    ++counts.equal;
  } catch (const Error& error) {
    if (test::is_soak()) std::fprintf(stderr, "  refused: %s\n", error.what());
    EXPECT_FALSE(is_internal(error.what())) << error.what();
    ++counts.refused;
  }
}

void expect_checked(const Config& config) {
  const CheckResult result = checked(config);
  EXPECT_LE(result.comparison.loss_difference, 1e-9);
  EXPECT_LE(result.comparison.gradient_difference, 1e-9) << result.comparison.worst;
}

// Holds drawn configurations, whose files are drawn for sequences of `context`, to their word until so many are equal.
template <class Drawn, class Compare>
void expect_of_drawn(const Drawn& drawn, std::int64_t context, int wanted, const Compare& compare) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  Draw draw(seed);
  const DrawnFiles files(draw, context);
  Counts counts;
  while (!counts.is_enough(wanted)) expect_equal_or_refused(drawn(draw, files), counts, compare);
  report(seed, counts);
}

// --- batches

constexpr std::int64_t kContext = 64;

Settings drawn_batches(Draw& draw, const DrawnFiles& files) {
  const bool pairs = draw.in(5);
  Settings out = {"dtype=f64", "width=16",       concat("context=", kContext), "batch=8", "clip=0.5", "optimiser=sgd",
                  "warmup=0",  "decay=constant", "learning_rate=0.3"};
  const auto add = [&](const auto&... parts) { out.push_back(concat(parts...)); };
  add("seed=", draw.one_of({1, 2, 3, 4, 5, 6, 7}));
  const std::string model = pairs ? "t5" : draw.one_of({"gpt", "gpt", "gpt", "gpt", "reference", "two-branch", "mlp", "moe", "t5"});
  add("model.name=", model);
  add("layers=", draw.one_of({2, 4}));
  if (model != "mlp") add("heads=", draw.one_of({1, 2, 4}));
  if (model == "gpt" || model == "moe") add("positions=", draw.one_of({"learned", "rotary"}));
  if (model == "gpt" && draw.in(4)) add("dropout=0.1");
  if (pairs)
    add("data.pairs=", files.pairs);
  else
    add("data.documents=", files.texts);
  add("batch.planner=", draw.one_of({"balanced", "balanced", "dynapipe", "dynapipe", "searched", "searched", "flexsp", "infinipipe"}));
  add("batch.rows=", draw.one_of({"padded", "padded", "ragged"}));
  add("batch.round=", draw.one_of({0, 0, 8, 16}));
  add("batch.candidates=4");
  add("microbatches=", draw.one_of({1, 2, 4}));
  std::string mesh = concat("mesh=pipe=", draw.one_of({1, 1, 2}));
  const bool tensor = draw.in(2);
  const bool context = model != "mlp" && model != "two-branch" && draw.in(2);  // these have no dim of that name
  for (const auto& [axis, is_there] : {std::pair{"data", draw.in(4)}, {"context", context}, {"tensor", tensor}})
    if (is_there) mesh += concat(",", axis, "=2");
  out.push_back(mesh);
  if (tensor && !context && draw.in(2) && model != "mlp" && model != "two-branch") add("layout.sequence=tensor");
  if (draw.in(4)) add("pipeline.attention=", draw.one_of({"heads", "parts"}));
  if (draw.in(4)) add("zero=", draw.one_of({1, 2, 3}));
  if (draw.in(4)) add("pipeline.recompute=inputs");
  return out;
}

TEST(DrawnChecks, OfBatchesOfAllLengthsAreTheSequentialStepOrRefused) {
  expect_of_drawn(drawn_batches, kContext, 6, expect_checked);
}

// What one batch leaves the next one goes on with, whatever shapes the two have.
TEST(DrawnChecks, OfSeveralBatchesTrainAsOneDeviceDoes) {
  expect_of_drawn(drawn_batches, kContext, 2, [](const Config& config) {
    const Trained found = trained(config, prepare(config, builtin_models()), true, 2);
    const Trained expected = trained(config, prepare_sequential(config, builtin_models()), false, 2);
    expect_near(found.losses, expected.losses);
    expect_near(found.parameters, expected.parameters);
  });
}

// --- everything else

const std::map<std::string, Settings>& small_models() {
  static const Settings text = {"width=16", "heads=2", "context=16"};
  static const auto with = [](Settings more) {
    more.insert(more.begin(), text.begin(), text.end());
    return more;
  };
  static const std::map<std::string, Settings> models = {
      {"candle-uno", {"branches=3", "layers=2", "width=8"}},
      {"dlrm", {"branches=3", "layers=2", "width=8", "rows=10"}},
      {"gpt", with({"layers=4"})},
      {"latent_diffusion", {"width=16", "text_width=8", "heads=2", "image=16", "patch=4"}},
      {"moe", with({"layers=4"})},
      {"multimodal", {"branches=3", "width=8", "context=16"}},
      {"reference", with({"layers=4"})},
      {"resnet", {"width=2", "image=32"}},
      {"t5", with({"layers=2"})},
      {"two-branch", with({"layers=3"})},
      {"vgg", {"width=2"}}};
  return models;
}

Settings drawn_configuration(Draw& draw, const DrawnFiles& files) {
  Settings out = {"dtype=f64", "batch=8"};
  const auto add = [&](const auto&... parts) { out.push_back(concat(parts...)); };
  const std::string model =
      draw.in(2) ? "gpt" : std::next(small_models().begin(), static_cast<std::ptrdiff_t>(draw.below(small_models().size())))->first;
  add("model.name=", model);
  const Settings& sizes = small_models().at(model);
  out.insert(out.end(), sizes.begin(), sizes.end());
  if (model == "gpt") add("tied=", draw.one_of({0, 1}));
  const bool reads_text = sizes.back() == "context=16" || std::ranges::find(sizes, "context=16") != sizes.end();
  if (reads_text && draw.in(2)) {
    add(draw.in(3) ? "data.pairs=" + files.pairs : "data.documents=" + files.texts);
    if (draw.in(2)) add("batch.planner=", draw.one_of({"balanced", "dynapipe", "searched", "infinipipe", "flexsp", "dip", "shapes"}));
    add("batch.round=8");
    add("batch.candidates=4");
  }
  const ScheduleInfo& schedule = schedules()[draw.below(schedules().size())];
  add("schedule=", draw.in(2) ? draw.one_of({"1f1b", "zb-h1", "gpipe"}) : schedule.name);
  add("microbatches=", draw.one_of({1, 2, 4}));
  if (draw.in(4)) add("chunks=2");
  if (draw.in(6)) add("slices=", draw.one_of({2, 4}));
  if (draw.in(5)) add("window=", draw.one_of({2, 3}));
  std::string mesh = concat("mesh=pipe=", draw.one_of({1, 2, 2, 4}));
  for (const char* axis : {"data", "context", "tensor", "expert"})
    if (draw.in(4) && (std::string_view(axis) != "expert" || model == "moe")) mesh += concat(",", axis, "=2");
  out.push_back(mesh);
  add("clip=", draw.one_of({"0", "0.1"}));
  if (draw.in(2)) add("optimiser=sgd");
  if (draw.in(4)) add("zero=", draw.one_of({1, 2, 3}));
  if (draw.in(5)) add("pipeline.recompute=inputs");
  if (draw.in(6)) add("split_backward=true");
  if (draw.in(6)) add("update=", draw.one_of({"stage", "validated"}));
  return out;
}

TEST(DrawnChecks, OfAnyConfigurationAreTheSequentialStepOrRefused) {
  expect_of_drawn(drawn_configuration, 16, 10, expect_checked);
}

}  // namespace
}  // namespace penstock
