// SPDX-License-Identifier: Apache-2.0
#include "ops/verify.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "ops/definition.h"
#include "support/errors.h"

namespace penstock {
namespace {

std::string verdict(const std::string& text) {
  return test::message_of([&] { verify(parse_graph("penstock graph 1\n" + text)); });
}

TEST(VerifyTypes, AcceptsKnownAndUnknownOps) {
  EXPECT_EQ(verdict(R"(graph @f(%x: f32[2,3], %w: f32[4,3]) -> (f32[2,4]) {
  %0: f32[2,4] = linear(%x, %w)
  %1: f32[7] = aten::mystery(%0)
  return %0
})"),
            "no error");
}

TEST(VerifyTypes, NamesGraphOpAndBothTypes) {
  EXPECT_EQ(verdict(R"(graph @f(%x: f32[2,3], %w: f32[4,3]) -> (f32[2,3]) {
  %0: f32[2,3] = exp(%x)
  %1: f32[2,3] = linear(%0, %w)
  return %1
})"),
            "graph @f, op 1: linear gives (f32[2,4]), not (f32[2,3])\n  operands: (f32[2,3], f32[4,3])");
  EXPECT_EQ(verdict(R"(graph @f(%x: f32[2,3]) -> (f32[2,3]) {
  %0: f32[2,3] = add(%x, %x, %x)
  return %0
})"),
            "graph @f, op 0: add: takes 1 to 2 operands, not 3\n  operands: f32[2,3], f32[2,3], f32[2,3]");
}

TEST(VerifyTypes, ShapesBeyondAllMemoryAreRejected) {
  EXPECT_EQ(verdict(R"(graph @f(%x: bool[4294967296,65537]) -> () {
  return
})"),
            "graph @f: the shape has more than 2^48 elements");
}

// A loop whose body gives one result of type `inner`, and which is said to give `outer`.
std::string loop(const std::string& attributes, const std::string& input, const std::string& op = "sum(%a)",
                 const std::string& inner = "f32[]", const std::string& outer = "f32[]") {
  return "graph @f(%x: f32[8,3], %w: f32[3]) -> (" + outer + ") {\n  %0: " + outer + " = accumulate(%x, %w) {" + attributes +
         "} (%a: " + input + ", %b: f32[3]) -> (" + inner + ") {\n    %0: " + inner + " = " + op + "\n    return %0\n  }\n  return %0\n}";
}

TEST(VerifyTypes, LoopsSplitTheirFirstOperands) {
  EXPECT_EQ(verdict(loop("microbatches=4, split=1", "f32[2,3]")), "no error");
  EXPECT_EQ(verdict(loop("microbatches=4, split=0", "f32[8,3]")), "no error");
  EXPECT_NE(verdict(loop("microbatches=4, split=1", "f32[8,3]")).find("accumulate: input 0 of the body is f32[8,3], not f32[2,3]"),
            std::string::npos);
  EXPECT_NE(verdict(loop("microbatches=3, split=1", "f32[2,3]"))
                .find("accumulate: operand 0 has 8 rows, which do not divide into 3 micro-batches"),
            std::string::npos);
  const auto body = [](const std::string& op, const std::string& inner) {
    return verdict(loop("microbatches=4, split=1", "f32[2,3]", op, inner));
  };
  EXPECT_NE(body("sum(%a)", "f32[2]").find("sum gives (f32[]), not (f32[2])"), std::string::npos);
  EXPECT_NE(body("exp(%a)", "f32[2,3]").find("accumulate gives (f32[2,3]), not (f32[])"), std::string::npos);
  EXPECT_NE(body("gt(%a) {other=0.0}", "bool[2,3]").find("results are sums: they cannot be bool"), std::string::npos);
}

// Attention whose heads share keys stays by name: a plan that counted none of its work would be wrong.
TEST(VerifyTypes, AttentionByNameCostsWhatOursDoes) {
  const auto flops = [](const std::string& op, const std::string& attributes) {
    const Graph graph = parse_graph(concat(R"(penstock graph 1
graph @g(%q: f32[1,4,8,2], %k: f32[1,4,8,2], %v: f32[1,4,8,2]) -> (f32[1,4,8,2]) {
  %0: f32[1,4,8,2], %1: f32[1,4,8] = )",
                                           op, "(%q, %k, %v) {", attributes, "}\n  return %0\n}\n"));
    return cost(graph, graph.ops[0]).flops;
  };
  const std::string ours = "scaled_dot_product_attention", named = "aten::_scaled_dot_product_flash_attention_for_cpu";
  EXPECT_EQ(flops(named, "is_causal=true, none=[3]"), flops(ours, "is_causal=true, scale=0.5"));
  EXPECT_EQ(flops(named, "none=[3]"), flops(ours, "is_causal=false, scale=0.5"));
  EXPECT_EQ(flops(named, "none=[3]"), 2 * 2 * 4 * 8 * 8 * 2);
}

TEST(VerifyTypes, LoopCostsAreThoseOfAllRounds) {
  const Graph graph = parse_graph("penstock graph 1\n" + loop("microbatches=4, split=1", "f32[2,3]"));
  const OpCost found = cost(graph, graph.ops[0]);
  EXPECT_EQ(found.flops, 4 * 6);
  EXPECT_EQ(found.bytes, 4 * (6 + 1) * 4);
}

}  // namespace
}  // namespace penstock
