// SPDX-License-Identifier: Apache-2.0
#include "exported/patterns.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "exported/rebuild.h"
#include "support/text_graphs.h"

namespace penstock {
namespace {

// The names that the pattern binds in a graph of these ops, at %9.
std::string found(const std::string& pattern, const std::string& ops) {
  const Graph graph = test::graph_of("graph @g(%x: f32[], %y: f32[]) -> (f32[]) {\n" + ops + "  return %9\n}");
  Rebuild made(graph);
  for (const Op& op : graph.ops) made.copy(op);
  const auto match = Pattern(pattern).match(made[graph.outputs[0]]);
  if (!match) return "none";
  std::string out;
  for (const auto& [name, tensor] : match->tensors) {
    const std::string& input = made.builder.graph.values[ValueId(tensor.value())].name;
    out += concat(name, "=", input.empty() ? made.builder.producer(ValueId(tensor.value()))->name : input, " ");
  }
  for (const auto& [name, number] : match->numbers) out += concat(name, "=", number, " ");
  return out;
}

const std::string kSum = "  %0: f32[] = exp(%x)\n  %9: f32[] = add(%y, %0)\n";

TEST(Patterns, SumsAndProductsCommute) {
  EXPECT_EQ(found("add(exp(a), b)", kSum), "a=x b=y ");
  EXPECT_EQ(found("add(a, e:exp(b))", kSum), "a=y b=x e=exp ");
  EXPECT_EQ(found("sub(exp(a), b)", "  %0: f32[] = exp(%x)\n  %9: f32[] = sub(%y, %0)\n"), "none");
}

TEST(Patterns, ANameStandsForOneTensor) {
  EXPECT_EQ(found("add(exp(a), a)", kSum), "none");
  EXPECT_EQ(found("mul(a, exp(a))", "  %0: f32[] = exp(%x)\n  %9: f32[] = mul(%0, %x)\n"), "a=x ");
  EXPECT_EQ(found("mul(e:exp(a), e)", "  %0: f32[] = exp(%x)\n  %9: f32[] = mul(%0, %0)\n"), "a=x e=exp ");
}

TEST(Patterns, NumbersAreEqualOrGetAName) {
  const std::string half = "  %9: f32[] = mul(%x) {other=0.5}\n", cube = "  %9: f32[] = pow(%x) {exponent=3}\n";
  EXPECT_EQ(found("mul(a){0.5}", half), "a=x ");
  EXPECT_EQ(found("mul(a){0.51}", half), "none");
  EXPECT_EQ(found("mul(a)", half), "none");
  EXPECT_EQ(found("mul(a){c}", half), "a=x c=0.5 ");
  EXPECT_EQ(found("pow(a){3}", cube), "a=x ");
}

}  // namespace
}  // namespace penstock
