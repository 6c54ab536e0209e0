// SPDX-License-Identifier: Apache-2.0
// Drawn configurations, as `penstock check` compares them: each is the sequential step, or is refused in words for its user.
// PENSTOCK_SEED chooses what is drawn; with PENSTOCK_SOAK there are 60 times as many, each shown ahead of its run.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <random>
#include <set>

#include "base/text.h"
#include "batch/batch_planners.h"
#include "driver/check_configuration.h"
#include "driver/outputs.h"
#include "models/registry.h"
#include "penstock/optimiser.h"
#include "penstock/schedule.h"
#include "state/initialise.h"
#include "support/rounds.h"
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

// The results of training for some steps, each of a batch of its own.
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
  } catch (const std::exception& error) {
    ADD_FAILURE() << "no refusal: " << error.what();
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
  add("batch.planner=",
      draw.one_of({"balanced", "balanced", "dynapipe", "dynapipe", "searched", "searched", "flexsp", "infinipipe", "terapipe"}));
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
  if (draw.in(4)) add("pipeline.recompute=", draw.one_of({"inputs", "selective"}));
  return out;
}

TEST(DrawnChecks, OfBatchesOfAllLengthsAreTheSequentialStepOrRefused) {
  expect_of_drawn(drawn_batches, kContext, 6, expect_checked);
}

// The next batch goes on with what one batch leaves, whatever shapes the two have.
TEST(DrawnChecks, OfSeveralBatchesTrainAsOneDeviceDoes) {
  expect_of_drawn(drawn_batches, kContext, 2, [](const Config& config) {
    const Trained found = trained(config, prepare(config, builtin_models()), true, 2);
    const Trained expected = trained(config, prepare_sequential(config, builtin_models()), false, 2);
    expect_near(found.losses, expected.losses);
    expect_near(found.parameters, expected.parameters);
  });
}

// --- everything else

// The choices of a configuration: settings with blanks between, "" where there are none. The first choice is the usual one, and is
// drawn but once in `others` times.
struct Factor {
  std::string name;
  unsigned others;
  Settings choices;
};

std::vector<Factor> factors(const DrawnFiles& files) {
  const auto named = [](const char* key, const std::vector<std::string>& names) {
    Settings out;
    for (const std::string& name : names) out.push_back(concat(key, "=", name));
    return out;
  };
  Settings batches = {"", concat("data.pairs=", files.pairs), concat("data.documents=", files.texts)};
  for (const BatchPlannerInfo& planner : batch_planners())
    for (const std::string& data : {concat("data.documents=", files.texts), concat("data.pairs=", files.pairs)})
      batches.push_back(concat(data, " batch.planner=", planner.name, " batch.round=8 batch.candidates=4"));
  std::vector<std::string> tables = {"1f1b"}, updates;
  for (const ScheduleInfo& schedule : schedules()) tables.push_back(schedule.name);
  for (const OptimiserInfo& optimiser : optimisers())
    if (optimiser.name != "lion") updates.push_back(optimiser.name);  // lion takes signs, which rounding turns where a gradient is nothing
  return {
      {"model",
       2,
       {"model.name=gpt width=16 heads=2 context=16 layers=4", "model.name=gpt width=16 heads=2 context=16 layers=4 tied=0",
        "model.name=gpt width=16 heads=2 context=16 layers=4 positions=rotary dropout=0.1",
        "model.name=gpt width=16 heads=2 context=16 layers=4 qkv_in_attention=1",
        "model.name=gpt width=16 heads=2 context=16 layers=4 lora=2", "model.name=candle-uno branches=3 layers=2 width=8",
        "model.name=dlrm branches=3 layers=2 width=8 rows=10", "model.name=latent_diffusion width=16 text_width=8 heads=2 image=16 patch=4",
        "model.name=latent_diffusion width=16 text_width=8 heads=2 image=16 patch=4 self_conditioning=0.5",
        "model.name=moe width=16 heads=2 context=16 layers=4", "model.name=multimodal branches=3 width=8 context=16",
        "model.name=reference width=16 heads=2 context=16 layers=4", "model.name=resnet width=2 image=32",
        "model.name=t5 width=16 heads=2 context=16 layers=2", "model.name=two-branch width=16 heads=2 context=16 layers=3",
        "model.name=vgg width=2"}},
      {"batch", 4, batches},
      {"schedule", 2, named("schedule", tables)},
      {"pipe", 2, {"pipe=2", "pipe=1", "pipe=4"}},
      {"data", 4, {"", "data=2"}},
      {"expert", 12, {"", "expert=2"}},
      {"context", 6, {"", "context=2"}},
      {"tensor", 4, {"", "tensor=2"}},
      {"micro-batches", 2, {"microbatches=4", "microbatches=1", "microbatches=2"}},
      {"chunks", 4, {"", "chunks=2"}},
      {"slices", 6, {"", "slices=2", "slices=4", "slices=[4,8,4]"}},
      {"window", 5, {"", "window=2", "window=3"}},
      {"zero", 4, {"", "zero=1", "zero=2", "zero=3"}},
      {"recomputation", 5, {"", "pipeline.recompute=selective", "pipeline.recompute=inputs"}},
      {"backward", 6, {"", "split_backward=true"}},
      {"update", 6, {"", "update=stage", "update=validated"}},
      {"clip", 2, {"clip=0.1", "clip=0"}},
      {"dtype", 6, {"dtype=f64", "dtype=f32", "dtype=bf16"}},
      {"head", 8, {"", "model.head_shards=2"}},
      {"rows ahead", 10, {"", "pipeline.prefetch=true"}},
      {"hosts", 10, {"", "pipeline.local=2", "pipeline.local=2 pipeline.local_outside=true"}},
      {"others' updates", 12, {"", "pipeline.distance=0", "pipeline.distance=1"}},
      {"attention", 8, {"", "pipeline.attention=heads", "pipeline.attention=parts"}},
      {"layout", 8, {"", "layout.choose=tensor", "layout.sequence=tensor", "layout.vocab="}},
      {"rows", 8, {"", "batch.rows=ragged"}},
      {"batch's memory", 8, {"", "batch.recompute=inputs", "batch.memory=100", "batch.recompute=inputs batch.memory=100"}},
      {"option", 6, {"", "in_flight=2", "group=2", "unit=2", "transfers=0.5"}},
      {"momentum", 6, {"", "momentum=0 weight_decay=0"}},
      {"optimiser", 2, named("optimiser", updates)}};
}

