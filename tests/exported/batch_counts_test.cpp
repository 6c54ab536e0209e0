// SPDX-License-Identifier: Apache-2.0
#include "exported/batch_counts.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "exported/exported.h"
#include "support/errors.h"
#include "support/text_graphs.h"

namespace penstock {
namespace {

using test::graph_of;
using test::text_of;

const CountedInputs kInputs = {{"x", "y", "targets", "mask"}, {"weights"}};

std::string all_of(const BatchCounts& counted) {
  std::string out = text_of(counted.joint);
  for (const Graph& counts : counted.counts) out += text_of(counts);
  out += text_of(counted.divisors);
  for (int share : counted.shares) out += concat("share ", share, "\n");
  for (const std::string& note : counted.notes) out += concat("note: ", note, "\n");
  return out;
}

TEST(BatchCounts, AMeanOverTargetsDividesByTheWholeBatchsNumber) {
  EXPECT_EQ(all_of(batch_counts(graph_of(R"(graph @joint(%x: f32[4,3], %targets: i64[4], %w: f32[3]) -> (f32[], f32[4,3]) {
  %0: f32[] = full() {dtype=f32, fill_value=1.0, size=[], phase="backward"}
  %h: f32[4,3] = mul(%x, %w)
  %1: bool[4] = ne(%targets) {other=-100.0}
  %2: i64[] = sum(%1) {dim=[0], keepdim=false}
  %3: f32[] = to(%2) {dtype=f32}
  %4: f32[], %5: f32[4] = cross_entropy(%h, %targets) {ignore_index=-100}
  %6: f32[] = div(%4, %3)
  %7: f32[] = to(%2) {dtype=f32, phase="backward"}
  %8: f32[] = div(%0, %7) {phase="backward"}
  %9: f32[4,3] = cross_entropy_backward(%8, %h, %targets, %5) {ignore_index=-100, phase="backward"}
  return %6, %9
})"),
                                kInputs)),
            R"(graph @joint(%x: f32[4,3], %targets: i64[4], %w: f32[3], %count.0: f32[]) -> (f32[], f32[4,3]) {
  %0: f32[] = full() {dtype=f32, fill_value=1.0, size=[], phase="backward"}
  %1: f32[4,3] = mul(%x, %w)
  %2: f32[], %3: f32[4] = cross_entropy(%1, %targets) {ignore_index=-100}
  %4: f32[] = div(%2, %count.0)
  %5: f32[] = div(%0, %count.0) {phase="backward"}
  %6: f32[4,3] = cross_entropy_backward(%5, %1, %targets, %3) {ignore_index=-100, phase="backward"}
  return %4, %6
}
graph @counts(%targets: i64[4]) -> (i64[]) {
  %0: bool[4] = ne(%targets) {other=-100.0}
  %1: i64[] = sum(%0) {dim=[0], keepdim=false}
  return %1
}
graph @divisors(%sum.0: i64[]) -> (f32[]) {
  %0: f32[] = to(%sum.0) {dtype=f32}
  return %0
}
share 1
)");
}

