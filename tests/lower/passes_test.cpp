// SPDX-License-Identifier: Apache-2.0
// The passes of lowering: what each leaves on small models, as text that reads back, is right, and can be continued from.
#include "lower/passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/text.h"
#include "config/compile.h"
#include "lower/classes.h"
#include "models/registry.h"
#include "penstock/compile.h"
#include "penstock/step.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::draw;
using test::expect_golden;
using test::message_of;
using test::Random;

Config config_of(const std::vector<std::string>& settings) {
  std::vector<Override> overrides;
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  return load_config("", overrides, builtin_models());
}

Lowering lowering_of(const std::vector<std::string>& settings) {
  const Config config = config_of(settings);
  return training_lowering(config, prepare(config, builtin_models()));
}

LowerInput input_of(const std::vector<std::string>& settings) {
  return std::move(lowering_of(settings)[0].input);
}

Lowering begin(LowerInput input) {
  Lowering out;
  out.push_back(begin_table(std::move(input)));
  return out;
}

LowerInput perceptron(const std::string& csv, const CompileOptions& options = {}, bool updates = false) {
  ModelOptions sizes;
  sizes.stages = 2;
  sizes.numbers = {{"width", 8}, {"context", 4}, {"vocabulary", 16}};
  const auto model = make_model(builtin_models(), "mlp", sizes);
  const int microbatches = 2 * shares_of(options.devices), batch = 2 * microbatches;
  OptimiserOptions sgd;
  sgd.name = "sgd";
  const Graph step = updates ? training_step(*model, {batch, 4, microbatches}, sgd) : gradient_step(*model, {batch, 4, microbatches});
  return lower_input(step, parse_schedule(csv, "table.csv"), options);
}

Draft draft_after(const LowerInput& input, std::string_view pass) {
  Draft draft;
  run_passes(input, draft, pass);
  return draft;
}

// Text in, text out: what the pass makes of the golden draft of the pass before it is the golden draft of the pass.
void expect_pass(const LowerInput& input, std::string_view pass, const std::string& name) {
  SCOPED_TRACE(pass);
  const std::size_t number = find_pass(pass);
  ASSERT_GT(number, 0u);
  const std::string before = print(draft_after(input, lower_passes()[number - 1].name));
  expect_golden(concat("lower/passes/", name, "_in.txt"), before);
  Draft draft = parse_draft(before);
  verify(input, draft);
  run_passes(input, draft, pass);
  verify(input, draft);
  expect_golden(concat("lower/passes/", name, "_out.txt"), print(draft));
}

const char* const kGpipe = "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n";
const char* const kSharded = "0UNSHARD,0F0,0F1,0B0,0B1,0RESHARD,0REDUCE_GRAD\n1UNSHARD,1F0,1F1,1B0,1B1,1RESHARD,1REDUCE_GRAD\n";

TEST(Passes, BlocksFindsWhatIsHeldInShares) {
  expect_golden("lower/passes/blocks_out.txt", print(draft_after(perceptron(kSharded, {.devices = {2, 2}, .zero = 3}, true), "blocks")));
}

TEST(Passes, ActionsBecomeRuns) {
  expect_pass(perceptron(kGpipe), "actions", "actions");
  expect_pass(perceptron(kSharded, {.devices = {2, 2}, .zero = 3}, true), "actions", "actions_sharded");
}

TEST(Passes, OffloadMovesResiduals) {
  expect_pass(perceptron("0F0,0OFFLOAD0,0F1,0B1,0RELOAD0,0B0\n1F0,1F1,1B1,1B0\n"), "offload", "offload");
}

TEST(Passes, ReduceSumsOverTheDevices) {
  expect_pass(perceptron(kGpipe, {.devices = {2, 1}}), "reduce", "reduce");
  expect_pass(perceptron(kSharded, {.devices = {2, 2}, .zero = 3}, true), "reduce", "reduce_scattered");
}

TEST(Passes, BeforeMakesWhatTheLoopReads) {
  expect_pass(input_of({"model.name=mlp", "width=8", "context=4", "vocabulary=16", "batch=4", "microbatches=2", "actors=2",
                        "schedule=gpipe", "dtype=bf16", "optimiser=sgd"}),
              "before", "before");
}

TEST(Passes, AfterPlacesUpdates) {
  expect_pass(perceptron(kGpipe, {}, true), "after", "after");
  expect_pass(perceptron("0F0,0F1,0B0,0B1,0U\n1F0,1F1,1B0,1B1,1U\n", {}, true), "after", "after_updates");
}

TEST(Passes, RefreshBringsCopiesUpToDate) {
  expect_pass(input_of({"model.name=gpt", "layers=2", "heads=2", "width=8", "context=4", "vocabulary=16", "batch=2", "microbatches=1",
                        "actors=2", "schedule=gpipe", "optimiser=sgd", "tied=1"}),
              "refresh", "refresh");
}

TEST(Passes, ActorsBecomeDevices) {
  expect_pass(perceptron(kGpipe, {.devices = {1, 2}}, true), "devices", "devices");
  expect_pass(perceptron(kSharded, {.devices = {2, 2}, .zero = 3}, true), "devices", "devices_sharded");
}

