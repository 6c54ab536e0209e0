// SPDX-License-Identifier: Apache-2.0
#include "config/compile.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <random>
#include <regex>

#include "base/text.h"
#include "models/registry.h"
#include "support/errors.h"
#include "support/rounds.h"
#include "support/temporary.h"

namespace penstock {
namespace {

using test::message_of;

Config config(const std::vector<std::string>& settings = {}) {
  std::vector<Override> overrides;
  for (const char* small : {"width=16", "heads=2", "context=8", "batch=4", "microbatches=4"}) overrides.push_back(parse_override(small));
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  return load_config("", overrides, builtin_models());
}

// Where each state tensor lives as owner.
std::map<std::string, std::size_t> owners(const Program& program) {
  std::map<std::string, std::size_t> out;
  for (std::size_t device = 0; device < program.devices.size(); ++device)
    for (const Slot& slot : program.devices[device].slots)
      if (slot.kind == SlotClass::state)
        for (const std::string& name : slot.names) out[name] = device;
  return out;
}

TEST(Compile, ValidationLeavesParametersWhereTrainingHasThem) {
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1"}) {
    const Config c = config({concat("schedule=", schedule), "recompute=inputs"});
    const Prepared prepared = prepare(c, builtin_models());
    const Program training = compile_training(c, prepared), evaluation = compile_evaluation(c, prepared);
    const auto owner = owners(training);
    EXPECT_TRUE(owner.contains("first:wte.weight") && owner.contains("step"));
    for (const auto& [name, device] : owners(evaluation)) EXPECT_EQ(owner.at(name), device) << name;
    EXPECT_EQ(owners(compile_gradients(c, prepared)).size(), prepared.parameters.size());
  }
}

TEST(Compile, GenerationIsOneSequenceOnOneDevice) {
  const Config c = config();
  const Program program = compile_generation(c, prepare_sequential(c, builtin_models()));
  EXPECT_EQ(program.devices.size(), 1u);
  ASSERT_EQ(program.outputs.size(), 1u);
  EXPECT_EQ(program.outputs[0].type.text(), "f32[1,8,256]");
}

TEST(Compile, StagesAsText) {
  const Config c = config({"schedule=zb-h1"});
  const std::string text = stages_text(c, prepare(c, builtin_models()));
  EXPECT_TRUE(text.starts_with("penstock stages 1\nstage 0 ")) << text;
  EXPECT_NE(text.find("  W: "), std::string::npos) << text;
}

TEST(Compile, WrongSchedulesAreNamed) {
  const test::TemporaryFolder folder;
  const auto failure = [](const Config& c) {
    return message_of([&] {
      const Prepared prepared = prepare(c, builtin_models());
      compile_training(c, prepared);
    });
  };
  EXPECT_NE(failure(config({"schedule=1f1n"})).find("1f1b"), std::string::npos);
  EXPECT_EQ(failure(config({"schedule=" + folder.file("none.csv"), "actors=2"})),
            concat("cannot read ", folder.file("none.csv"), ": No such file or directory\n  hint: name a file that is in ",
                   std::filesystem::path(folder.file("none.csv")).parent_path().string(), ", or another folder"));
  write_file(folder.file("one.csv"), "0F0,0B0\n");
  EXPECT_EQ(failure(config({"schedule=" + folder.file("one.csv"), "actors=2"})),
            concat(folder.file("one.csv"), " has 1 actors, pipeline.actors is 2\n  hint: --actors 1"));
  EXPECT_EQ(failure(config({"schedule=" + folder.file("one.csv"), "actors=1", "pipeline.unit=2"})),
            concat(folder.file("one.csv"), " is a table: it takes no unit\n  hint: leave out pipeline.unit"));
  EXPECT_EQ(failure(config({"transfers=1"})),
            "1f1b takes no --transfers\n  it takes --in-flight, --self-conditioning\n  hint: schedules that do: "
            "zb-h2, crosspipe");
  EXPECT_EQ(failure(config({"schedule=zb-h2", "transfers=[1,2,3]"})),
            "zb-h2: --transfers gives 3 times for the 1 links of 2 actors\n  hint: give one for all links, or one for each");
  write_file(folder.file("short.csv"), "0F0,0B0\n1F0,1B0\n");
  EXPECT_NE(failure(config({"schedule=" + folder.file("short.csv")})).find("short.csv:1:1: 0F1 to 0F3 are missing near 0F0"),
            std::string::npos);
  // A stage that the model cannot have is named with the action that asks for it.
  write_file(folder.file("fifth.csv"), "0F0,0F1,0B0,0B1\n1F0,4F1,1B0,1B1\n");
  EXPECT_EQ(failure(config({"schedule=" + folder.file("fifth.csv"), "microbatches=2"})),
            concat(folder.file("fifth.csv"),
                   ":2:2: 4F1 asks for stage 4: model \"gpt\" with 4 layers cannot be cut into 5 stages\n"
                   "  hint: use 1 to 4 stages (actors times chunks); a schedule that sets attentions apart, as helixpipe, takes 9"));
  EXPECT_NE(failure(config({"model.layers=1"})).find("1 layer"), std::string::npos);
}

// Tables in which one digit is another: what is refused is refused with row and cell.
TEST(Compile, RefusedTablesNameTheCell) {
  const test::TemporaryFolder folder;
  const std::string file = folder.file("mutant.csv");
  const std::uint64_t seed = 7;
  std::mt19937_64 random(seed);
  int refused = 0;
  for (int round = 0; round < test::rounds(60); ++round) {
    const char* schedule = std::array{"1f1b", "zb-h1", "gpipe"}[random() % 3];
    std::string csv = print(make_schedule(schedule, {.actors = 2 + static_cast<int>(random() % 3), .microbatches = 4}));
    std::size_t at = 0;
    do at = random() % csv.size();
    while (csv[at] < '0' || csv[at] > '9');
    csv[at] = static_cast<char>('0' + (csv[at] - '0' + 1 + static_cast<int>(random() % 9)) % 10);
    write_file(file, csv);
    SCOPED_TRACE(concat("seed ", seed, ", round ", round, "\n", csv));
    const std::string message = message_of([&] {
      const Config c = config({"schedule=" + file});
      compile_training(c, prepare(c, builtin_models()));
    });
    if (message == "no error") continue;
    ++refused;
    EXPECT_TRUE(message.starts_with(file) && std::regex_search(message.substr(file.size()), std::regex("^:[0-9]+:[0-9]+: "))) << message;
  }
  EXPECT_GE(refused, test::rounds(50));
}

}  // namespace
}  // namespace penstock