// The least of the number and 1, and a factor that is the same for all micro-batches, belong to the divisor; a second loss has a second
// one, which is a number for each sample divided by what is counted.
TEST(BatchCounts, TwoLossesEachWithItsDivisor) {
  EXPECT_EQ(all_of(batch_counts(graph_of(R"(graph @joint(%x: f32[4,3], %mask: f32[4], %weights: f32[], %w: f32[]) -> (f32[]) {
  %0: f32[4] = sum(%x) {dim=[1], keepdim=false}
  %y: f32[4] = mul(%0, %w)
  %1: f32[4] = mul(%y, %mask)
  %2: f32[] = sum(%1) {dim=[0], keepdim=false}
  %3: f32[] = sum(%mask) {dim=[0], keepdim=false}
  %4: f32[] = mul(%3, %weights)
  %5: f32[] = full() {dtype=f32, fill_value=1.0, size=[]}
  %6: f32[] = maximum(%4, %5)
  %7: f32[] = div(%2, %6)
  %8: f32[4] = mul(%mask, %mask)
  %9: f32[] = sum(%8) {dim=[0], keepdim=false}
  %10: f32[4] = div(%mask, %9)
  %11: f32[4] = mul(%10, %y)
  %12: f32[] = sum(%11) {dim=[0], keepdim=false}
  %13: f32[] = mul(%12) {other=0.5}
  %14: f32[] = add(%7, %13)
  return %14
})"),
                                kInputs)),
            R"(graph @joint(%x: f32[4,3], %mask: f32[4], %weights: f32[], %w: f32[], %count.0: f32[], %count.1: f32[]) -> (f32[]) {
  %0: f32[4] = sum(%x) {dim=[1], keepdim=false}
  %1: f32[4] = mul(%0, %w)
  %2: f32[4] = mul(%1, %mask)
  %3: f32[] = sum(%2) {dim=[0], keepdim=false}
  %4: f32[] = div(%3, %count.0)
  %5: f32[4] = div(%mask, %count.1)
  %6: f32[4] = mul(%5, %1)
  %7: f32[] = sum(%6) {dim=[0], keepdim=false}
  %8: f32[] = mul(%7) {other=0.5}
  %9: f32[] = add(%4, %8)
  return %9
}
graph @counts(%mask: f32[4]) -> (f32[], f32[]) {
  %0: f32[] = sum(%mask) {dim=[0], keepdim=false}
  %1: f32[4] = mul(%mask, %mask)
  %2: f32[] = sum(%1) {dim=[0], keepdim=false}
  return %0, %2
}
graph @divisors(%weights: f32[], %sum.0: f32[], %sum.1: f32[]) -> (f32[], f32[]) {
  %0: f32[] = mul(%sum.0, %weights)
  %1: f32[] = full() {dtype=f32, fill_value=1.0, size=[]}
  %2: f32[] = maximum(%0, %1)
  return %2, %sum.1
}
share 1
share 1
)");
}

std::string ports_and_notes(const std::string& ops, const CountOptions& options = {}) {
  const BatchCounts counted =
      batch_counts(graph_of("graph @joint(%x: f32[4,2], %mask: f32[4], %weights: f32[], %p: f32[2], %q: f32[4]) -> (f32[]) {\n" + ops +
                            "  return %9\n}"),
                   kInputs, options);
  std::string out;
  for (std::size_t i = 0; i < counted.shares.size(); ++i)
    out += concat("share ", counted.shares[i], counted.means[i] ? " of a mean" : "", "\n");
  for (const std::string& note : counted.notes) out += concat(note, "\n");
  return out;
}

// A number that goes into what is not linear is the whole batch's itself; one that a sum is multiplied by, m times that.
TEST(BatchCounts, SharesMakeSumsMeans) {
  EXPECT_EQ(ports_and_notes(R"(  %0: f32[] = sum(%mask) {dim=[0], keepdim=false}
  %1: f32[4,2] = mul(%x, %p)
  %2: f32[4,2] = div(%1, %0)
  %3: f32[4,2] = exp(%2)
  %9: f32[] = mean(%3) {dim=[0, 1], keepdim=false}
)"),
            "share 0\n");
  EXPECT_EQ(ports_and_notes(R"(  %0: f32[] = sum(%mask) {dim=[0], keepdim=false}
  %1: f32[] = pow(%0) {exponent=-1.0}
  %2: f32[4,2] = mul(%x, %p)
  %3: f32[] = sum(%2) {dim=[0, 1], keepdim=false}
  %9: f32[] = mul(%3, %1)
)"),
            "share -1\n");
  EXPECT_EQ(ports_and_notes(R"(  %0: f32[] = mean(%mask) {dim=[0], keepdim=false}
  %2: f32[4,2] = mul(%x, %p)
  %3: f32[] = mean(%2) {dim=[0, 1], keepdim=false}
  %9: f32[] = div(%3, %0)
)"),
            "share 0 of a mean\n");
  EXPECT_EQ(ports_and_notes(R"(  %0: f32[] = sum(%mask) {dim=[0], keepdim=false}
  %2: f32[4,2] = mul(%x, %p)
  %3: f32[4,2] = div(%2, %0)
  %9: f32[] = mean(%3) {dim=[0, 1], keepdim=false}
)"),
            "share 0\n");
}