TEST(Passes, TransfersAreMadeOrderedAndTheirSlotsFreed) {
  const LowerInput input = perceptron(kGpipe);
  for (const char* pass : {"transfers", "order", "frees"}) expect_pass(input, pass, pass);
}

TEST(Passes, NamesAreFoundAndReasonsGiven) {
  for (const LowerPass& pass : lower_passes()) {
    EXPECT_EQ(lower_passes()[find_pass(pass.name)].name, pass.name);
    EXPECT_TRUE(pass.reason.ends_with(".")) << pass.name;
  }
  EXPECT_EQ(message_of([] { find_pass("reduces"); }),
            "lowering has no pass \"reduces\"\n"
            "  its passes: blocks, actions, offload, reduce, before, after, refresh, devices, steps, waves, versions, lookups, "
            "workers, axes, transfers, order, frees\n"
            "  hint: did you mean \"reduce\"?");
}

// Any model, schedule, groups, sharding, updates and recomputation.
std::vector<std::string> random_settings(Random& random) {
  const auto one_of = [&](std::initializer_list<const char*> list) {
    return std::string(list.begin()[draw(random, 0, static_cast<int>(list.size()) - 1)]);
  };
  const std::string model = one_of({"gpt", "two-branch"}), data = one_of({"1", "2", "2", "3"});
  const int actors = model == "gpt" ? draw(random, 1, 4) : 4;
  std::vector<std::string> settings = {"layers=4",
                                       "width=8",
                                       "heads=2",
                                       "context=4",
                                       "vocabulary=16",
                                       "batch=48",
                                       "model.name=" + model,
                                       concat("actors=", actors),
                                       "microbatches=" + one_of({"1", "2", "4"}),
                                       "schedule=" + one_of({"gpipe", "1f1b", "zb-h1", "eager-1f1b"}),
                                       "update=" + one_of({"end", "stage", "validated"}),
                                       "clip=" + one_of({"0", "1"}),
                                       "dtype=" + one_of({"f32", "bf16"}),
                                       "recompute=" + one_of({"none", "inputs"}),
                                       "pipeline.data=" + data};
  if (data != "1") settings.insert(settings.end(), {"zero=" + one_of({"0", "1", "2", "3", "3"}), "pipeline.local=" + one_of({"1", "2"})});
  return settings;
}

// The drafts after any pass read back as the same text, are right, and lowered on from there give the same program.
void expect_continued(const Lowering& begun) {
  std::vector<std::string> texts = {print(begun)};
  Lowering last = begun;
  run_passes(last, {}, [&](const LowerPass& pass, const Lowering& now, double seconds) {
    EXPECT_GE(seconds, 0);
    texts.push_back(print(now));
    EXPECT_EQ(message_of([&] { EXPECT_EQ(print(with_drafts(begun, parse_drafts(texts.back()))), texts.back()); }), "no error") << pass.name;
  });
  const std::string program = print(program_of(last[0].input, last[0].steps[0]));
  EXPECT_EQ(print(lower(begun)), program);
  for (const std::string& text : texts) EXPECT_EQ(print(lower(with_drafts(begun, parse_drafts(text)))), program) << text.substr(0, 60);
}

TEST(Passes, RandomConfigurationsContinueFromAnyDraft) {
  for (std::uint64_t seed = 0; seed < test::rounds(20u); ++seed) {
    Random random(seed);
    const std::vector<std::string> settings = random_settings(random);
    SCOPED_TRACE(concat("seed ", seed, ": ", join(settings, " ")));
    expect_continued(lowering_of(settings));
  }
}

const std::vector<std::string> kSmallGpt = {"model.name=gpt", "layers=4", "heads=2",       "width=8",        "context=4",
                                            "vocabulary=16",  "batch=8",  "optimiser=sgd", "microbatches=2", "actors=2"};

std::vector<std::string> small_gpt(std::initializer_list<std::string> settings) {
  std::vector<std::string> out = kSmallGpt;
  out.insert(out.end(), settings);
  return out;
}

