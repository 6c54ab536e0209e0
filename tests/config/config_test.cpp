// SPDX-License-Identifier: Apache-2.0
#include "config/config.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/text.h"
#include "config/config_keys.h"
#include "config/config_text.h"
#include "support/errors.h"
#include "support/temporary.h"

namespace penstock {
namespace {

using test::message_of;

ModelRegistry models() {
  ModelEntry gpt;
  gpt.numbers = {{"layers", 4}, {"width", 128}, {"dropout", 0}};
  gpt.words = {{"activation", "gelu"}};
  ModelEntry mlp;
  mlp.numbers = {{"hidden", 32}};
  return {{"gpt", gpt}, {"mlp", mlp}};
}

Config parse(std::string_view toml, const std::vector<Override>& overrides = {}) {
  return parse_config(toml, "run.toml", overrides, models());
}
std::string failure(std::string_view toml, const std::vector<Override>& overrides = {}) {
  return message_of([&] { parse(toml, overrides); });
}

TEST(Config, EveryKeyHasADefault) {
  const Config config = parse("");
  EXPECT_EQ(config.model.name, "gpt");
  EXPECT_EQ(config.model.numbers.at("width"), 128);
  EXPECT_EQ(config.train.steps, 400);
  EXPECT_EQ(config.pipeline.schedule, "1f1b");
}

// toml++ asserts on these.
TEST(Config, BadNamesOfTablesAreErrors) {
  // Built without assertions, toml++ words it itself; the place is the same.
  EXPECT_TRUE(failure("[train]\nsteps = 1\n[ !]\n").starts_with("run.toml:3:3: ")) << failure("[train]\nsteps = 1\n[ !]\n");
  EXPECT_TRUE(failure("[[=]]").starts_with("run.toml:1:3: ")) << failure("[[=]]");
}

TEST(Config, TextsReadBackAsTheyWere) {
  const Config odd = parse("[run]\nout = \"\\n[a\\t\\\"\\\\\\u007F\"\n[data]\ntext = [\"\\nx\", \"\u02f1\"]\n");
  EXPECT_EQ(odd.run.out, "\n[a\t\"\\\x7f");
  EXPECT_EQ(print(parse(print(odd))), print(odd));
  EXPECT_EQ(parse(print(odd)).run.out, odd.run.out);
}

TEST(Config, LettersBeyondAsciiAreOnlyInTextsAndComments) {
  EXPECT_EQ(failure("[train]\nst\u02f1eps = 1"),
            "run.toml:2:3: letters beyond ASCII stand only in quoted texts and comments\n  st\u02f1eps = 1\n    ^ near here");
  EXPECT_EQ(parse("\xef\xbb\xbf# \u02f1\n[run]\nout = 'a\u02f1'\n").run.out, "a\u02f1");
  EXPECT_EQ(parse("[run]\nout = \"\"\"\\\"\u02f1\"\"\"\"\n").run.out, "\"\u02f1\"");
  EXPECT_NE(failure("[run]\nout = \"\"\"a\"\"\"\"\u02f1\n").find("letters beyond ASCII"), std::string::npos);
}

TEST(Config, FileThenOverridesInOrder) {
  const Config config = parse("[train]\nsteps = 10\nlearning_rate = 1\n[model]\nwidth = 64\n[data]\ntext = [\"src\", \"docs\"]\n",
                              {parse_override("steps=20"),
                               parse_override("train.steps = 30"),
                               parse_override("width=96"),
                               parse_override("pipeline.schedule=gpipe"),
                               {"data.text", "a.txt", "--text"}});
  EXPECT_EQ(config.train.steps, 30);
  EXPECT_EQ(config.train.learning_rate, 1.0);
  EXPECT_EQ(config.model.numbers.at("width"), 96);
  EXPECT_EQ(config.pipeline.schedule, "gpipe");
  EXPECT_EQ(config.data.text, std::vector<std::string>{"a.txt"});
}

TEST(Config, TheModelBringsItsKeys) {
  EXPECT_EQ(parse("[model]\nhidden = 8\n", {parse_override("model.name=mlp")}).model.numbers.at("hidden"), 8);
  EXPECT_EQ(failure("[model]\nname = \"mlp\"\nwidht = 8\n"),
            "run.toml:3:1: unknown key of model \"mlp\" \"widht\"\n  hint: known: name, hidden");
  EXPECT_EQ(failure("[model]\nname = \"gtp\"\n"), "run.toml:2:8: unknown model \"gtp\"\n  hint: did you mean \"gpt\"?");
}

TEST(Config, UnknownKeysNameTheNearest) {
  EXPECT_EQ(failure("[train]\nstesp = 4\n"), "run.toml:2:1: unknown key of [train] \"stesp\"\n  hint: did you mean \"steps\"?");
  EXPECT_EQ(failure("[trian]\nsteps = 4\n"), "run.toml:1:2: unknown section \"trian\"\n  hint: did you mean \"train\"?");
  EXPECT_EQ(failure("train = 4\n"), "run.toml:1:1: train is a section, not a key\n  hint: write [train]");
  EXPECT_EQ(failure("", {parse_override("train.stesp=4")}),
            "--set train.stesp: unknown key \"train.stesp\"\n  hint: did you mean \"train.steps\"?");
  EXPECT_EQ(failure("", {parse_override("widht=4")}), "--set widht: unknown key \"widht\"\n  hint: did you mean \"model.width\"?");
  EXPECT_EQ(failure("", {parse_override("recomptue=inputs")}),
            "--set recomptue: unknown key \"recomptue\"\n  hint: did you mean \"batch.recompute\" or \"pipeline.recompute\"?");
  EXPECT_EQ(failure("", {parse_override("colour=4")}), "--set colour: unknown key \"colour\"\n  hint: penstock config lists all keys");
}

// A name that several sections could have is not looked for in all of them, but said.
TEST(Config, KeysOfOtherSectionsAreNamedWithTheirs) {
  EXPECT_EQ(failure("", {parse_override("prefetch=true")}),
            "--set prefetch: unknown key \"prefetch\"\n  hint: its whole name is pipeline.prefetch");
  EXPECT_EQ(failure("", {parse_override("distance=1")}),
            "--set distance: unknown key \"distance\"\n  hint: its whole name is pipeline.distance");
  EXPECT_EQ(failure("", {parse_override("prefech=true")}),
            "--set prefech: unknown key \"prefech\"\n  hint: did you mean \"pipeline.prefetch\"?");
  EXPECT_EQ(failure("", {parse_override("train.schedule=gpipe")}),
            "--set train.schedule: unknown key \"train.schedule\"\n  hint: its whole name is pipeline.schedule");
  EXPECT_EQ(failure("[train]\nschedule = \"gpipe\"\n"),
            "run.toml:2:1: unknown key of [train] \"schedule\"\n  hint: its whole name is pipeline.schedule");
  EXPECT_EQ(failure("[data]\nslices = 2\n"),
            "run.toml:2:1: unknown key of [data] \"slices\"\n  hint: its whole name is batch.slices or pipeline.slices");
}

TEST(Config, WrongTypesHaveAPlace) {
  EXPECT_EQ(failure("[train]\nsteps = \"many\"\n"),
            "run.toml:2:9: train.steps needs a whole number, this is a text \"many\"\n  hint: as in train.steps = 400");
  EXPECT_EQ(failure("[train]\nsteps = 1.5\n"),
            "run.toml:2:9: train.steps needs a whole number, this is a number with a fraction\n  hint: as in train.steps = 400");
  EXPECT_EQ(failure("[train]\nclip = true\n"),
            "run.toml:2:8: train.clip needs a number, this is true or false\n  hint: as in train.clip = 1.0");
  EXPECT_EQ(failure("[train]\nsteps = 1e30\n"), "run.toml:2:9: train.steps is 1e+30; it must be at least 1 and at most 1e+09");
  EXPECT_EQ(failure("", {{"steps", "1000000000000000000000", "--steps"}}),
            "--steps: train.steps is 1e+21; it must be at least 1 and at most 1e+09");
  EXPECT_EQ(failure("", {{"seed", "-1e300", "--set"}}), "--set: train.seed is -1e+300, more than it can hold");
  EXPECT_EQ(failure("", {{"steps", "2e3", "--set"}}),
            "--set: train.steps needs a whole number, without a point or an exponent\n  hint: write 2000");
  EXPECT_EQ(failure("[run]\nout = 3\n"),
            "run.toml:2:7: run.out needs a text, this is a whole number\n  hint: as in run.out = \"runs/gpt\"");
  EXPECT_EQ(failure("[data]\ntext = [1]\n"), "run.toml:2:8: data.text needs a list of texts, this is a list");
  EXPECT_EQ(failure("", {{"steps", "many", "--steps"}}),
            "--steps: train.steps needs a whole number, this is a text \"many\"\n  hint: as in train.steps = 400");
  EXPECT_EQ(failure("[train\n").substr(0, 13), "run.toml:1:7:");
}

TEST(Config, SecondsAndBytesTakeUnits) {
  EXPECT_EQ(parse("[pipeline]\ndeadline = \"2min\"\n").pipeline.deadline, 120);
  EXPECT_EQ(parse("", {{"deadline", "500ms", "--set"}}).pipeline.deadline, 0.5);
  EXPECT_EQ(parse("", {{"batch.memory_limit", "16GB", "--set"}}).batch.memory_limit, 16'000'000'000);
  EXPECT_EQ(failure("", {{"deadline", "1us", "--set"}}), "--set: pipeline.deadline is 1us; it must be at least 0.001 and at most 1e+06");
  EXPECT_EQ(failure("[train]\nsteps = \"3s\"\n"),
            "run.toml:2:9: train.steps needs a whole number, this is a text \"3s\"\n  hint: as in train.steps = 400");
}

TEST(Config, ValuesOutOfRange) {
  EXPECT_EQ(failure("[train]\nsteps = 0\n"), "run.toml:2:9: train.steps is 0; it must be at least 1 and at most 1e+09");
  EXPECT_EQ(failure("[pipeline]\nupdate = \"validate\"\n"),
            "run.toml:2:10: unknown update \"validate\"\n  hint: did you mean \"validated\"?");
  EXPECT_EQ(failure("[train]\ndtype = \"f23\"\n"), "run.toml:2:9: unknown dtype \"f23\"\n  hint: did you mean \"f32\"?");
  EXPECT_EQ(failure("[train]\nclip = inf\n"), "run.toml:2:8: train.clip is inf; it must be finite");
  for (const char* beta : {"beta1", "beta2"})
    EXPECT_EQ(failure("", {{beta, "1", "--set"}}), concat("--set: train.", beta, " is 1; it must be at least 0 and below 1"));
  for (const char* number : {"learning_rate", "weight_decay", "clip"}) {
    EXPECT_EQ(failure("", {{number, "1e39", "--set"}}),
              concat("--set: train.", number, " is 1e+39; it must be at least 0 and at most 3.40282e+38"));
    EXPECT_EQ(failure("", {{number, "-1", "--set"}}),
              concat("--set: train.", number, " is -1; it must be at least 0 and at most 3.40282e+38"));
  }
  EXPECT_EQ(failure("", {{"momentum", "-0.1", "--set"}}), "--set: train.momentum is -0.1; it must be at least 0 and at most 1");
  EXPECT_EQ(failure("", {{"warmup", "-1", "--set"}}), "--set: train.warmup is -1; it must be at least 0 and at most 1e+09");
  EXPECT_EQ(failure("[train]\nbatch = 10\n"),
            "train.batch = 10 is not divisible by pipeline.microbatches = 8\n  every micro-batch has the same number of sequences\n  hint: "
            "--microbatches 5, or --batch 16");
  EXPECT_EQ(message_of([] { parse_override("steps"); }),
            "--set needs key=value, this is \"steps\"\n  hint: --set train.steps=100; penstock config lists all keys");
}

// The output of `penstock config` is a file that says the same.
TEST(Config, ExplainedTextReadsBack) {
  const Config config = parse("[model]\nwidth = 96\n[data]\ntext = [\"a b\", \"c#d\"]\n[pipeline]\ntransfers = [0, 0.5]\n");
  EXPECT_EQ(print(parse(explained(config, models()))), print(config));
}

TEST(Config, ExplainedTextHasValueUnitMeaningAndDefault) {
  const std::string text = explained(parse("[train]\nsteps = 10\n[model]\nname = \"mlp\"\n"), models());
  const auto has = [&](const std::string& line) { EXPECT_NE(text.find(line + "\n"), std::string::npos) << line << "\n" << text; };
  has("[model]\nname = \"mlp\"            # from the registry of models [\"gpt\"]");
  has("steps = 10              # steps of the whole run [400]");
  has("deadline = 60.0         # seconds that a device may wait for one thing [60.0]");
}

TEST(Config, EveryKeySaysWhatItIs) {
  const std::vector<KeyLine> lines = key_lines(parse("[train]\nseed = 0\n"), models());
  EXPECT_EQ(lines.size(), 95u);
  for (const KeyLine& line : lines) {
    EXPECT_FALSE(line.meaning.empty()) << line.name;
    EXPECT_EQ(line.given, line.name == "seed") << line.name;
    EXPECT_EQ(line.value, line.fallback) << line.name;
  }
}

TEST(Config, KeysAreFoundByTheirFlagsNames) {
  EXPECT_EQ(key_named("learning-rate", models()), "train.learning_rate");
  EXPECT_EQ(key_named("layers", models()), "model.layers");
  EXPECT_EQ(key_named("hidden", models()), "model.hidden");  // of another model than the default one
  EXPECT_EQ(key_named("train.clip", models()), "train.clip");
  EXPECT_EQ(key_named("nothing", models()), "");
}

TEST(Config, WhatShapesASchedule) {
  EXPECT_EQ(parse("").pipeline.table.in_flight, 0);
  const Config config = parse("[pipeline]\nin_flight = 3\ngroup = 2\nunit = 4\ntransfers = [0, 0.5]\nsplit_backward = true\n");
  EXPECT_EQ(config.pipeline.table.in_flight, 3);
  EXPECT_EQ(config.pipeline.table.group, 2);
  EXPECT_EQ(config.pipeline.table.unit, 4);
  EXPECT_EQ(config.pipeline.table.transfers, (std::vector<double>{0, 0.5}));
  EXPECT_TRUE(config.pipeline.table.split_backward);
  EXPECT_EQ(print(parse(print(config))), print(config));
  EXPECT_EQ(parse("[pipeline]\ntransfers = 2\n").pipeline.table.transfers, std::vector<double>{2});
  EXPECT_EQ(parse("", {{"pipeline.transfers", "0,0,2", "--transfers"}}).pipeline.table.transfers, (std::vector<double>{0, 0, 2}));
  EXPECT_EQ(parse("[pipeline]\nworkers = [[6, 2], [4, 4]]\n").pipeline.workers, (std::vector<std::vector<double>>{{6, 2}, {4, 4}}));
  EXPECT_EQ(parse("", {{"pipeline.workers", "[[3]]", "--set"}}).pipeline.workers, (std::vector<std::vector<double>>{{3}}));
  for (const char* value : {"[[1], 2]", "[1, 2]"})
    EXPECT_EQ(failure(concat("[pipeline]\nworkers = ", value, "\n")),
              "run.toml:2:11: pipeline.workers needs a list of lists of numbers, this is a list");
  EXPECT_EQ(failure("[pipeline]\nworkers = [[0]]\n"), "run.toml:2:11: pipeline.workers is 0; it must be at least 1 and at most 4096");
  EXPECT_EQ(failure("[pipeline]\ntransfers = [1, 'x']\n"), "run.toml:2:13: pipeline.transfers needs a list of numbers, this is a list");
  EXPECT_EQ(failure("[pipeline]\ntransfers = [-1]\n"), "run.toml:2:13: pipeline.transfers is -1; it must be at least 0 and at most 1e+06");
  EXPECT_EQ(
      failure("[pipeline]\nsplit_backward = 1\n"),
      "run.toml:2:18: pipeline.split_backward needs true or false, this is a whole number\n  hint: as in pipeline.split_backward = false");
}

TEST(Config, ATableSaysHowManyActorsAndMicrobatchesThereAre) {
  const test::TemporaryFolder folder;
  const std::string table = folder.file("table.csv");
  write_file(table, "0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n2F0,2B0,2F1,2B1\n");
  const auto load = [&](std::vector<Override> overrides) {
    overrides.push_back({"schedule", table, "--schedule"});
    return load_config("", overrides, models());
  };
  EXPECT_EQ(load({}).pipeline.table.actors, 3);
  EXPECT_EQ(load({}).pipeline.table.microbatches, 2);
  EXPECT_EQ(load({parse_override("batch=6")}).train.batch, 6);
  const Config given = load({parse_override("actors=2"), parse_override("pipeline.microbatches=4")});
  EXPECT_EQ(given.pipeline.table.actors, 2);
  EXPECT_EQ(given.pipeline.table.microbatches, 4);
  EXPECT_EQ(message_of([&] { load({parse_override("batch=3")}); }),
            "train.batch = 3 is not divisible by pipeline.microbatches = 2\n  every micro-batch has the same number of sequences\n  hint: "
            "--microbatches 1, or --batch 4");
}

TEST(Config, AMeshNamesActorsAndTheirDevices) {
  const Config config = parse("", parse_mesh("pipe=4, data=2"));
  EXPECT_EQ(config.pipeline.table.actors, 4);
  EXPECT_EQ(config.pipeline.data, 2);
  EXPECT_EQ(parse("", parse_mesh("data=2")).pipeline.table.actors, 1);
  const auto failure = [](const std::string& mesh) { return message_of([&] { parse("", parse_mesh(mesh)); }); };
  EXPECT_EQ(failure("pipe=2,dta=2"),
            "--mesh pipe=2,dta=2: there is no axis \"dta\"\n  there are pipe (actors), data (devices of each actor, or its hosts) and "
            "local (devices of each host)\n  and inside of these tensor, context and expert, over which [layout] splits tensors\n"
            "  [axes] gives them other names\n  hint: did you mean data?");
  EXPECT_EQ(failure("tensr=2"),
            "--mesh tensr=2: there is no axis \"tensr\"\n  there are pipe (actors), data (devices of each actor, or its hosts) and "
            "local (devices of each host)\n  and inside of these tensor, context and expert, over which [layout] splits tensors\n"
            "  [axes] gives them other names\n  hint: did you mean tensor?");
  EXPECT_EQ(failure("pipe=2,tensor=2,data=2"),
            "--mesh pipe=2,tensor=2,data=2: data stands behind tensor\n  the last axis varies fastest: its members are next to each other\n"
            "  hint: write data before tensor");
  EXPECT_EQ(failure("tensor=2,tensor=2"), "--mesh tensor=2,tensor=2 names the axis tensor twice");
  EXPECT_EQ(failure("tensor=0"), "--mesh tensor: pipeline.tensor is 0; it must be at least 1 and at most 4096");
  EXPECT_EQ(failure("pipe"), "--mesh pipe: \"pipe\" has no size\n  hint: --mesh pipe=2,data=2");
  EXPECT_EQ(failure(""), "--mesh names no axis\n  hint: --mesh pipe=2,data=2");
  EXPECT_EQ(failure("pipe=2,pipe=3"), "--mesh pipe=2,pipe=3 names the axis pipe twice");
  EXPECT_EQ(failure("pipe=2,data=x"),
            "--mesh data: pipeline.data needs a whole number, this is a text \"x\"\n  hint: as in pipeline.data = 1");
  EXPECT_EQ(failure("data=0"), "--mesh data: pipeline.data is 0; it must be at least 1 and at most 4096");
  const auto beside = [](const char* setting) {
    return message_of([&] { parse("", {parse_override(setting), mesh_override("pipe=2,data=2")}); });
  };
  EXPECT_EQ(beside("actors=4"),
            "--set actors is 4, and --mesh pipe 2\n  --mesh says the members of all axes: those that it does not name have one\n"
            "  hint: say it in --mesh alone");
  EXPECT_EQ(beside("pipeline.tensor=2").substr(0, 47), "--set pipeline.tensor is 2, and --mesh tensor 1");
  EXPECT_EQ(beside("actors=2"), "no error");
  EXPECT_EQ(
      failure("data=3"),
      "train.batch = 16 is not divisible by pipeline.microbatches = 8 times pipeline.data = 3\n  every device of an actor takes as many "
      "sequences of every micro-batch");
}

// A run that is resumed has the sharding that it had, or that of its new schedule, and as many actors and micro-batches as its new table.
TEST(Config, WhatIsStoredKeepsWhatTheScheduleChooses) {
  const test::TemporaryFolder folder;
  const std::string table = folder.file("table.csv");
  write_file(table, "0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n2F0,2B0,2F1,2B1\n");
  const auto stored = [](const Config& config, const std::vector<Override>& overrides) {
    return load_stored_config(print(config), "manifest.json", overrides, models());
  };
  EXPECT_EQ(parse("").pipeline.program.zero, -1);
  EXPECT_EQ(stored(parse(""), {}).pipeline.program.zero, -1);
  EXPECT_EQ(stored(parse("", {parse_override("zero=0")}), {}).pipeline.program.zero, 0);
  EXPECT_EQ(stored(parse(""), {parse_override("steps=3")}).overridden, std::set<std::string>{"train.steps"});
  const Config on_table = stored(parse(""), {{"schedule", table, "--schedule"}});
  EXPECT_EQ(on_table.pipeline.table.actors, 3);
  EXPECT_EQ(on_table.pipeline.table.microbatches, 2);
  EXPECT_EQ(stored(on_table, {{"schedule", "gpipe", "--schedule"}}).pipeline.table.actors, 3);
  EXPECT_EQ(stored(parse(""), {{"schedule", table, "--schedule"}, {"actors", "4", "--actors"}}).pipeline.table.actors, 4);
}

TEST(Config, WhatIsStoredNamesNoRelativePath) {
  const Config config = with_absolute_paths(
      parse("[data]\ntext = [\"a.txt\", \"/b\"]\n[pipeline]\nschedule = \"../t.csv\"\nplan = \"p.json\"\n[run]\nkernels = \"k\"\n"));
  const std::filesystem::path here = std::filesystem::current_path();
  EXPECT_EQ(config.data.text, (std::vector<std::string>{(here / "a.txt").string(), "/b"}));
  EXPECT_EQ(config.pipeline.schedule, (here.parent_path() / "t.csv").string());
  EXPECT_EQ(config.pipeline.plan, (here / "p.json").string());
  EXPECT_EQ(config.run.out, (here / "runs/gpt").string());
  EXPECT_EQ(config.run.kernels, (here / "k").string());
  const Config defaults = with_absolute_paths(parse(""));
  EXPECT_EQ(defaults.pipeline.schedule, "1f1b");
  EXPECT_EQ(defaults.pipeline.plan + defaults.run.kernels, "own");
  EXPECT_TRUE(defaults.data.text.empty());
}

// The checkpoint may be somebody else's: what its configuration says is written lies in the folder of its run, or is told anew.
TEST(Config, WhatIsStoredWritesNowhereElse) {
  const test::TemporaryFolder run, elsewhere;
  std::filesystem::create_directory_symlink(elsewhere.path(), run.path() / "link");
  const std::string manifest = run.file("checkpoint-4/manifest.json");
  const auto failure_of = [&](const std::string& kernels, const std::vector<Override>& overrides = {}) {
    Config config = parse("");
    config.run.kernels = kernels;
    return test::message_of([&] { load_stored_config(print(config), manifest, overrides, models()); });
  };
  const std::string run_path = std::filesystem::canonical(run.path()).string();
  for (const std::string& kernels : {elsewhere.file("k"), run.path().string() + "/../k", run.file("link/k"), run.path().string() + "k",
                                     std::string("relative"), std::string("/")}) {
    EXPECT_EQ(failure_of(kernels), concat(manifest, ": run.kernels is ", kernels, ", outside of the run's folder ", run_path,
                                          "\n  a resumed run writes nowhere else unless it is told to\n  hint: --set run.kernels=", kernels,
                                          " if it is to write there, else --set run.kernels=own"));
    EXPECT_EQ(failure_of(kernels, {parse_override("kernels=" + kernels)}), "no error");
  }
  for (const std::string& kernels : {std::string("own"), run.file("k"), run.file("more/k"), run.file("more/../k")})
    EXPECT_EQ(failure_of(kernels), "no error") << kernels;
}

TEST(Config, PrintedReadsBack) {
  const Config config =
      parse("", {parse_override("learning_rate=3e-5"), {"text", "[\"a \\\"b\\\"\", 'c\\d']", "--text"}, parse_override("run.out=x\ty")});
  const std::string shown = print(config);
  EXPECT_EQ(print(parse_config(shown, "again", {}, models())), shown);
  EXPECT_EQ(parse(shown).data.text, (std::vector<std::string>{"a \"b\"", "c\\d"}));
}

}  // namespace
}  // namespace penstock
