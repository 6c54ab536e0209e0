#include "exported/batch_counts.h"

#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/text_graphs.h"

namespace penstock {
namespace {

using test::graph_of;
using test::text_of;

const CountedInputs kInputs = {{"targets", "mask"}, {"weights"}};

std::string all_of(const BatchCounts& counted) {
  return text_of(counted.joint) + text_of(counted.counts) + text_of(counted.divisors);
}

TEST(BatchCounts, AMeanOverTargetsDividesByTheWholeBatchsNumber) {
  EXPECT_EQ(all_of(batch_counts(graph_of(R"(graph @joint(%x: f32[4,3], %targets: i64[4]) -> (f32[], f32[4,3]) {
  %0: f32[] = full() {dtype=f32, fill_value=1.0, size=[], phase="backward"}
  %1: bool[4] = ne(%targets) {other=-100.0}
  %2: i64[] = sum(%1) {dim=[0], keepdim=false}
  %3: f32[] = to(%2) {dtype=f32}
  %4: f32[], %5: f32[4] = cross_entropy(%x, %targets) {ignore_index=-100}
  %6: f32[] = div(%4, %3)
  %7: f32[] = to(%2) {dtype=f32, phase="backward"}
  %8: f32[] = div(%0, %7) {phase="backward"}
  %9: f32[4,3] = cross_entropy_backward(%8, %x, %targets, %5) {ignore_index=-100, phase="backward"}
  return %6, %9
})"),
                                kInputs)),
            R"(graph @joint(%x: f32[4,3], %targets: i64[4], %count.0: f32[]) -> (f32[], f32[4,3]) {
  %0: f32[] = full() {dtype=f32, fill_value=1.0, size=[], phase="backward"}
  %1: f32[], %2: f32[4] = cross_entropy(%x, %targets) {ignore_index=-100}
  %3: f32[] = div(%1, %count.0)
  %4: f32[] = div(%0, %count.0) {phase="backward"}
  %5: f32[4,3] = cross_entropy_backward(%4, %x, %targets, %2) {ignore_index=-100, phase="backward"}
  return %3, %5
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
)");
}

// The least of the number and 1, and a factor that is the same for all micro-batches, belong to the divisor; a second loss has a second
// one.
TEST(BatchCounts, TwoLossesEachWithItsDivisor) {
  EXPECT_EQ(all_of(batch_counts(graph_of(R"(graph @joint(%x: f32[4,3], %mask: f32[4], %weights: f32[], %y: f32[4]) -> (f32[]) {
  %0: f32[4] = sum(%x) {dim=[1], keepdim=false}
  %1: f32[4] = mul(%0, %mask)
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
            R"(graph @joint(%x: f32[4,3], %mask: f32[4], %weights: f32[], %y: f32[4], %count.0: f32[], %count.1: f32[]) -> (f32[]) {
  %0: f32[4] = sum(%x) {dim=[1], keepdim=false}
  %1: f32[4] = mul(%0, %mask)
  %2: f32[] = sum(%1) {dim=[0], keepdim=false}
  %3: f32[] = div(%2, %count.0)
  %4: f32[4] = div(%mask, %count.1)
  %5: f32[4] = mul(%4, %y)
  %6: f32[] = sum(%5) {dim=[0], keepdim=false}
  %7: f32[] = mul(%6) {other=0.5}
  %8: f32[] = add(%3, %7)
  return %8
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
)");
}

// A quotient that is data for the model, a number for each sample, one that is the same for all micro-batches, one that has parameters in
// it.
TEST(BatchCounts, OtherQuotientsStay) {
  const std::string text = R"(graph @joint(%x: f32[4], %mask: f32[4], %weights: f32[]) -> (f32[], f32[4]) {
  %0: f32[] = sum(%mask) {dim=[0], keepdim=false}
  %1: f32[4] = div(%mask, %0)
  %2: f32[4] = mul(%1, %x)
  %3: f32[4] = exp(%2)
  %4: f32[4] = div(%3, %mask)
  %5: f32[] = sum(%4) {dim=[0], keepdim=false}
  %6: f32[] = div(%5, %weights)
  %7: f32[] = sum(%3) {dim=[0], keepdim=false}
  %8: f32[] = div(%6, %7)
  %9: f32[4] = div(%x, %0)
  return %8, %9
}
)";
  EXPECT_EQ(all_of(batch_counts(graph_of(text), kInputs)),
            text + "graph @counts() -> () {\n  return\n}\ngraph @divisors() -> () {\n  return\n}\n");
}

// The product of two means is no sum over the samples.
TEST(BatchCounts, AProductOfQuotientsStays) {
  const std::string text = R"(graph @joint(%x: f32[4,2], %mask: f32[4,1]) -> (f32[]) {
  %0: f32[4,2] = mul(%x, %mask)
  %1: f32[2] = sum(%0) {dim=[0], keepdim=false}
  %2: f32[] = sum(%mask) {dim=[0, 1], keepdim=false}
  %3: f32[2] = div(%1, %2)
  %4: f32[2] = div(%1, %2)
  %5: f32[2] = mul(%3, %4)
  %6: f32[] = sum(%5) {dim=[0], keepdim=false}
  return %6
}
)";
  EXPECT_EQ(all_of(batch_counts(graph_of(text), kInputs)),
            text + "graph @counts() -> () {\n  return\n}\ngraph @divisors() -> () {\n  return\n}\n");
}

