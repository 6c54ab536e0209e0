// SPDX-License-Identifier: Apache-2.0
#include "exported/constants.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "exported/rebuild.h"
#include "support/text_graphs.h"

namespace penstock {
namespace {

// The value of the graph's output, "none" where it is no constant.
std::string value_of(const std::string& type, const std::string& ops) {
  const Graph graph = test::graph_of("graph @g(%x: i64[3]) -> (" + type + ") {\n" + ops + "  return %9\n}");
  Rebuild made(graph);
  for (const Op& op : graph.ops) made.copy(op);
  Constants constants;
  const ConstantTensor* value = constants.value_of(made[graph.outputs[0]]);
  const auto shown = [](std::int64_t number) { return std::to_string(number); };
  return value ? concat("[", join(value->shape, ",", shown), "]: ", join(value->values, " ", shown)) : "none";
}

const std::string kRow = "  %0: i64[3] = arange() {dtype=i64, end=3}\n";
const std::string kColumn = kRow + "  %1: i64[3,1] = unsqueeze(%0) {dim=1}\n";

TEST(Constants, ComparisonsAndSumsBroadcast) {
  EXPECT_EQ(value_of("bool[3,3]", kColumn + "  %9: bool[3,3] = le(%0, %1)\n"), "[3,3]: 1 0 0 1 1 0 1 1 1");
  EXPECT_EQ(value_of("i64[3,3]", kColumn + "  %9: i64[3,3] = sub(%0, %1)\n"), "[3,3]: 0 1 2 -1 0 1 -2 -1 0");
  EXPECT_EQ(value_of("i64[3]", kRow + "  %9: i64[3] = mul(%0) {other=-2.0}\n"), "[3]: 0 -2 -4");
  EXPECT_EQ(value_of("bool[3]", kRow + "  %1: bool[3] = eq(%0) {other=1.0}\n  %9: bool[3] = logical_not(%1)\n"), "[3]: 1 0 1");
}

TEST(Constants, OpsThatMoveElements) {
  const std::string square = kColumn + "  %2: i64[3,1] = mul(%1) {other=10.0}\n  %3: i64[3,3] = add(%0, %2)\n";
  EXPECT_EQ(value_of("i64[3,3]", square + "  %9: i64[3,3] = transpose(%3) {dim0=0, dim1=1}\n"), "[3,3]: 0 10 20 1 11 21 2 12 22");
  EXPECT_EQ(value_of("i64[1,3,3]", square + "  %4: i64[1,3,3] = unsqueeze(%3) {dim=0}\n  %9: i64[1,3,3] = permute(%4) {dims=[0, 2, 1]}\n"),
            "[1,3,3]: 0 10 20 1 11 21 2 12 22");
  EXPECT_EQ(value_of("i64[3,1]", square + "  %9: i64[3,1] = slice(%3) {dim=1, start=1, end=3, step=2}\n"), "[3,1]: 1 11 21");
  EXPECT_EQ(value_of("i64[3]", square + "  %9: i64[3] = select(%3) {dim=0, index=-1}\n"), "[3]: 20 21 22");
  EXPECT_EQ(value_of("i64[3,4]", square + "  %9: i64[3,4] = cat(%1, %3) {dim=1}\n"), "[3,4]: 0 0 1 2 1 10 11 12 2 20 21 22");
  EXPECT_EQ(value_of("i64[3,3]", square + "  %9: i64[3,3] = cumsum(%3) {dim=0}\n"), "[3,3]: 0 1 2 10 12 14 30 33 36");
  EXPECT_EQ(value_of("i64[2,3]", kRow + "  %9: i64[2,3] = expand(%0) {size=[2, 3]}\n"), "[2,3]: 0 1 2 0 1 2");
  EXPECT_EQ(value_of("bool[3]", kRow + "  %9: bool[3] = to(%0) {dtype=bool}\n"), "[3]: 0 1 1");
  EXPECT_EQ(value_of("i64[3]", kRow + "  %1: bool[3] = lt(%0) {other=1.0}\n  %2: i64[] = full() {dtype=i64, fill_value=-5.0, size=[]}\n"
                                      "  %9: i64[3] = where(%1, %2, %0)\n"),
            "[3]: -5 1 2");
}

TEST(Constants, IndicesStandForTheLeadingDims) {
  EXPECT_EQ(value_of("i64[3,1,3]", kColumn + "  %2: i64[3,3] = add(%0, %1)\n"
                                             "  %9: i64[3,1,3] = aten::index.Tensor(%2, %1) {lists=[1]}\n"),
            "[3,1,3]: 0 1 2 1 2 3 2 3 4");
  EXPECT_EQ(value_of("i64[3,3]", kColumn + "  %2: i64[3,3] = add(%0, %1)\n"
                                           "  %9: i64[3,3] = aten::index.Tensor(%2, %0, %1) {lists=[2]}\n"),
            "[3,3]: 0 1 2 1 2 3 2 3 4");
}

// An input, a floating tensor, another op, a number with a fraction, a mask as index.
TEST(Constants, TheRestIsNone) {
  EXPECT_EQ(value_of("i64[3]", kRow + "  %9: i64[3] = add(%0, %x)\n"), "none");
  EXPECT_EQ(value_of("f32[3]", "  %9: f32[3] = full() {dtype=f32, fill_value=1.0, size=[3]}\n"), "none");
  EXPECT_EQ(value_of("i64[3]", kRow + "  %9: i64[3] = aten::flip(%0) {dims=[0]}\n"), "none");
  EXPECT_EQ(value_of("bool[3]", kRow + "  %9: bool[3] = gt(%0) {other=0.5}\n"), "none");
  EXPECT_EQ(value_of("i64[2]", kRow + "  %1: bool[3] = gt(%0) {other=0.0}\n  %9: i64[2] = aten::index.Tensor(%0, %1) {lists=[1]}\n"),
            "none");
}

}  // namespace
}  // namespace penstock
