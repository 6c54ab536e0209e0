// SPDX-License-Identifier: Apache-2.0
// Loops unrolled into slices, text in and text out.
#include "transform/slices.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/text_graphs.h"

namespace penstock {
namespace {

using test::graph_of;
using test::message_of;
using test::text_of;

// A loop over one sequence in each micro-batch, whose stages a and b have this body.
Graph loop_of_body(const std::string& body) {
  return graph_of(
      "graph @step(%x: f32[2,4,6], %w: f32[6]) -> (f32[]) {\n"
      "  %0: f32[] = accumulate(%x, %w) {microbatches=2, split=1} (%x: f32[1,4,6], %w: f32[6]) -> (f32[]) {\n"
      "    %0: f32[1,4,6] = constrain(%x) {dims=\"batch,sequence,embed\", stage=\"a\", sequence=0}\n" +
      body + "  }\n  return %0\n}\n");
}

const char* const kByToken =
    "    %1: f32[1,4,6] = mul(%0, %w) {stage=\"a\", sequence=1}\n"
    "    %2: f32[1,4,6] = exp(%1) {stage=\"b\", sequence=2}\n"
    "    %3: f32[] = sum(%2) {dim=[0, 1, 2], keepdim=false, stage=\"b\", sequence=3}\n"
    "    return %3\n";

// The loop of kByToken in two slices, of which the first has so many of the four tokens.
std::string two_slices(int first) {
  const std::string head = concat("f32[1,", first, ",6]"), rest = concat("f32[1,", 4 - first, ",6]");
  return concat(R"(graph @step(%x: f32[2,4,6], %w: f32[6]) -> (f32[]) {
  %0: f32[] = accumulate(%x, %w) {microbatches=2, split=1} (%x: f32[1,4,6], %w: f32[6]) -> (f32[]) {
    %0: )",
                head, " = slice(%x) {dim=1, end=", first, R"(, start=0, step=1, stage="a.0", sequence=0}
    %1: )",
                head, R"( = constrain(%0) {dims="batch,sequence,embed", stage="a.0", sequence=0}
    %2: )",
                rest, " = slice(%x) {dim=1, end=4, start=", first, R"(, step=1, stage="a.1", sequence=1}
    %3: )",
                rest, R"( = constrain(%2) {dims="batch,sequence,embed", stage="a.1", sequence=1}
    %4: )",
                head, R"( = mul(%1, %w) {stage="a.0", sequence=2}
    %5: )",
                rest, R"( = mul(%3, %w) {stage="a.1", sequence=3}
    %6: )",
                head, R"( = exp(%4) {stage="b.0", sequence=4}
    %7: )",
                rest, R"( = exp(%5) {stage="b.1", sequence=5}
    %8: f32[] = sum(%6) {dim=[0, 1, 2], keepdim=false, stage="b.0", sequence=6}
    %9: f32[] = sum(%7) {dim=[0, 1, 2], keepdim=false, stage="b.1", sequence=7}
    %10: f32[] = add_n(%8, %9) {stage="b.1", sequence=7}
    return %10
  }
  return %0
}
)");
}

TEST(UnrolledSlices, OpsByTokenAreDoneSliceBySlice) {
  EXPECT_EQ(text_of(unroll_slices(loop_of_body(kByToken), 2)), two_slices(2));
}

TEST(UnrolledSlices, MayBeOfUnequalLength) {
  EXPECT_EQ(text_of(unroll_slices(loop_of_body(kByToken), 2, {3, 1})), two_slices(3));
}

