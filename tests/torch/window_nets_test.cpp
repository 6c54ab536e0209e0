// SPDX-License-Identifier: Apache-2.0
// Tables for a window of training steps, run on small nets: what comes out was computed apart from Penstock, or is what theory says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "penstock/compile.h"
#include "penstock/schedule.h"
#include "penstock/session.h"

namespace penstock {
namespace {

// Two stages: h = tanh(A x), o = C h, with the loss (o - y)^2 / 2; A is 3 x 2. Gradient descent, or momentum 0.9.
std::string net_text(int microbatches, bool momentum, double rate) {
  constexpr const char* kBody = R"(    %0: f64[3,1] = mm(%w0, %x) {stage="0"}
    %1: f64[3,1] = tanh(%0) {stage="0"}
    %2: f64[1,1] = mm(%w1, %1) {stage="1"}
    %3: f64[1,1] = sub(%2, %y) {stage="1"}
    %4: f64[1,1] = mul(%3, %3) {stage="1"}
    %5: f64[1,1] = mul(%4) {other=0.5, stage="1"}
    %6: f64[] = sum(%5) {dim=[0, 1], keepdim=false, stage="1"}
    %7: f64[1,3] = transpose(%1) {dim0=0, dim1=1, phase="backward", stage="1"}
    %8: f64[1,3] = mm(%3, %7) {phase="backward", stage="1"}
    %9: f64[3,1] = transpose(%w1) {dim0=0, dim1=1, phase="backward", stage="1"}
    %10: f64[3,1] = mm(%9, %3) {phase="backward", stage="1"}
    %11: f64[3,1] = tanh_backward(%10, %1) {phase="backward", stage="0"}
    %12: f64[1,2] = transpose(%x) {dim0=0, dim1=1, phase="backward", stage="0"}
    %13: f64[3,2] = mm(%11, %12) {phase="backward", stage="0"}
    return %6, %13, %8
  }
)";
  const std::string types[] = {"f64[3,2]", "f64[1,3]"};
  std::string updates = concat("  %rate: f64[] = full() {dtype=f64, fill_value=", rate, ", size=[]}\n"), next, moments;
  for (int s = 0; s < 2; ++s) {
    const std::string gradient =
        concat("  %g", s, ": ", types[s], " = mul(%", s + 1, ") {other=", (momentum ? 1 : rate) / microbatches, "}\n");
    updates += momentum ? concat(gradient, "  %n", s, ": ", types[s], ", %v", s, ": ", types[s], " = sgd(%w", s, ", %g", s, ", %m", s,
                                 ", %rate) {momentum=0.9, weight_decay=0.0}\n")
                        : concat(gradient, "  %n", s, ": ", types[s], " = sub(%w", s, ", %g", s, ")\n");
    next += concat("%n", s, ", ");
    if (momentum) moments += concat("%v", s, ", ");
  }
  return concat("penstock graph 1\ngraph @net(%w0: f64[3,2], %w1: f64[1,3], ", momentum ? "%m0: f64[3,2], %m1: f64[1,3], " : "", "%x: f64[",
                2 * microbatches, ",1], %y: f64[", microbatches, ",1]) -> (f64[3,2], f64[1,3], ", momentum ? "f64[3,2], f64[1,3], " : "",
                "f64[]) {state=", momentum ? 4 : 2, ", outputs=[\"loss\"]} {\n",
                "  %0: f64[], %1: f64[3,2], %2: f64[1,3] = accumulate(%x, %y, %w0, %w1) {microbatches=", microbatches,
                ", split=2} (%x: f64[2,1], %y: f64[1,1], %w0: f64[3,2], %w1: f64[1,3]) -> (f64[], f64[3,2], f64[1,3]) {\n", kBody, updates,
                "  return ", next, moments, "%0\n}\n");
}

// A_00 and C_0 behind eight updates at rate 0.1.
std::pair<double, double> run_net(const Schedule& table, bool momentum = false) {
  const int microbatches = table.step_microbatches();
  Session session(2);
  session.load("train", compile(parse_graph(net_text(microbatches, momentum, 0.1), "net"), table));
  std::vector<double> a, c;
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 2; ++j) a.push_back(.2 * (i + 1) - .3 * (j + 1));
    c.push_back(.5 - .25 * i);
  }
  session.set_state({{"w0", host_tensor<double>({3, 2}, a)}, {"w1", host_tensor<double>({1, 3}, c)}});
  std::vector<double> x, y;
  const auto step = [&] {
    const std::int64_t samples = std::ssize(y);
    session.step("train", {{"x", host_tensor<double>({2 * samples, 1}, x)}, {"y", host_tensor<double>({samples, 1}, y)}});
    x.clear();
    y.clear();
  };
  for (int k = 0; k < 8 * microbatches; ++k) {
    x.push_back(((5 * k % 7) - 3) / 4.0);
    x.push_back(((3 * k % 5) - 2) / 2.0);
    y.push_back(x[x.size() - 2] * x.back() + .25);
    if ((k + 1) % table.microbatches() == 0) step();
  }
  return {values<double>(session.state("w0"))[0], values<double>(session.state("w1"))[0]};
}