// Sums of sums: weights that are normalised before they are added up.
TEST(BatchCounts, ACountOfCounts) {
  const BatchCounts counted = batch_counts(graph_of(R"(graph @joint(%x: f32[4], %mask: f32[4], %w: f32[]) -> (f32[]) {
  %0: f32[] = sum(%mask) {dim=[0], keepdim=false}
  %1: f32[4] = div(%mask, %0)
  %2: f32[4] = mul(%1, %1)
  %3: f32[] = sum(%2) {dim=[0], keepdim=false}
  %4: f32[4] = mul(%x, %w)
  %5: f32[] = sum(%4) {dim=[0], keepdim=false}
  %6: f32[] = div(%5, %3)
  return %6
})"),
                                           kInputs);
  ASSERT_EQ(counted.counts.size(), 2u);
  EXPECT_EQ(text_of(counted.counts[1]), R"(graph @counts(%mask: f32[4], %sum.0: f32[]) -> (f32[]) {
  %0: f32[4] = div(%mask, %sum.0)
  %1: f32[4] = mul(%0, %0)
  %2: f32[] = sum(%1) {dim=[0], keepdim=false}
  return %2
}
)");
}

// What has parameters in it cannot be counted before the step: the note says that it is each micro-batch's.
TEST(BatchCounts, NotesWhatEachMicroBatchHasByItself) {
  const std::string product = "  %0: f32[4,2] = mul(%x, %p)\n";
  EXPECT_EQ(ports_and_notes(product + R"(  %1: f32[] = mean(%0) {dim=[0, 1], keepdim=false}
  %9: f32[] = sqrt(%1) {origin="loss"}
)"),
            "op \"sqrt\" in module \"loss\": a sum over the samples of each micro-batch, not that of the whole batch, is taken where it "
            "does not add up\n");
  EXPECT_EQ(ports_and_notes(product + R"(  %1: f32[2] = amax(%0) {dim=[0], keepdim=false}
  %9: f32[] = mean(%1) {dim=[0], keepdim=false}
)"),
            "op \"amax\": the samples of each micro-batch are read by themselves, not those of the whole batch\n");
  EXPECT_EQ(ports_and_notes(product + "  %9: f32[] = sum(%0) {dim=[0, 1], keepdim=false}\n"),
            "the loss is a sum over the samples: the batch's is the mean of the micro-batches', reduction=\"sum\" adds them up\n");
  EXPECT_EQ(ports_and_notes(product + "  %9: f32[] = sum(%0) {dim=[0, 1], keepdim=false}\n", {.loss_is_sum = true}), "");
  EXPECT_EQ(ports_and_notes(product + "  %9: f32[] = mine::mean(%0)\n"),
            "op \"mine::mean\": it cannot be told whether several samples are read; if so, those of each micro-batch by themselves\n");
  EXPECT_EQ(ports_and_notes(product + R"(  %1: f32[] = sum(%0) {dim=[0, 1], keepdim=false}
  %2: f32[] = mean(%0) {dim=[0, 1], keepdim=false}
  %9: f32[] = add(%1, %2)
)"),
            "op \"add\": what grows with the samples, as a sum over them does, is added to what does not; both are means over the "
            "micro-batches\n");
}

