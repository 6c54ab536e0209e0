// The passes of lowering: what each leaves on small models, as text that reads back, is right, and can be continued from.
#include "lower/passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "config/compile.h"
#include "models/registry.h"
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

LowerInput input_of(const std::vector<std::string>& settings) {
  const Config config = config_of(settings);
  return training_input(config, prepare(config, builtin_models()));
}

LowerInput perceptron(const std::string& csv, const LowerOptions& options = {}, bool updates = false) {
  ModelOptions sizes;
  sizes.stages = 2;
  sizes.numbers = {{"width", 8}, {"context", 4}, {"vocabulary", 16}};
  const auto model = make_model(builtin_models(), "mlp", sizes);
  const int microbatches = 2 * parts_of(options.devices), batch = 2 * microbatches;
  OptimiserOptions sgd;
  sgd.name = "sgd";
  const Graph step = updates ? training_step(*model, batch, 4, microbatches, sgd) : gradient_step(*model, batch, 4, microbatches);
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
  expect_golden("lower/passes/blocks_out.txt",
                print(draft_after(perceptron(kSharded, {.devices = {2, 2}, .sharding = {.level = 3}}, true), "blocks")));
}

TEST(Passes, ActionsBecomeRuns) {
  expect_pass(perceptron(kGpipe), "actions", "actions");
  expect_pass(perceptron(kSharded, {.devices = {2, 2}, .sharding = {.level = 3}}, true), "actions", "actions_sharded");
}

TEST(Passes, OffloadMovesResiduals) {
  expect_pass(perceptron("0F0,0OFFLOAD0,0F1,0B1,0RELOAD0,0B0\n1F0,1F1,1B1,1B0\n"), "offload", "offload");
}

TEST(Passes, ReduceSumsOverTheDevices) {
  expect_pass(perceptron(kGpipe, {.devices = {2, 1}}), "reduce", "reduce");
  expect_pass(perceptron(kSharded, {.devices = {2, 2}, .sharding = {.level = 3}}, true), "reduce", "reduce_scattered");
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
  expect_pass(perceptron(kSharded, {.devices = {2, 2}, .sharding = {.level = 3}}, true), "devices", "devices_sharded");
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
            "  its passes: blocks, actions, offload, reduce, before, after, refresh, devices, transfers, order, frees\n"
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

// The draft after any pass reads back as the same text, is right, and lowered on from there gives the same program.
TEST(Passes, RandomConfigurationsContinueFromAnyDraft) {
  for (std::uint64_t seed = 0; seed < test::rounds(20u); ++seed) {
    Random random(seed);
    const std::vector<std::string> settings = random_settings(random);
    SCOPED_TRACE(concat("seed ", seed, ": ", join(settings, " ")));
    const LowerInput input = input_of(settings);
    std::vector<std::string> drafts = {print(Draft())};
    Draft last;
    run_passes(input, last, {}, [&](const LowerPass& pass, const Draft& draft, double seconds) {
      EXPECT_GE(seconds, 0);
      EXPECT_EQ(message_of([&] { verify(input, draft); }), "no error");
      drafts.push_back(print(draft));
      EXPECT_EQ(print(parse_draft(drafts.back())), drafts.back()) << pass.name;
    });
    const std::string program = print(program_of(input, last));
    for (const std::string& draft : drafts) EXPECT_EQ(print(lower_rest(input, parse_draft(draft))), program) << draft.substr(0, 60);
  }
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
    const Graph step = training_step(*model, 2 * microbatches, 4, microbatches, {});
    const StagedStep staged = prepare_stages(step);
    const StageShape shape = cut(staged, std::vector<bool>(staged.stages.size(), true)).shape;
    Schedule schedule = test::random_schedule(random, shape, draw(random, 1, 4), microbatches, {.foreign_weight = 0.2, .replica = 0.2});
    if (seed % 2 == 0) schedule = test::with_extras(random, std::move(schedule), shape);
    const LowerInput input = lower_input(step, schedule);
    Draft draft;
    run_passes(input, draft, {}, [&](const LowerPass&, const Draft& now, double) {
      EXPECT_EQ(message_of([&] { verify(input, now); }), "no error");
      EXPECT_EQ(print(parse_draft(print(now))), print(now));
    });
    program_of(input, draft);
  }
}

TEST(Passes, DumpedDraftsAreOnePerPass) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "penstock_passes";
  std::filesystem::remove_all(folder);
  const LowerInput input = perceptron(kGpipe);
  dump_passes(input, folder.string());
  std::vector<std::string> files, unchanged;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string text = read_file(entry.path().string());
    files.push_back(entry.path().filename().string());
    if (text.find(" ms, unchanged") != std::string::npos) unchanged.push_back(files.back());
    lower_rest(input, parse_draft(text, files.back()));
  }
  std::ranges::sort(files);
  std::ranges::sort(unchanged);
  EXPECT_EQ(files,
            (std::vector<std::string>{"01-blocks.txt", "02-actions.txt", "03-offload.txt", "04-reduce.txt", "05-before.txt", "06-after.txt",
                                      "07-refresh.txt", "08-devices.txt", "09-transfers.txt", "10-order.txt", "11-frees.txt"}));
  EXPECT_EQ(unchanged, (std::vector<std::string>{"01-blocks.txt", "03-offload.txt", "04-reduce.txt", "05-before.txt", "07-refresh.txt",
                                                 "08-devices.txt"}));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace penstock
