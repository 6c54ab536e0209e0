// SPDX-License-Identifier: Apache-2.0
// Text is what processes are sent of a program, so a program that is read from it is the program that was printed, to each field.
#include <gtest/gtest.h>

#include "base/text.h"
#include "config/compile.h"
#include "models/registry.h"
#include "penstock/program.h"

namespace penstock {
namespace {

TEST(ProgramText, KeepsWhatEachInstructionSays) {
  const std::vector<std::vector<std::string>> cases = {
      {"schedule=1f1b", "update=stage", "clip=0"},
      {"schedule=pipedream", "window=4", "clip=0", "tied=0"},
      {"schedule=xpipe", "window=3", "clip=0", "tied=0", "optimiser=sgd"},
      {"schedule=pipedream-2bw", "window=4", "clip=0", "tied=0", "data=2", "zero=1"},
      {"schedule=hetpipe", "window=4", "clip=0", "tied=0", "data=2", "pipeline.distance=1", "optimiser=sgd", "momentum=0",
       "weight_decay=0"},
      {"schedule=zeropp", "data=2", "zero=3"},
      {"schedule=1f1b", "tensor=2", "slices=2"},
  };
  int copies = 0;
  for (const std::vector<std::string>& settings : cases) {
    SCOPED_TRACE(join(settings, " ", [](const std::string& setting) { return setting; }));
    std::vector<Override> overrides = {parse_override("layers=2"),  parse_override("width=16"),       parse_override("heads=2"),
                                       parse_override("context=8"), parse_override("microbatches=4"), parse_override("batch=8")};
    for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
    const Config config = load_config("", overrides, builtin_models());
    const Program program = compile_training(config, prepare(config, builtin_models()));
    const Program read = parse_program(print(program));
    ASSERT_EQ(read.devices.size(), program.devices.size());
    for (std::size_t d = 0; d < program.devices.size(); ++d) {
      const std::vector<Instruction>&ours = program.devices[d].instructions, &theirs = read.devices[d].instructions;
      ASSERT_EQ(theirs.size(), ours.size());
      for (std::size_t i = 0; i < ours.size(); ++i) {
        EXPECT_TRUE(theirs[i] == ours[i]) << "device " << d << ", instruction " << i << ", a " << name(ours[i].opcode);
        copies += ours[i].opcode == Opcode::copy && ours[i].action;
      }
    }
  }
  EXPECT_GT(copies, 0);
}

}  // namespace
}  // namespace penstock