TEST(Window, OfMatrices) {
  const auto expect = [](std::pair<double, double> found, double a, double c, const char* what) {
    EXPECT_NEAR(found.first, a, 1e-9) << what;
    EXPECT_NEAR(found.second, c, 1e-9) << what;
  };
  const auto table = [](const char* name, int microbatches, int window) {
    return make_schedule(name, {.actors = 2, .microbatches = microbatches, .window = window});
  };
  expect(run_net(table("1f1b", 1, 1)), -.1180921454, .5148083586, "synchronous");
  expect(run_net(table("pipedream", 1, 8)), -.1183179586, .5166945698, "PipeDream");
  expect(run_net(table("pipedream-2bw", 2, 8)), -.1012748327, .4770427807, "2BW");
  expect(run_net(table("xpipe", 1, 8), /*momentum=*/true), -.1367882507, .5689214959, "XPipe");
}

// The values of w under w <- w - rate w', where w' is w as it was `late` updates ago, from 1 on: one stage has w, the others pass it on.
std::vector<double> scalar_values(int late, double rate, int steps) {
  const int stages = late + 1;
  std::string body = "    %0: f64[1] = mul(%x, %w) {stage=\"0\"}\n";
  int value = 1;
  for (int s = 1; s < stages; ++s, ++value)
    body += concat("    %", value, ": f64[1] = mul(%", value - 1, ") {other=1.0, stage=\"", s, "\"}\n");
  const int h = value - 1;
  body += concat("    %", value, ": f64[] = sum(%", h, ") {dim=[0], keepdim=false, stage=\"", stages - 1, "\"}\n");
  const int loss = value++;
  int d = h;  // half of its square is what falls
  for (int s = stages - 1; s > 0; --s) {
    body += concat("    %", value, ": f64[1] = mul(%", d, ") {other=1.0, phase=\"backward\", stage=\"", s, "\"}\n");
    d = value++;
  }
  body += concat("    %", value, ": f64[1] = mul(%", d, ", %x) {phase=\"backward\", stage=\"0\"}\n");
  const std::string text =
      concat("penstock graph 1\ngraph @scalar(%w: f64[1], %x: f64[1]) -> (f64[1], f64[]) {state=1, outputs=[\"loss\"]} {\n",
             "  %0: f64[], %1: f64[1] = accumulate(%x, %w) {microbatches=1, split=1} (%x: f64[1], %w: f64[1]) -> (f64[], f64[1]) {\n", body,
             "    return %", loss, ", %", value, "\n  }\n  %2: f64[1] = mul(%1) {other=", rate,
             "}\n  %3: f64[1] = sub(%w, %2)\n  return %3, %0\n}\n");
  Session session(stages);
  session.load("train",
               compile(parse_graph(text, "scalar"), make_schedule("pipedream", {.actors = stages, .microbatches = 1, .window = steps})));
  session.set_state({{"w", host_tensor<double>({1}, {1})}});
  const StepReport report = session.step("train", {{"x", host_tensor<double>({steps}, std::vector<double>(steps, 1))}});
  std::vector<double> out;  // the losses are w as forwards read it
  for (int step = late + 1; step < steps; ++step) out.push_back(values<double>(report.outputs.at(concat("loss.", step)))[0]);
  return out;
}

TEST(Window, OfAScalarConvergesUpToTheBound) {
  EXPECT_EQ(scalar_values(1, 0.25, 7), (std::vector<double>{.75, .5, .3125, .1875, .109375}));
  EXPECT_EQ(scalar_values(3, 0.25, 12), (std::vector<double>{.75, .5, .25, 0, -.1875, -.3125, -.375, -.375}));
  for (int late = 0; late <= 4; ++late) {
    const double bound = 2 * std::sin(std::acos(-1.0) / (4 * late + 2));
    const auto growth = [&](double share) {
      const std::vector<double> w = scalar_values(late, share * bound, 300);
      const auto largest = [&](std::size_t first, std::size_t last) {
        double out = 0;
        for (std::size_t k = first; k < last; ++k) out = std::max(out, std::abs(w[k]));
        return out;
      };
      return largest(240, 290) / largest(40, 90);
    };
    EXPECT_LT(growth(0.97), 0.7) << late;
    EXPECT_GT(growth(1.03), 1.4) << late;
  }
}

}  // namespace
}  // namespace penstock
