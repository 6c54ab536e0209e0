// SPDX-License-Identifier: Apache-2.0
#include "exported/randomness.h"

#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/text_graphs.h"

namespace penstock {
namespace {

using test::graph_of;
using test::text_of;

std::string drawn(const std::string& text, std::int64_t samples) {
  return text_of(draw_by_counters(graph_of(text), samples));
}

TEST(DrawByCounters, TheBackwardDrawsTheForwardsMaskAgain) {
  EXPECT_EQ(drawn(R"(graph @joint(%x: f32[2,3], %dy: f32[2,3]) -> (f32[2,3], f32[2,3]) {
  %0: f32[2,3], %1: bool[2,3] = aten::native_dropout(%x) {p=0.25, train=true, origin="drop", sequence=4}
  %2: f32[2,3] = aten::native_dropout_backward(%dy, %1) {scale=1.3333333333333333, phase="backward", origin="drop", sequence=4}
  return %0, %2
})",
                  2),
            R"(graph @joint(%x: f32[2,3], %dy: f32[2,3], %rows: i64[2], %seed: i64[], %step: i64[]) -> (f32[2,3], f32[2,3]) {
  %0: i64[] = random_key(%seed, %step) {op=0, origin="drop", sequence=4}
  %1: f32[2,3] = dropout(%x, %0, %rows) {p=0.25, origin="drop", sequence=4}
  %2: f32[2,3] = dropout(%dy, %0, %rows) {p=0.25, phase="backward", origin="drop", sequence=4}
  return %1, %2
}
)");
}

// Samples along dim 0 with more than one row each, and a tensor that has no samples along dim 0.
TEST(DrawByCounters, RowsAreTheSamplesOrTheFirst) {
  EXPECT_EQ(drawn(R"(graph @joint(%x: f32[6,3], %y: f32[3,2]) -> (f32[6,3], f32[3,2]) {
  %0: f32[6,3], %1: bool[6,3] = aten::native_dropout(%x) {p=0.5, train=true, sequence=0}
  %2: f32[3,2], %3: bool[3,2] = aten::native_dropout(%y) {p=0.5, train=true, sequence=1}
  return %0, %2
})",
                  2),
            R"(graph @joint(%x: f32[6,3], %y: f32[3,2], %rows: i64[2], %seed: i64[], %step: i64[]) -> (f32[6,3], f32[3,2]) {
  %0: i64[] = random_key(%seed, %step) {op=0, sequence=0}
  %1: f32[2,9] = reshape(%x) {shape=[2, 9], sequence=0}
  %2: f32[2,9] = dropout(%1, %0, %rows) {p=0.5, sequence=0}
  %3: f32[6,3] = reshape(%2) {shape=[6, 3], sequence=0}
  %4: i64[] = random_key(%seed, %step) {op=1, sequence=1}
  %5: f32[1,6] = reshape(%y) {shape=[1, 6], sequence=1}
  %6: i64[1] = slice(%rows) {dim=0, end=1, start=0, step=1, sequence=1}
  %7: f32[1,6] = dropout(%5, %4, %6) {p=0.5, sequence=1}
  %8: f32[3,2] = reshape(%7) {shape=[3, 2], sequence=1}
  return %3, %8
}
)");
}

// Stochastic depth: a mask for each sample, over its probability.
TEST(DrawByCounters, AMaskForEachSample) {
  EXPECT_EQ(drawn(R"(graph @joint(%x: f32[2,3]) -> (f32[2,3]) {
  %0: f32[2,1] = full() {dtype=f32, fill_value=0.0, size=[2, 1], sequence=0}
  %1: f32[2,1] = aten::bernoulli.p(%0) {p=0.75, sequence=1}
  %2: f32[2,1] = div(%1) {other=0.75, sequence=2}
  %3: f32[2,3] = mul(%x, %2) {sequence=3}
  return %3
})",
                  2),
            R"(graph @joint(%x: f32[2,3], %rows: i64[2], %seed: i64[], %step: i64[]) -> (f32[2,3]) {
  %0: i64[] = random_key(%seed, %step) {op=0, sequence=1}
  %1: f32[2,1] = full() {dtype=f32, fill_value=1.0, size=[2, 1], sequence=1}
  %2: f32[2,1] = dropout(%1, %0, %rows) {p=0.25, sequence=1}
  %3: bool[2,1] = ne(%2) {other=0.0, sequence=1}
  %4: f32[2,1] = to(%3) {dtype=f32, sequence=1}
  %5: f32[2,1] = mul(%4) {other=1.3333333333333333, sequence=2}
  %6: f32[2,3] = mul(%x, %5) {sequence=3}
  return %6
}
)");
}

