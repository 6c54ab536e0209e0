// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "penstock/step.h"
#include "penstock/trace.h"
#include "support/text_graphs.h"
#include "transform/passes.h"

namespace penstock {
namespace {

using test::graph_of;
using test::text_of;

TEST(Constraints, ReadersReadWhatWasConstrained) {
  const Graph graph = graph_of(R"(graph @g(%a: f32[2]) -> (f32[2], f32[2]) {
  %0: f32[2] = constrain(%a) {dims="embed", sequence=0}
  %1: f32[2] = neg(%0) {sequence=1}
  %2: f32[2] = constrain(%1) {dims="embed", sequence=2}
  %3: f32[2] = constrain(%2) {dims="", sequence=3}
  %4: f32[2] = exp(%3) {sequence=4}
  return %4, %3
})");
  EXPECT_EQ(text_of(drop_constraints(graph)), R"(graph @g(%a: f32[2]) -> (f32[2], f32[2]) {
  %0: f32[2] = neg(%a) {sequence=0}
  %1: f32[2] = exp(%0) {sequence=1}
  return %1, %0
}
)");
}

TEST(Constraints, AGraphWithoutThemStaysAsItIs) {
  const std::string text = R"(graph @g(%a: f32[2]) -> (f32[2]) {
  %0: f32[2] = neg(%a) {sequence=7}
  return %0
}
)";
  EXPECT_EQ(text_of(drop_constraints(graph_of(text))), text);
}

// The second constraint is read twice, so its cotangents are joined by an op with its marks; then they are those of the op before.
TEST(Constraints, TheStepIsThatOfAModelWithoutThem) {
  const auto step = [](bool constrained) {
    const auto wish = [&](Tensor x) { return constrained ? constrain(x, {"batch", "embed"}) : x; };
    return trace("g", {{"x", {DType::f32, {4, 3}}}, {"w", {DType::f32, {3, 3}}}}, [&](const std::vector<Tensor>& in) {
      Parameters parameters;
      parameters.set("w", in[1]);
      return accumulate({in[0]}, 2, [&](const std::vector<Tensor>& parts) -> std::vector<Tensor> {
        const ValueAndGradient sums = value_and_grad(parameters, [&](const Parameters& p) {
          const Stage stage("only");
          const Tensor x = wish(parts[0]);
          Tensor y;
          {
            const Origin origin("first");
            y = wish(wish(mm(x, p["w"])));
          }
          return sum(mul(y, tanh(y)));
        });
        return {sums.value, sums.gradient["w"]};
      });
    });
  };
  EXPECT_NE(print(step(true)).find("constrain"), std::string::npos);
  EXPECT_EQ(print(drop_constraints(step(true))), print(step(false)));
}

}  // namespace
}  // namespace penstock
