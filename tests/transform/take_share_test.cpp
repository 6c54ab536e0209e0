#include "transform/take_share.h"

#include <gtest/gtest.h>

#include <array>

#include "support/text_graphs.h"

namespace penstock {
namespace {

using test::graph_of;
using test::text_of;

const char* const kUpdate = R"(graph @update(%w: f32[2,3], %g: f32[2,3], %rate: f32[]) -> (f32[2,3], f32[]) {
  %0: f32[2,3] = mul(%g, %rate) {sequence=0}
  %1: f32[2,3] = sub(%w, %0) {sequence=1}
  %2: f32[2,3] = mul(%g, %g) {sequence=2}
  %3: f32[] = sum(%2) {dim=[0, 1], keepdim=false, sequence=3}
  return %1, %3
})";

constexpr Share kWhole;

// The gradient's middle two elements; the parameter is whole and cut; the sum is a term.
TEST(TakeShare, CutsWhatIsWholeBesideAPart) {
  const Share part{false, 2, 4};
  const Graph graph = take_share(graph_of(kUpdate), std::array{kWhole, part, kWhole}, std::array{part, kWhole});
  EXPECT_EQ(text_of(graph), R"(graph @update(%w: f32[2,3], %g: f32[2], %rate: f32[]) -> (f32[2], f32[]) {
  %0: f32[2] = mul(%g, %rate) {sequence=0}
  %1: f32[6] = reshape(%w) {shape=[6]}
  %2: f32[2] = slice(%1) {dim=0, end=4, start=2, step=1}
  %3: f32[2] = sub(%2, %0) {sequence=1}
  %4: f32[2] = mul(%g, %g) {sequence=2}
  %5: f32[] = sum(%4) {dim=[0], keepdim=false}
  return %3, %5
}
)");
}

// A node's parameter and a device's gradient.
TEST(TakeShare, TheSmallestShareIsTaken) {
  const Share node{false, 1, 5}, part{false, 2, 4};
  const Graph graph = take_share(graph_of(kUpdate), std::array{node, part, kWhole}, std::array{part, kWhole});
  EXPECT_EQ(text_of(graph), R"(graph @update(%w: f32[4], %g: f32[2], %rate: f32[]) -> (f32[2], f32[]) {
  %0: f32[2] = mul(%g, %rate) {sequence=0}
  %1: f32[2] = slice(%w) {dim=0, end=3, start=1, step=1}
  %2: f32[2] = sub(%1, %0) {sequence=1}
  %3: f32[2] = mul(%g, %g) {sequence=2}
  %4: f32[] = sum(%3) {dim=[0], keepdim=false}
  return %2, %4
}
)");
}

TEST(TakeShare, OfNothingIsNothing) {
  const Share none{false, 6, 6};
  const Graph graph = take_share(graph_of(kUpdate), std::array{none, none, kWhole}, std::array{none, kWhole});
  EXPECT_EQ(text_of(graph), R"(graph @update(%rate: f32[]) -> (f32[]) {
  %0: f32[] = full() {dtype=f32, fill_value=0.0, size=[]}
  return %0
}
)");
}

TEST(TakeShare, WhatStandsInHasOneElement) {
  const Share none{false, 0, 0, true};
  const Graph graph = take_share(graph_of(kUpdate), std::array{none, none, kWhole}, std::array{none, kWhole});
  EXPECT_EQ(text_of(graph), R"(graph @update(%w: f32[1], %g: f32[1], %rate: f32[]) -> (f32[1], f32[]) {
  %0: f32[] = full() {dtype=f32, fill_value=0.0, size=[]}
  %1: f32[1] = full() {dtype=f32, fill_value=0.0, size=[1]}
  return %1, %0
}
)");
}

}  // namespace
}  // namespace penstock