// A loop whose stage a is causal attention, between stages p and n; and the attention's backward.
Graph loop_of_attention(const std::string& stage_behind = "n") {
  return graph_of(concat(R"(graph @step(%x: f32[2,1,3,4], %w: f32[4]) -> (f32[], f32[], f32[], f32[]) {
  %0: f32[], %1: f32[], %2: f32[], %3: f32[] = accumulate(%x, %w) {microbatches=2, split=1} (%x: f32[1,1,3,4], %w: f32[4]) -> (f32[], f32[], f32[], f32[]) {
    %0: f32[1,1,3,4] = constrain(%x) {dims="batch,heads,sequence,head", stage="p", sequence=0}
    %1: f32[1,1,3,4] = mul(%0, %w) {stage="p", sequence=1}
    %2: f32[1,1,3,4], %3: f32[1,1,3] = scaled_dot_product_attention(%1, %0, %0) {is_causal=true, scale=0.5, stage="a", sequence=2}
    %4: f32[1,1,3,4] = exp(%2) {stage=")",
                         stage_behind, R"(", sequence=3}
    %5: f32[] = sum(%4) {dim=[0, 1, 2, 3], keepdim=false, stage="n", sequence=4}
    %6: f32[1,1,3,4], %7: f32[1,1,3,4], %8: f32[1,1,3,4] = scaled_dot_product_attention_backward(%4, %1, %0, %0, %2, %3) {is_causal=true, scale=0.5, stage="a", phase="backward", sequence=2}
    %9: f32[] = sum(%6) {dim=[0, 1, 2, 3], keepdim=false, stage="p", phase="backward", sequence=1}
    %10: f32[] = sum(%7) {dim=[0, 1, 2, 3], keepdim=false, stage="p", phase="backward", sequence=1}
    %11: f32[] = sum(%8) {dim=[0, 1, 2, 3], keepdim=false, stage="p", phase="backward", sequence=1}
    return %5, %9, %10, %11
  }
  return %0, %1, %2, %3
}
)"));
}

// The slice's own blocks are joined as they come, the one apart in the stage behind. Backward, the term of dq of the block apart is added
// in the stage before; those of dk and dv are added to the terms of slice 1, which goes back next.
TEST(UnrolledSlices, BlocksOfAttentionMayBeApart) {
  test::expect_golden("transform/blocks_apart.txt", text_of(unroll_slices(loop_of_attention(), 3, {}, {{"a", 2, 0}})));
}

// Queries of a decoder, stage d, and keys of an encoder, stage e, which stays whole.
TEST(UnrolledSlices, WhatATokenNeedsOfAnotherSequenceIsWhole) {
  const Graph step = graph_of(R"(graph @step(%x: f32[2,1,4,4], %y: f32[2,1,3,4]) -> (f32[], f32[]) {
  %0: f32[], %1: f32[] = accumulate(%x, %y) {microbatches=2, split=2} (%x: f32[1,1,4,4], %y: f32[1,1,3,4]) -> (f32[], f32[]) {
    %0: f32[1,1,4,4] = constrain(%x) {causal=false, dims="batch,heads,sequence,head", stage="e", sequence=0}
    %1: f32[1,1,4,4] = softmax(%0) {dim=2, stage="e", sequence=1}
    %2: f32[1,1,3,4] = constrain(%y) {dims="batch,heads,sequence,head", stage="d", sequence=2}
    %3: f32[1,1,3,4], %4: f32[1,1,3] = scaled_dot_product_attention(%2, %1, %1) {is_causal=false, scale=0.5, stage="d", sequence=3}
    %5: f32[] = sum(%3) {dim=[0, 1, 2, 3], keepdim=false, stage="d", sequence=4}
    %6: f32[1,1,3,4], %7: f32[1,1,4,4], %8: f32[1,1,4,4] = scaled_dot_product_attention_backward(%3, %2, %1, %1, %3, %4) {is_causal=false, scale=0.5, stage="d", phase="backward", sequence=3}
    %9: f32[1,1,4,4] = add(%7, %8) {stage="e", phase="backward", sequence=1}
    %10: f32[] = sum(%9) {dim=[0, 1, 2, 3], keepdim=false, stage="e", phase="backward", sequence=1}
    return %5, %10
  }
  return %0, %1
}
)");
  test::expect_golden("transform/encoder_whole.txt", text_of(unroll_slices(step, 2, {}, {}, {"e", "d"})));
}

