// SPDX-License-Identifier: Apache-2.0
// Stages that take micro-batches in sizes of their own: what their programs are, and what is refused.
#include "lower/sizes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/text.h"
#include "lower/passes.h"
#include "penstock/step.h"
#include "schedule/sizes.h"
#include "support/dag_model.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

constexpr int kMicrobatches = 4;

Graph step_of(const Model& model, int microbatches) {
  return gradient_step(model, {kMicrobatches, test::kContext, microbatches});
}

TEST(Sizes, AreThoseOfAllActionsOfAStage) {
  EXPECT_EQ(sizes_together(graphpipe(chain(3), 8, {1, 4, 2})), (std::vector<std::int32_t>{1, 4, 2}));
  const auto sizes = [](const char* csv) { return sizes_together(parse_schedule(csv, "table.csv")); };
  EXPECT_EQ(sizes("0x2F0,0x2F2,0x2B0,0B2,0B3\n1F0\n"), (std::vector<std::int32_t>{1, 1}));
  EXPECT_EQ(sizes("0F0,0x2F1,0x2F3\n"), std::vector<std::int32_t>{1});
  EXPECT_EQ(sizes("0.0x2F0,0.1x2F0\n"), (std::vector<std::int32_t>{1, 1}));
  EXPECT_EQ(micro_batches_together(graphpipe(chain(2), 6, {2, 3})), 6);
}

// What a stage reads of one of another size is cut or put together by the device that reads it.
TEST(Sizes, DraftsOfAllPassesReadBack) {
  const Schedule table = graphpipe(chain(3), kMicrobatches, {1, 4, 2});
  const LowerInput input = lower_input(step_of(test::DagModel(chain(3), true), 1), table);
  EXPECT_EQ(input.microbatches, kMicrobatches);
  Draft draft;
  for (const LowerPass& pass : lower_passes()) {
    SCOPED_TRACE(pass.name);
    run_passes(input, draft, pass.name);
    EXPECT_EQ(print(parse_draft(print(draft))), print(draft));
    verify(input, draft);
  }
  std::map<std::string, int> runs;
  for (const auto& row : draft.actors)
    for (const auto& run : row)
      if (run.opcode == Opcode::run && run.unit) ++runs[draft.tasks[run.task].name];
  EXPECT_EQ(runs["F0"], 4);
  EXPECT_EQ(runs["F1"], 1);
  EXPECT_EQ(runs["F2"], 2);
}

// A step in the table's own micro-batches is run one micro-batch after the other.
TEST(Sizes, OfAStepInSmallMicroBatchesAreOne) {
  const Schedule table = graphpipe(chain(3), kMicrobatches, {1, 4, 2});
  const Program program = lower(step_of(test::DagModel(chain(3), true), kMicrobatches), table);
  for (const DeviceProgram& device : program.devices)
    EXPECT_EQ(std::ranges::count_if(device.instructions,
                                    [](const Instruction& i) { return i.opcode == Opcode::run && i.action && i.kind == Kind::F; }),
              kMicrobatches);
}

class MixesSamples : public test::DagModel {
 public:
  using DagModel::DagModel;
  Tensor logits(const Parameters& p, const Batch& batch) const override { return softmax(DagModel::logits(p, batch), 0); }
};

TEST(Sizes, WhatMixesSamplesIsRefused) {
  const MixesSamples model(chain(2), true);
  const auto message = [&](const std::vector<int>& sizes, int microbatches) {
    return message_of([&] { lower(step_of(model, microbatches), graphpipe(chain(2), kMicrobatches, sizes)); });
  };
  EXPECT_EQ(message({1, 2}, 2),
            "stage \"1\": F of 2 micro-batches together is not that of each of them\n"
            "  all samples of a micro-batch are needed for softmax\n"
            "  hint: let every action of the table take one micro-batch (plan --microbatch-sizes N: one size for all stages)");
  EXPECT_EQ(message({2, 1}, 4), "no error");
  const ModelPrograms programs = compile(model, {kMicrobatches, test::kContext}, {}, graphpipe(chain(2), kMicrobatches, {1, 2}));
  EXPECT_EQ(programs.one_by_one, message({1, 2}, 2));
  EXPECT_EQ(programs.training.microbatches, kMicrobatches);
}

}  // namespace
}  // namespace penstock