std::string failure(const std::string& ops) {
  return test::message_of(
      [&] { batch_counts(graph_of("graph @joint(%x: f32[4], %mask: f32[4]) -> (f32[]) {\n" + ops + "  return %9\n}"), kInputs); });
}

TEST(BatchCountsFailure, ADivisorThatIsNoFunctionOfSums) {
  EXPECT_EQ(failure(R"(  %0: f32[] = sum(%x) {dim=[0], keepdim=false}
  %1: f32[] = amax(%mask) {dim=[0], keepdim=false, origin="loss"}
  %9: f32[] = div(%0, %1)
)"),
            R"(the loss is divided by a number of the micro-batch's data that is no function of sums
  it is made by op "amax" in module "loss"
  hint: divide by a sum, or give the whole batch's number as an input that is not cut into micro-batches)");
}

TEST(BatchCountsFailure, AGradientThatDividesByAnotherNumber) {
  EXPECT_EQ(test::message_of([] {
              batch_counts(graph_of(R"(graph @joint(%x: f32[4], %mask: f32[4]) -> (f32[], f32[]) {
  %0: f32[] = sum(%x) {dim=[0], keepdim=false}
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

TEST(BatchCountsFailure, AMeanIsDivided) {
  const std::string text = R"(the loss is divided by a number of the micro-batch's data, but what is divided is no sum
  it is made by op "mean" in module "loss"
  it is divided by op "div" in module "loss"
  hint: divide sums over the samples, or give the whole batch's number as an input that is not cut into micro-batches)";
  EXPECT_EQ(failure(R"(  %0: f32[] = mean(%x) {dim=[0], keepdim=false, origin="loss"}
  %1: f32[] = sum(%mask) {dim=[0], keepdim=false}
  %2: f32[] = mul(%0, %1)
  %9: f32[] = div(%2, %1) {origin="loss"}
)"),
            "no error");  // the mean depends on parameters alone
  EXPECT_EQ(failure(R"(  %0: f32[4] = mul(%x, %mask)
  %1: f32[] = mean(%0) {dim=[0], keepdim=false, origin="loss"}
  %2: f32[] = sum(%mask) {dim=[0], keepdim=false}
  %9: f32[] = div(%1, %2) {origin="loss"}
)"),
            text);
  EXPECT_EQ(failure(R"(  %0: f32[] = sum(%mask) {dim=[0], keepdim=false}
  %1: f32[4] = div(%mask, %0) {origin="loss"}
  %2: f32[4] = mul(%x, %1)
  %9: f32[] = mean(%2) {dim=[0], keepdim=false, origin="loss"}
)"),
            text);
}

}  // namespace
}  // namespace penstock