// A number of the graph's text that grows with the samples makes a mean of a sum; two by which two means are divided does not.
TEST(BatchCounts, NumbersThatGrowWithTheSamples) {
  const std::string sum = "  %0: f32[4,2] = mul(%x, %p)\n  %1: f32[] = sum(%0) {dim=[0, 1], keepdim=false}\n";
  const std::string divided = sum + "  %9: f32[] = div(%1) {other=8.0}\n";
  EXPECT_EQ(ports_and_notes(divided), "");
  EXPECT_EQ(ports_and_notes(divided, {.literals = NumberGrowth{{OpId(2), 1}}}), "");
  EXPECT_EQ(ports_and_notes(divided, {.literals = NumberGrowth{}}),
            "the loss is a sum over the samples: the batch's is the mean of the micro-batches', reduction=\"sum\" adds them up\n");
}

// What neither grows with the samples nor shrinks, as samples - 1, is each micro-batch's own; so is what is added to a mean, and a
// multiple of a parameter.
TEST(BatchCounts, NumbersThatDependOnTheSamplesOtherwise) {
  const std::string mean = "  %0: f32[4,2] = mul(%x, %p)\n  %1: f32[] = mean(%0) {dim=[0, 1], keepdim=false}\n";
  EXPECT_EQ(ports_and_notes(mean + "  %9: f32[] = mul(%1) {other=1.5}\n", {.literals = NumberGrowth{{OpId(2), std::nullopt}}}),
            "op \"mul\": a number depends on how many samples a micro-batch has, not on how many the whole batch has\n");
  EXPECT_EQ(ports_and_notes(mean + "  %9: f32[] = mul(%1) {other=1.5}\n", {.literals = NumberGrowth{}}), "");
  const std::string added = mean + R"(  %2: f32[] = sum(%p) {dim=[0, 1], keepdim=false}
  %3: f32[] = mul(%2) {other=4.0}
  %9: f32[] = add(%1, %3)
)";
  EXPECT_EQ(ports_and_notes(added, {.literals = NumberGrowth{}}), "");
  EXPECT_EQ(ports_and_notes(added, {.literals = NumberGrowth{{OpId(3), 1}}}),
            "op \"add\": what grows with the samples, as a sum over them does, is added to what does not; both are means over the "
            "micro-batches\n");
}

// Distances between all samples are no rows; those to what is the same for all are.
TEST(BatchCounts, Distances) {
  const auto mean_of = [](const std::string& distances) {
    return "  %0: f32[4,2] = mul(%x, %p)\n" + distances + "  %9: f32[] = mean(%1) {dim=[0, 1], keepdim=false}\n";
  };
  EXPECT_EQ(
      ports_and_notes(mean_of("  %1: f32[4,4] = aten::_cdist_forward(%0, %0) {p=2.0}\n")),
      "op \"aten::_cdist_forward\": it cannot be told whether several samples are read; if so, those of each micro-batch by themselves\n");
  EXPECT_EQ(ports_and_notes(mean_of("  %1: f32[4,4] = aten::_cdist_forward(%0, %p) {p=2.0}\n")), "");
  EXPECT_EQ(ports_and_notes(mean_of("  %1: f32[4,4] = aten::_cdist_forward(%p, %0) {p=2.0}\n")), "");
}

// Which number of two is taken of a text.
TEST(BatchCounts, TextsSayWhatGrows) {
  const std::string text = "div(%0) {other={6.0|12.0}, dim={s0}} full() {fill_value={1e-05|nan}}";
  EXPECT_EQ(with_sizes(text, {{"s0", 3}}), "div(%0) {other=6.0, dim=3} full() {fill_value=1e-05}");
  EXPECT_EQ(with_sizes(text, {{"s0", 3}}, Samples::twice), "div(%0) {other=12.0, dim=3} full() {fill_value=nan}");
}