TEST(DrawByCounters, AMaskOfTheTensorsTypeIsADropout) {
  EXPECT_EQ(drawn(R"(graph @joint(%x: f32[2,3], %dy: f32[2,3]) -> (f32[2,3], f32[2,3]) {
  %0: f32[2,3] = aten::bernoulli.p(%x) {p=0.75, sequence=0}
  %1: f32[2,3] = div(%0) {other=0.75, sequence=1}
  %2: f32[2,3] = mul(%x, %1) {sequence=2}
  %3: f32[2,3] = mul(%1, %dy) {phase="backward", sequence=2}
  return %2, %3
})",
                  2),
            R"(graph @joint(%x: f32[2,3], %dy: f32[2,3], %rows: i64[2], %seed: i64[], %step: i64[]) -> (f32[2,3], f32[2,3]) {
  %0: i64[] = random_key(%seed, %step) {op=0, sequence=0}
  %1: f32[2,3] = dropout(%x, %0, %rows) {p=0.25, sequence=2}
  %2: f32[2,3] = dropout(%dy, %0, %rows) {p=0.25, phase="backward", sequence=2}
  return %1, %2
}
)");
}

// rand < 0.25; rand > 0.25; floor(rand + 0.25).
TEST(DrawByCounters, ComparisonsOfUniformNumbers) {
  EXPECT_EQ(drawn(R"(graph @joint(%x: f32[2,3]) -> (bool[2,3], bool[2,3], f32[2]) {
  %0: f32[2,3] = aten::rand_like(%x) {sequence=0}
  %1: bool[2,3] = lt(%0) {other=0.25, sequence=1}
  %2: bool[2,3] = gt(%0) {other=0.25, sequence=2}
  %3: f32[2] = aten::rand() {size=[2], sequence=3}
  %4: f32[2] = add(%3) {other=0.25, sequence=4}
  %5: f32[2] = aten::floor(%4) {sequence=5}
  return %1, %2, %5
})",
                  2),
            R"(graph @joint(%x: f32[2,3], %rows: i64[2], %seed: i64[], %step: i64[]) -> (bool[2,3], bool[2,3], f32[2]) {
  %0: i64[] = random_key(%seed, %step) {op=0, sequence=0}
  %1: f32[2,3] = full() {dtype=f32, fill_value=1.0, size=[2, 3], sequence=1}
  %2: f32[2,3] = dropout(%1, %0, %rows) {p=0.75, sequence=1}
  %3: bool[2,3] = ne(%2) {other=0.0, sequence=1}
  %4: f32[2,3] = full() {dtype=f32, fill_value=1.0, size=[2, 3], sequence=2}
  %5: f32[2,3] = dropout(%4, %0, %rows) {p=0.25, sequence=2}
  %6: bool[2,3] = ne(%5) {other=0.0, sequence=2}
  %7: i64[] = random_key(%seed, %step) {op=1, sequence=3}
  %8: f32[2] = full() {dtype=f32, fill_value=1.0, size=[2], sequence=5}
  %9: f32[2] = dropout(%8, %7, %rows) {p=0.75, sequence=5}
  %10: bool[2] = ne(%9) {other=0.0, sequence=5}
  %11: f32[2] = to(%10) {dtype=f32, sequence=5}
  return %3, %6, %11
}
)");
}

TEST(DrawByCounters, AGraphWithoutRandomOpsStays) {
  const std::string text = "graph @joint(%x: f32[2]) -> (f32[2]) {\n  %0: f32[2] = exp(%x)\n  return %0\n}\n";
  EXPECT_EQ(drawn(text, 2), text);
}

std::string failure(const std::string& text) {
  return test::message_of([&] { drawn(text, 2); });
}

TEST(DrawByCountersFailure, OpsThatNoCounterDraws) {
  EXPECT_EQ(failure(R"(graph @joint(%x: f32[2]) -> (f32[2]) {
  %0: f32[2] = aten::randn_like(%x) {origin="noise"}
  return %0
})"),
            R"(op "aten::randn_like" draws or reads random numbers in a way that plans could not draw alike
  in module "noise"
  hint: dropout, bernoulli of one probability, and rand compared with a number are drawn by counters)");
  EXPECT_EQ(failure(R"(graph @joint(%x: f32[2]) -> (f32[2]) {
  %0: f32[2] = aten::bernoulli(%x)
  return %0
})"),
            R"(op "aten::bernoulli" draws or reads random numbers in a way that plans could not draw alike
  its probabilities are a tensor
  hint: dropout, bernoulli of one probability, and rand compared with a number are drawn by counters)");
  EXPECT_EQ(failure(R"(graph @joint(%x: f32[2]) -> (f32[2]) {
  %0: f32[2] = aten::uniform(%x) {from=-1.0, to=1.0}
  return %0
})"),
            R"(op "aten::uniform" draws or reads random numbers in a way that plans could not draw alike
  from -1 to 1
  hint: dropout, bernoulli of one probability, and rand compared with a number are drawn by counters)");
}