// The second slice begins two places behind the keys of the first; its own keys have numbers from 0, as have the ranges that it reads.
TEST(UnrolledSlices, RangesOfKeysAreCutWithThem) {
  const Graph step = graph_of(R"(graph @step(%x: f32[2,1,3,4], %r: i64[2,3,2], %b: f32[1,5]) -> (f32[], f32[1,5]) {
  %0: f32[], %1: f32[1,5] = accumulate(%x, %r, %b) {microbatches=2, split=2} (%x: f32[1,1,3,4], %r: i64[1,3,2], %b: f32[1,5]) -> (f32[], f32[1,5]) {
    %0: f32[1,1,3,4] = constrain(%x) {dims="batch,heads,sequence,head", stage="a", sequence=0}
    %1: f32[1,1,3,4], %2: f32[1,1,3] = attention_in_ranges(%0, %0, %0, %r, %b) {is_causal=true, reach=3, scale=0.5, stage="a", sequence=1}
    %3: f32[] = sum(%1) {dim=[0, 1, 2, 3], keepdim=false, stage="a", sequence=2}
    %4: f32[1,1,3,4], %5: f32[1,1,3,4], %6: f32[1,1,3,4], %7: f32[1,5] = attention_in_ranges_backward(%1, %0, %0, %0, %1, %2, %r, %b) {is_causal=true, reach=3, scale=0.5, stage="a", phase="backward", sequence=1}
    %8: f32[] = sum(%5) {dim=[0, 1, 2, 3], keepdim=false, stage="a", phase="backward", sequence=0}
    %9: f32[] = add_n(%3, %8) {stage="a", phase="backward", sequence=0}
    return %9, %7
  }
  return %0, %1
}
)");
  test::expect_golden("transform/ranges_in_slices.txt", text_of(unroll_slices(step, 2)));
}

TEST(UnrolledSlices, AttentionToTokensBehindIsRefused) {
  const std::string message = message_of([] {
    std::string text = text_of(loop_of_attention());
    for (std::size_t at; (at = text.find("is_causal=true")) != std::string::npos;) text.replace(at, 14, "is_causal=false");
    unroll_slices(graph_of(text), 3);
  });
  EXPECT_EQ(message.substr(0, message.find("\n  hint")),
            "pipeline.slices = 3: slice 0 needs something of slice 1, which comes later\n"
            "  read by scaled_dot_product_attention in stage a");
}

TEST(UnrolledSlices, BlocksAreApartFromStagesOfAttentionAlone) {
  EXPECT_EQ(message_of([] { unroll_slices(loop_of_attention(), 3, {}, {{"n", 2, 0}}); }),
            "block 0 of slice 2 is apart from stage \"n\", which has no causal attention\n"
            "  stages with attention: a\n"
            "  hint: name blocks of these stages only");
  EXPECT_EQ(message_of([] { unroll_slices(loop_of_attention("a"), 3, {}, {{"a", 2, 0}}); }),
            "blocks of attention are apart from stage \"a\", which is more than attention\n"
            "  it has scaled_dot_product_attention and what this reads, or what reads its results\n"
            "  hint: cut the model so that attention has stages of its own: of a gpt of L layers 2L + k stages, where k divides L");
}

TEST(UnrolledSlices, WhatATokenNeedsOfOneBehindItIsRefused) {
  EXPECT_EQ(
      message_of([] {
        unroll_slices(loop_of_body("    %1: f32[1,4,6] = softmax(%0) {dim=1, stage=\"a\", sequence=1}\n"
                                   "    %2: f32[1,4,6] = mul(%1, %0) {stage=\"a\", sequence=2}\n"
                                   "    %3: f32[] = sum(%2) {dim=[0, 1, 2], keepdim=false, stage=\"a\", sequence=3}\n"
                                   "    return %3\n"),
                      2);
      }),
      "pipeline.slices = 2: slice 0 needs something of slice 1, which comes later\n"
      "  read by softmax in stage a\n"
      "  hint: slices are for models in which no token needs one behind it: causal attention, and else ops by token; a mixture of experts "
      "has whole groups in each slice, or a capacity_factor (experts / 2) with which no token is dropped");
}

TEST(UnrolledSlices, SequencesHaveATokenForEach) {
  EXPECT_EQ(message_of([] { unroll_slices(loop_of_body(kByToken), 5); }),
            "pipeline.slices = 5: no tensor has a dim \"sequence\" of as many tokens\n"
            "  hint: slices are for models that name this dim and sequences of more tokens than slices");
}

TEST(UnrolledSlices, UnequalLengthsDivideTheSequence) {
  EXPECT_EQ(message_of([] { unroll_slices(loop_of_body(kByToken), 2, {2, 1}); }),
            "slices of unequal length: a sequence of 4 tokens is not a multiple of 3 parts\n"
            "  the slices end at 2, 3\n  constrained in stage \"a\"\n"
            "  hint: give pipeline.slices lengths whose sum divides 4");
}

}  // namespace
}  // namespace penstock
