// SPDX-License-Identifier: Apache-2.0
#include "exported/carried.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "support/errors.h"
#include "support/text_graphs.h"

namespace penstock {
namespace {

using test::graph_of;
using test::text_of;

std::string text(const CarriedBuffers& carried) {
  std::string out;
  for (const CarriedBuffer& buffer : carried.buffers)
    out += concat(buffer.name, ": keep ", buffer.keep, buffer.added ? concat(", added ", *buffer.added) : "", "\n");
  return out + text_of(carried.joint);
}

// As instance norm updates its statistics: a copy for each sample, and their mean.
TEST(CarriedBuffers, ACopyForEachSample) {
  const auto carried = [](const std::string& copies) {
    return text(
        carried_buffers(graph_of("graph @joint(%x: f32[4], %mean: f32[2]) -> (f32[2]) {\n" + copies + R"(  %3: f32[4] = mul(%2) {other=0.9}
  %4: f32[4] = mul(%x) {other=0.1}
  %5: f32[4] = add(%3, %4)
  %6: f32[2,2] = reshape(%5) {shape=[2, 2]}
  %7: f32[2] = mean(%6) {dim=[0], keepdim=false}
  return %7
})"),
                        {{0, "mean"}}));
  };
  EXPECT_EQ(carried(R"(  %0: f32[1,2] = reshape(%mean) {shape=[1, 2]}
  %1: f32[2,2] = expand(%0) {shape=[2, 2]}
  %2: f32[4] = reshape(%1) {shape=[4]}
)"),
            R"(mean: keep 0.9, added 0
graph @joint(%x: f32[4], %mean: f32[2]) -> (f32[2]) {
  %0: f32[4] = mul(%x) {other=0.1, sequence=4}
  %1: f32[2,2] = reshape(%0) {shape=[2, 2], sequence=8}
  %2: f32[2] = mean(%1) {dim=[0], keepdim=false, sequence=9}
  return %2
}
)");
  EXPECT_NE(test::message_of([&] {
              carried(R"(  %0: f32[2,1] = reshape(%mean) {shape=[2, 1]}
  %1: f32[2,2] = expand(%0) {shape=[2, 2]}
  %2: f32[4] = reshape(%1) {shape=[4]}
)");
            }).find("is updated in a way that micro-batches cannot share"),
            std::string::npos);
}

// As batch norm updates its statistics; one that counts, one that is replaced, one that stays.
TEST(CarriedBuffers, KeepAPartAndAddTheRest) {
  EXPECT_EQ(
      text(carried_buffers(
          graph_of(
              R"(graph @joint(%x: f32[3], %mean: f32[3], %batches: i64[], %last: f32[3], %table: f32[3]) -> (f32[3], f32[3], i64[], f32[3], f32[3]) {
  %0: f32[3] = mul(%mean) {other=0.9, origin="bn", sequence=0}
  %1: f32[3] = mul(%x) {other=0.1, origin="bn", sequence=1}
  %2: f32[3] = add(%0, %1) {origin="bn", sequence=2}
  %3: i64[] = add(%batches) {other=1.0, origin="bn", sequence=3}
  %4: f32[3] = mul(%x, %table) {sequence=4}
  return %4, %2, %3, %x, %table
})"),
          {{1, "mean"}, {2, "batches"}, {3, "last"}, {4, "table"}})),
      R"(mean: keep 0.9, added 1
batches: keep 1, added 2
last: keep 0, added 3
table: keep 1
graph @joint(%x: f32[3], %mean: f32[3], %batches: i64[], %last: f32[3], %table: f32[3]) -> (f32[3], f32[3], i64[], f32[3]) {
  %0: f32[3] = mul(%x) {other=0.1, origin="bn", sequence=1}
  %1: f32[3] = mul(%x, %table) {sequence=4}
  %2: i64[] = full() {dtype=i64, fill_value=1.0, size=[], origin="bn", sequence=3}
  return %1, %0, %2, %x
}
)");
}

// value + (x - value) / 4, and a factor behind a sum.
TEST(CarriedBuffers, WritesUpdatesOfOtherForms) {
  EXPECT_EQ(text(carried_buffers(graph_of(R"(graph @joint(%x: f32[3], %a: f32[3], %b: f32[3]) -> (f32[3], f32[3]) {
  %0: f32[3] = sub(%x, %a) {sequence=0}
  %1: f32[3] = div(%0) {other=4.0, sequence=1}
  %2: f32[3] = add(%a, %1) {sequence=2}
  %3: f32[3] = add(%x, %b) {sequence=3}
  %4: f32[3] = mul(%3) {other=0.5, sequence=4}
  return %2, %4
})"),
                                 {{0, "a"}, {1, "b"}})),
            R"(a: keep 0.75, added 0
b: keep 0.5, added 1
graph @joint(%x: f32[3], %a: f32[3], %b: f32[3]) -> (f32[3], f32[3]) {
  %0: f32[3] = mul(%x) {other=0.25, sequence=1}
  %1: f32[3] = mul(%x) {other=0.5, sequence=4}
  return %0, %1
}
)");
}

// A buffer of low precision whose update is computed in f32.
TEST(CarriedBuffers, RoundsWhatIsAdded) {
  EXPECT_EQ(text(carried_buffers(graph_of(R"(graph @joint(%x: f32[3], %mean: bf16[3]) -> (bf16[3]) {
  %0: f32[3] = to(%mean) {dtype=f32, sequence=0}
  %1: f32[3] = mul(%0) {other=0.5, sequence=1}
  %2: f32[3] = add(%1, %x) {sequence=2}
  %3: bf16[3] = to(%2) {dtype=bf16, sequence=3}
  return %3
})"),
                                 {{0, "mean"}})),
            R"(mean: keep 0.5, added 0
graph @joint(%x: f32[3], %mean: bf16[3]) -> (bf16[3]) {
  %0: bf16[3] = to(%x) {dtype=bf16, sequence=3}
  return %0
}
)");
}

std::string failure(const std::string& ops) {
  return test::message_of([&] {
    carried_buffers(graph_of("graph @joint(%x: f32[3], %mean: f32[3]) -> (f32[3], f32[3]) {\n" + ops + "  return %8, %9\n}"),
                    {{1, "mean"}});
  });
}

TEST(CarriedBuffersFailure, AnUpdateOfAnotherForm) {
  EXPECT_EQ(failure(R"(  %8: f32[3] = exp(%x)
  %9: f32[3] = maximum(%mean, %8) {origin="norm.0"}
)"),
            R"(buffer "mean" is updated in a way that micro-batches cannot share
  by op "maximum" in module "norm.0"
  hint: buffer * number + what does not depend on the buffer can be carried; module.eval() leaves running statistics)");
}

TEST(CarriedBuffersFailure, ABufferThatIsReadBesides) {
  EXPECT_EQ(failure(R"(  %8: f32[3] = mul(%x, %mean) {origin="codes"}
  %9: f32[3] = add(%mean, %x)
)"),
            R"(buffer "mean" is updated, and read besides
  by op "mul" in module "codes"
  hint: micro-batches may run in any order, so none can read what another one wrote)");
}

TEST(CarriedBuffersFailure, ABufferThatIsNoInput) {
  EXPECT_EQ(test::message_of([] { carried_buffers(graph_of("graph @joint(%x: f32[3]) -> (f32[3]) {\n  return %x\n}"), {{0, "mean"}}); }),
            "the joint graph has no input \"mean\", whose next value it gives");
}

}  // namespace
}  // namespace penstock