TEST(DrawByCountersFailure, WhatElseReadsUniformNumbers) {
  EXPECT_EQ(failure(R"(graph @joint(%x: f32[2]) -> (f32[2]) {
  %0: f32[2] = aten::rand_like(%x)
  %1: f32[2] = log(%0) {origin="gumbel"}
  return %1
})"),
            R"(op "log" draws or reads random numbers in a way that plans could not draw alike
  in module "gumbel"
  hint: dropout, bernoulli of one probability, and rand compared with a number are drawn by counters)");
  EXPECT_EQ(failure(R"(graph @joint(%x: f32[2]) -> (f32[2]) {
  %0: f32[2] = aten::rand_like(%x)
  return %0
})"),
            R"(op "aten::rand_like" draws or reads random numbers in a way that plans could not draw alike
  they are a result of the module
  hint: dropout, bernoulli of one probability, and rand compared with a number are drawn by counters)");
}

TEST(DrawByCountersFailure, AttentionThatDropsInside) {
  EXPECT_EQ(failure(R"(graph @joint(%q: f32[1,1,2,2]) -> (f32[1,1,2,2]) {
  %0: f32[1,1,2,2], %1: f32[1,1,2] = aten::_scaled_dot_product_flash_attention_for_cpu(%q, %q, %q) {dropout_p=0.1, none=[3], origin="attn"}
  return %0
})"),
            R"(op "aten::_scaled_dot_product_flash_attention_for_cpu" draws or reads random numbers in a way that plans could not draw alike
  in module "attn"
  hint: take attention whose dropout is an op of its own (attn_implementation="eager"), or none)");
}

TEST(DrawByCountersFailure, AnInputOfANewOnesName) {
  EXPECT_EQ(failure(R"(graph @joint(%x: f32[2], %step: i64[]) -> (f32[2]) {
  %0: f32[2], %1: bool[2] = aten::native_dropout(%x) {p=0.5, train=true}
  return %0
})"),
            R"(the module draws random numbers and has an input "step"
  rows, seed and step say which numbers are drawn
  hint: give the input another name)");
}

std::string undrawn(const std::string& text) {
  return text_of(without_draws(graph_of(text)));
}

// Dropout passes all; a branch that is dropped by a mask over its probability has its usual weight.
TEST(WithoutDraws, WhatIsRandomIsAsOnAverage) {
  EXPECT_EQ(undrawn(R"(graph @forward(%x: f32[2,3], %y: f32[2,3,4]) -> (f32[2,3], f32[2,3,4]) {
  %0: f32[2,3], %1: bool[2,3] = aten::native_dropout(%x) {p=0.25, train=true, sequence=0}
  %2: f32[2,1,1] = full() {dtype=f32, fill_value=0.0, size=[2, 1, 1], sequence=1}
  %3: f32[2,1,1] = aten::bernoulli.p(%2) {p=0.75, sequence=2}
  %4: f32[2,1,1] = div(%3) {other=0.75, sequence=3}
  %5: f32[2,3,4] = mul(%y, %4) {sequence=4}
  return %0, %5
})"),
            R"(graph @forward(%x: f32[2,3], %y: f32[2,3,4]) -> (f32[2,3], f32[2,3,4]) {
  %0: f32[2,1,1] = full() {dtype=f32, fill_value=0.75, size=[2, 1, 1], sequence=2}
  %1: f32[2,1,1] = mul(%0) {other=1.3333333333333333, sequence=3}
  %2: f32[2,3,4] = mul(%y, %1) {sequence=4}
  return %x, %2
}
)");
}

TEST(WithoutDraws, AChoiceOfTrueOrFalseHasNoAverage) {
  EXPECT_EQ(test::message_of([] {
              undrawn(R"(graph @forward(%x: f32[2,3]) -> (bool[2,3]) {
  %0: f32[2,3] = aten::rand() {size=[2, 3], origin="gate", sequence=0}
  %1: bool[2,3] = lt(%0) {other=0.5, origin="gate", sequence=1}
  return %1
})");
            }),
            "op \"lt\" draws or reads random numbers in a way that plans could not draw alike\n"
            "  without random numbers it would be neither true nor false\n  in module \"gate\"\n"
            "  hint: dropout, bernoulli of one probability, and rand compared with a number are drawn by counters");
}

}  // namespace
}  // namespace penstock