// Steps of a window, workers, members of axes: each has drafts of its own until they are joined, and all of them are shown.
TEST(Passes, WhatPassesJoinContinuesFromAnyDraft) {
  const struct {
    std::vector<std::string> settings;
    std::size_t first, alone, joined;  // drafts: of no pass, after `steps`, after `workers`
  } cases[] = {
      {small_gpt({"schedule=pipedream-2bw", "window=3", "pipeline.data=2", "tensor=2", "clip=0", "tied=0"}), 6, 2, 2},
      {small_gpt({"schedule=pipedream", "window=3", "tensor=2", "pipeline.context=2", "clip=0", "tied=0"}), 12, 4, 4},
      {small_gpt({"schedule=hetpipe", "window=4", "pipeline.data=2", "pipeline.distance=0", "momentum=0",
                  "pipeline.workers=[[3, 1], [2, 2]]", "clip=0", "tied=0", "weight_decay=0"}),
       8, 2, 1},
      {small_gpt({"schedule=1f1b", "pipeline.data=2", "tensor=2", "pipeline.workers=[[3, 1], [2, 2]]", "tied=0"}), 4, 4, 2},
      {small_gpt({"schedule=zeropp", "zero=3", "pipeline.data=2", "tensor=2"}), 2, 2, 2},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(join(c.settings, " "));
    const Lowering begun = lowering_of(c.settings);
    std::map<std::string_view, std::size_t> drafts;
    const auto count = [](const Lowering& lowering) {
      std::size_t out = 0;
      for (const TableDrafts& table : lowering) out += table.steps.size();
      return out;
    };
    Lowering last = begun;
    run_passes(last, {}, [&](const LowerPass& pass, const Lowering& now, double) { drafts[pass.name] = count(now); });
    EXPECT_EQ(count(begun), c.first);
    EXPECT_EQ((std::vector{drafts["devices"], drafts["steps"], drafts["workers"], drafts["axes"], drafts["frees"]}),
              (std::vector{c.first, c.alone, c.joined, std::size_t{1}, std::size_t{1}}));
    expect_continued(begun);
  }
}

// Micro-batches of shapes of their own, one of both members of an axis and one of each alone.
TEST(Passes, ShapeClassesOfAMeshContinueFromAnyDraft) {
  ModelOptions sizes;
  sizes.stages = 2;
  sizes.numbers = {{"width", 8}, {"context", 4}, {"vocabulary", 16}};
  const auto model = make_model(builtin_models(), "mlp", sizes);
  const Schedule table = parse_schedule("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n", "table.csv");
  const CompileOptions options{.axes = {{"tensor", 2, {"mlp"}}}};
  const auto step = [&](int rows, int length) { return training_step(*model, {rows, length, 1, BatchCount::port}, {}); };
  const ShapeClass both = compile_class(step(2, 4), table, for_group(options, 2)),
                   one = compile_class(step(3, 2), table, for_group(options, 1));
  const std::vector<PlacedClass> classes = {{&both}, {&one, 0}, {&one, 1}};
  Lowering begun;
  for (LowerInput& input : joined_inputs(classes, {0, 1, 2}, table, options))
    begun.push_back(begin_table(std::move(input), static_cast<std::int32_t>(begun.size())));
  expect_continued(begun);
}

TEST(Passes, RandomTablesLeaveGoodDrafts) {
  for (std::uint64_t seed = 0; seed < test::rounds(40u); ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    Random random(seed);
    ModelOptions sizes;
    sizes.stages = 4;
    sizes.numbers = {{"width", 8}, {"context", 4}, {"vocabulary", 16}};
    const auto model = make_model(builtin_models(), "two-branch", sizes);
    const int microbatches = draw(random, 1, 4);
    const Graph step = training_step(*model, {2 * microbatches, 4, microbatches}, {});
    const StagedStep staged = prepare_stages(step);
    const StageShape shape = cut(staged, std::vector<bool>(staged.stages.size(), true)).shape;
    Schedule schedule = test::random_schedule(random, shape, draw(random, 1, 4), microbatches,
                                              {.foreign_weight = 0.2, .foreign_input = 0.2, .replica = 0.2});
    if (seed % 2 == 0) schedule = test::with_extras(random, std::move(schedule), shape);
    const LowerInput input = lower_input(step, schedule);
    Draft draft;
    for (const LowerPass& pass : lower_passes()) {
      run_passes(input, draft, pass.name);
      EXPECT_EQ(message_of([&] { verify(input, draft); }), "no error");
      EXPECT_EQ(print(parse_draft(print(draft))), print(draft));
    }
    program_of(input, draft);
  }
}

TEST(Passes, DumpedDraftsAreOnePerPass) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "penstock_passes";
  std::filesystem::remove_all(folder);
  const Lowering begun = begin(perceptron(kGpipe));
  dump_passes(begun, folder.string());
  std::vector<std::string> files, unchanged;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string text = read_file(entry.path().string());
    files.push_back(entry.path().filename().string());
    if (text.find(" ms, unchanged") != std::string::npos) unchanged.push_back(files.back());
    lower(with_drafts(begun, parse_drafts(text, files.back())));
  }
  std::ranges::sort(files);
  std::ranges::sort(unchanged);
  EXPECT_EQ(files, (std::vector<std::string>{"01-blocks.txt", "02-actions.txt", "03-offload.txt", "04-reduce.txt", "05-before.txt",
                                             "06-after.txt", "07-refresh.txt", "08-devices.txt", "09-steps.txt", "10-waves.txt",
                                             "11-versions.txt", "12-lookups.txt", "13-workers.txt", "14-axes.txt", "15-transfers.txt",
                                             "16-order.txt", "17-frees.txt"}));
  EXPECT_EQ(unchanged, (std::vector<std::string>{"01-blocks.txt", "03-offload.txt", "04-reduce.txt", "05-before.txt", "07-refresh.txt",
                                                 "08-devices.txt", "09-steps.txt", "10-waves.txt", "11-versions.txt", "12-lookups.txt",
                                                 "13-workers.txt", "14-axes.txt"}));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace penstock