using Choices = std::vector<std::size_t>;  // of each factor

Choices drawn_choices(Draw& draw, const std::vector<Factor>& of) {
  Choices out;
  for (const Factor& factor : of) out.push_back(draw.in(static_cast<int>(factor.others)) ? draw.below(factor.choices.size()) : 0);
  return out;
}

Settings settings_of(const std::vector<Factor>& of, const Choices& choices) {
  Settings out = {"batch=8"};
  std::string mesh;
  for (std::size_t f = 0; f < of.size(); ++f) {
    const std::string& choice = of[f].choices[choices[f]];
    const bool is_axis =
        of[f].name == "pipe" || of[f].name == "data" || of[f].name == "expert" || of[f].name == "context" || of[f].name == "tensor";
    if (is_axis && !choice.empty()) mesh += concat(mesh.empty() ? "mesh=" : ",", choice);
    if (is_axis || choice.empty()) continue;
    for (const std::string& setting : split(choice, ' ')) out.push_back(setting);
  }
  out.push_back(mesh);
  return out;
}

// The step is the sequential one, and in f64 a step or two of training leave what they leave on one device.
void expect_alike(const Config& config) {
  const CheckResult result = checked(config);
  EXPECT_LE(result.comparison.loss_difference, 10 * result.tolerance);
  EXPECT_LE(result.comparison.gradient_difference, 10 * result.tolerance) << result.comparison.worst;
  const bool in_shapes = config.batch.planner != "pad", has_batch_norms = config.model.name == "resnet";  // of micro-batches
  if (config.pipeline.table.window > 1 || config.train.dtype != "f64" || in_shapes || has_batch_norms) return;
  const Trained found = trained(config, prepare(config, builtin_models()), false, 2);
  const Trained expected = trained(config, prepare_sequential(config, builtin_models()), false, 2);
  expect_near(found.losses, expected.losses);
  expect_near(found.parameters, expected.parameters);
}

// Which pairs of choices of two factors were tried.
class Pairs {
 public:
  explicit Pairs(const std::vector<Factor>& of) {
    for (std::size_t f = 0; f < of.size(); ++f)
      for (std::size_t g = 0; g < f; ++g)
        for (std::size_t i = 0; i < of[f].choices.size(); ++i)
          for (std::size_t j = 0; j < of[g].choices.size(); ++j) left_.insert({f, i, g, j});
  }
  void try_out(const Choices& choices) {
    for (std::size_t f = 0; f < choices.size(); ++f)
      for (std::size_t g = 0; g < f; ++g) left_.erase({f, choices[f], g, choices[g]});
  }
  // Puts one that is left into the choices; false: none is.
  bool put_into(Choices& choices) const {
    if (left_.empty()) return false;
    const auto& [f, i, g, j] = *left_.begin();
    choices[f] = i;
    choices[g] = j;
    return true;
  }

 private:
  std::set<std::array<std::size_t, 4>> left_;
};

// The first member alone adds the biases, which are cast ahead of the loop: what the members have is numbered otherwise.
TEST(DrawnChecks, OfPlannedBatchesMembersRunTheCodeBehindTheLoopAlike) {
  Draw draw(1);
  const DrawnFiles files(draw, 16);
  EXPECT_TRUE(checked(config_of({"dtype=bf16", "batch=8", "model.name=gpt", "width=16", "heads=2", "context=16", "layers=2", "tied=0",
                                 "data.documents=" + files.texts, "batch.planner=balanced", "batch.round=8", "microbatches=4", "clip=0",
                                 "mesh=pipe=2,tensor=2"}))
                  .is_equal());
}

// 800 drawn combinations, of which `make test` has half; in `make soak` ten times as many, and each two choices among what is else usual.
TEST(DrawnChecks, OfAnyCombinationAreTheSequentialStepOrRefused) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  Draw draw(seed);
  const DrawnFiles files(draw, 16);
  const std::vector<Factor> of = factors(files);
  Counts counts;
  const auto expect = [&](const Choices& choices) { expect_equal_or_refused(settings_of(of, choices), counts, expect_alike); };
  for (int i = 0; i < test::rounds(800) * (test::is_soak() ? 10 : 1); ++i) expect(drawn_choices(draw, of));
  Pairs pairs(of);
  for (Choices usual(of.size(), 0); test::is_soak();) {
    Choices choices = usual;
    if (!pairs.put_into(choices)) break;
    pairs.try_out(choices);
    expect(choices);
  }
  report(seed, counts);
}

}  // namespace
}  // namespace penstock