// A count that is divided by a size is a share of all: m micro-batches have m times the size.
TEST(BatchCounts, ACountOverASize) {
  const std::string ops = R"(  %0: f32[4,2] = mul(%x, %p)
  %1: f32[] = sum(%0) {dim=[0, 1], keepdim=false}
  %2: f32[] = sum(%mask) {dim=[0], keepdim=false}
  %3: f32[] = div(%2) {other=8.0}
  %9: f32[] = div(%1, %3)
)";
  EXPECT_EQ(ports_and_notes(ops, {.literals = NumberGrowth{{OpId(3), 1}}}), "share 2\n");
  EXPECT_EQ(ports_and_notes(ops, {.literals = NumberGrowth{}}), "share 1\n");
  EXPECT_EQ(ports_and_notes(ops),
            "share 2\nop \"div\": a number may be that of a micro-batch's samples: the module does not run with twice as many, which would "
            "tell\n");
}

std::string failure(const std::string& ops) {
  return test::message_of([&] { ports_and_notes(ops); });
}

TEST(BatchCountsFailure, ADivisorThatIsNoFunctionOfSums) {
  EXPECT_EQ(failure(R"(  %4: f32[4,2] = mul(%x, %p)
  %0: f32[] = sum(%4) {dim=[0, 1], keepdim=false}
  %1: f32[] = amax(%mask) {dim=[0], keepdim=false, origin="loss"}
  %9: f32[] = div(%0, %1)
)"),
            R"(the loss is divided by a number of the micro-batch's data that is no function of sums
  it is made by op "amax" in module "loss"
  hint: divide by a sum, or give the whole batch's number as an input that is not cut into micro-batches)");
}

TEST(BatchCountsFailure, SamplesAsASequence) {
  EXPECT_EQ(failure(R"(  %1: f32[4] = add(%mask, %q) {origin="positions"}
  %9: f32[] = mean(%1) {dim=[0], keepdim=false}
)"),
            R"(op "add" in module "positions" has a parameter or a buffer for each place along dim 0 of the batch's tensors
  samples lie along dim 0 of what is cut into micro-batches: another batch has others there
  hint: give samples first: batch_first=True, or x.transpose(0, 1) of the batch here and back again in the module's forward)");
}

TEST(BatchCountsFailure, AGradientThatDividesByAnotherNumber) {
  EXPECT_EQ(test::message_of([] {
              batch_counts(graph_of(R"(graph @joint(%x: f32[4], %mask: f32[4], %w: f32[]) -> (f32[], f32[]) {
  %5: f32[4] = mul(%x, %w)
  %0: f32[] = sum(%5) {dim=[0], keepdim=false}
  %1: f32[] = sum(%mask) {dim=[0], keepdim=false}
  %2: f32[] = div(%0, %1) {sequence=3}
  %3: f32[] = amax(%mask) {dim=[0], keepdim=false, phase="backward", sequence=3}
  %4: f32[] = div(%0, %3) {phase="backward", sequence=3, origin="loss"}
  return %2, %4
})"),
                           kInputs);
            }),
            R"(the loss is divided by a number of the micro-batch's data, and its gradient by another one
  by op "div" in module "loss"
  hint: give the whole batch's number as an input that is not cut into micro-batches)");
}

// Which the table of names has not made a division.
TEST(BatchCountsFailure, AMeanOverTargetsByName) {
  EXPECT_EQ(test::message_of([] {
              batch_counts(graph_of(R"(graph @joint(%x: f32[4,3], %targets: i64[4]) -> (f32[]) {
  %0: f32[], %1: f32[] = aten::nll_loss_forward(%x, %targets) {reduction=1, ignore_index=-100, none=[2]}
  return %0
})"),
                           kInputs);
            }),
            R"(the loss is a mean over the targets that count, whose number cannot be taken from the whole batch
  by op "aten::nll_loss_forward"
  hint: take reduction="sum" and divide by a number)");
}

}  // namespace
}  // namespace penstock
