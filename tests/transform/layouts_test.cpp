// SPDX-License-Identifier: Apache-2.0
// Layouts of small steps along one axis: what is decided, and what each member then does, text in and text out.
#include "transform/layouts.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "base/text.h"
#include "lower/lower.h"
#include "models/support.h"
#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/verify.h"
#include "penstock/step.h"
#include "stage/loop.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/text_graphs.h"
#include "transform/passes.h"

namespace penstock {
namespace {

using test::message_of;

// A step of one stage under construction: its parameters are state, each of which is moved by its gradient.
struct StepMaker {
  StepMaker() { builder.marks.stage = "0"; }

  Builder builder{"step"};
  std::vector<Tensor> parameters{};

  Tensor input(const std::string& name, Shape shape, DType dtype = DType::f32) {
    return {&builder, builder.graph.add_input({dtype, std::move(shape)}, name).value};
  }
  Tensor parameter(const std::string& name, Shape shape) {
    parameters.push_back(input(name, std::move(shape)));
    return parameters.back();
  }
  Graph finish(Tensor loss) {
    for (std::size_t i = 0; const Tensor& gradient : gradients(loss, parameters))
      builder.graph.outputs.emplace_back(sub(parameters[i++], gradient).value());
    builder.graph.outputs.emplace_back(loss.value());
    builder.graph.state = static_cast<int>(parameters.size());
    builder.graph.output_names = {"loss"};
    verify(builder.graph);
    return eliminate_common_subexpressions(eliminate_dead_code(builder.graph));
  }
};

void expect_layouts(const std::string& name, const Graph& step, const AxisWishes& wishes) {
  const GraphLayouts layouts = decide_layouts(step, wishes);
  std::string text = concat(print(step), layouts_text(step, layouts, wishes));
  for (std::int64_t member = 0; member < wishes.members; ++member) {
    const Graph local = localise(step, layouts, wishes, member);
    verify(local);
    text += concat("member ", member, "\n", print_body(eliminate_common_subexpressions(eliminate_dead_code(drop_constraints(local)))));
  }
  test::expect_golden("layouts/" + name + ".txt", text);
}

// The first product's columns and the second's rows: one all_reduce in each direction, and the second's bias is added once.
Graph two_layers() {
  StepMaker s;
  const Tensor w0 = s.parameter("w0", {8, 6}), b0 = s.parameter("b0", {8}), w1 = s.parameter("w1", {6, 8}), b1 = s.parameter("b1", {6});
  const Tensor x = s.input("x", {4, 6}), y = s.input("y", {4, 6});
  return s.finish(mse_loss(linear(gelu(linear(x, w0, b0)), w1, b1), y));
}

TEST(DecidedLayouts, OfColumnsAndRows) {
  const Layout columns = split_layout(0, 1, 8, 2);
  expect_layouts("columns_and_rows", two_layers(),
                 {"tensor", 2, {{"w0", columns}, {"b0", columns}, {"w1", split_layout(1, 1, 8, 2)}, {"b1", kWhole}}, {}});
}

TEST(DecidedLayouts, OfUnevenUnits) {
  // 4 units of 2: the first member of three has two of them.
  const Layout units = split_layout(0, 1, 4, 3);
  expect_layouts("uneven_units", two_layers(), {"tensor", 3, {{"w0", units}, {"b0", units}, {"w1", split_layout(1, 1, 4, 3)}}, {}});
}

// Between the products every member has a part of the sequence: gathers and scatters instead of reductions, and the norm's gradient is a
// term.
TEST(DecidedLayouts, OfASequenceBetweenProducts) {
  StepMaker s;
  const Tensor g = s.parameter("g", {6}), b = s.parameter("b", {6}), w0 = s.parameter("w0", {8, 6}), w1 = s.parameter("w1", {6, 8});
  const Tensor x = s.input("x", {2, 4, 6}), y = s.input("y", {2, 4, 6});
  const std::vector<std::string> residual = {"batch", "sequence", "embed"};
  const Tensor from = constrain(x, residual);
  const Tensor to = constrain(add(from, linear(relu(linear(layer_norm(from, g, b), w0)), w1)), residual);
  expect_layouts(
      "sequence", s.finish(mse_loss(to, y)),
      {"tensor", 2, {{"w0", split_layout(0, 1, 8, 2)}, {"w1", split_layout(1, 1, 8, 2)}, {"g", kWhole}, {"b", kWhole}}, {"sequence"}});
}

// The weight's gradient reads the transpose of what the input's gradient reads: it is gathered once, and transposed where it is whole.
TEST(DecidedLayouts, OfAViewThatIsConvertedWithWhatItViews) {
  StepMaker s;
  const Tensor w = s.parameter("w", {4, 8}), x = s.input("x", {2, 4, 8}), y = s.input("y", {2, 4, 4});
  const Tensor to = constrain(linear(tanh(mul(x, sum(w))), w), {"batch", "sequence", "embed"});
  const Graph step = s.finish(mse_loss(to, y));
  const AxisWishes wishes{"tensor", 2, {{"w", split_layout(1, 1, 8, 2)}}, {"sequence"}};
  const std::string text = layouts_text(step, decide_layouts(step, wishes), wishes);
  EXPECT_EQ(text.find("all_to_all"), std::string::npos) << text;
  expect_layouts("view", step, wishes);
}

// A member looks up its own part of the sequence, though all have all tokens.
TEST(DecidedLayouts, OfASequenceThatBeginsAtATable) {
  StepMaker s;
  const Tensor table = s.parameter("table", {7, 6}), places = s.parameter("places", {4, 6});
  const Tensor tokens = s.input("tokens", {2, 4}, DType::i64), y = s.input("y", {2, 4, 6});
  const Tensor from = constrain(add(embedding(table, tokens), places), {"batch", "sequence", "embed"});
  expect_layouts("sequence_from_table", s.finish(mse_loss(from, y)), {"context", 2, {{"table", kWhole}, {"places", kWhole}}, {"sequence"}});
}

// The table is read at both ends, and its two gradients are parts of the same rows. The loss needs the maximum and sum of all columns.
TEST(DecidedLayouts, OfATiedTable) {
  StepMaker s;
  const Tensor table = s.parameter("table", {7, 4});
  const Tensor tokens = s.input("tokens", {3, 2}, DType::i64), targets = s.input("targets", {6}, DType::i64);
  const Tensor hidden = tanh(embedding(table, tokens));
  expect_layouts("tied", s.finish(cross_entropy(reshape(linear(hidden, table), {6, 7}), targets)),
                 {"tensor", 2, {{"table", split_layout(0, 1, 7, 2)}}, {"vocab"}});
}

// The norm of all gradients counts those that are whole once.
TEST(DecidedLayouts, OfASumOfTermsAndWholeScalars) {
  StepMaker s;
  const Tensor w = s.parameter("w", {4}), v = s.parameter("v", {3});
  const Tensor norm = add_n({sum(mul(w, w)), sum(mul(v, v)), sum(mul(w, mul(w, w)))});
  expect_layouts("scalar_sum", s.finish(sqrt(norm)), {"tensor", 2, {{"w", split_layout(0, 1, 4, 2)}, {"v", kWhole}}, {}});
}

// localise() makes the conversions that were said, in the same stages: each collective of a member is one of them.
TEST(DecidedLayouts, ConversionsAreSaidAsTheyAreMade) {
  const auto count = [](const Graph& graph, std::map<std::string, int>& out) {
    for (const Op& op : graph.ops)
      if (find_op(op.name) && find_op(op.name)->collective)
        ++out[concat(op.name, " in ", op.stage, op.phase == Phase::backward ? " back" : "")];
  };
  for (const char* name : {"gpt", "t5", "mlp", "two-branch", "moe"})
    for (const bool sequence : {false, true}) {
      SCOPED_TRACE(concat(name, sequence));
      const auto model = test::model(name, {}, 2);
      const Graph step = prepare_stages(training_step(*model, {2, 128, 2}, {}), true, std::vector<LayoutAxis>{{"tensor", 2, {}}}).step;
      AxisWishes wishes{"tensor", 2, {}, {"heads", "mlp", "vocab", "experts"}};
      if (sequence) wishes.dims.insert("sequence");
      for (const ParameterSpec& spec : model->parameters())
        for (std::size_t d = 0; d < spec.dims.size(); ++d)
          if (wishes.dims.contains(spec.dims[d].name))
            wishes.states[spec.name] =
                split_layout(static_cast<std::int64_t>(d), spec.dims[d].outer, spec.type.shape[d] / spec.dims[d].outer, wishes.members);
      const GraphLayouts layouts = decide_layouts(step, wishes);
      const Graph local = localise(step, layouts, wishes, 0);
      std::map<std::string, int> said, made;
      const auto say = [&](const Graph& graph, const GraphLayouts& of_graph) {
        for (const LayoutConversion& c : conversions_in(graph, of_graph, wishes.members))
          if (!c.from.is_whole()) ++said[concat(conversion_name(c.from, c.to), " in ", c.stage, c.phase == Phase::backward ? " back" : "")];
      };
      say(step, layouts);
      count(local, made);
      const std::size_t loop = loop_of(step);
      say(*step.ops[loop].body, *layouts.body);
      count(*local.ops[loop_of(local)].body, made);
      EXPECT_EQ(said, made);
      EXPECT_FALSE(made.empty());
    }
}

// Stated as GSPMD's and Megatron's formulas: what a member sends in a ring.
TEST(DecidedLayouts, ConversionsCostWhatAMemberSends) {
  const Layout rows = split_layout(0, 1, 12, 3), columns = split_layout(1, 1, 12, 3);
  EXPECT_EQ(conversion_bytes(rows, rows, 900, 3), 0);
  EXPECT_EQ(conversion_bytes(kTerm, kWhole, 900, 3), 1200);
  EXPECT_EQ(conversion_bytes(kTerm, rows, 900, 3), 600);
  EXPECT_EQ(conversion_bytes(rows, kWhole, 900, 3), 600);
  EXPECT_EQ(conversion_bytes(rows, columns, 900, 3), 200);
  EXPECT_EQ(conversion_bytes(rows, split_layout(0, 2, 6, 3), 900, 3), 600) << "cut out of what is gathered";
  EXPECT_LT(conversion_bytes(kWhole, rows, 900, 3), 1e-3) << "nothing is sent";
  EXPECT_GT(conversion_bytes(kWhole, rows, 900, 3), 0) << "but a slice is no better than nothing at all";
  for (const Layout& from : {kWhole, rows}) EXPECT_EQ(conversion_bytes(from, kTerm, 900, 3), std::numeric_limits<double>::infinity());
}

// --- what is refused

TEST(DecidedLayouts, RefuseConstraintsThatDoNotFit) {
  const auto failure = [](const std::string& attributes, std::set<std::string> dims) {
    return message_of([&] {
      decide_layouts(test::graph_of(concat("graph @g(%x: f32[4,6]) -> (f32[4,6]) {\n  %0: f32[4,6] = constrain(%x) {dims=", attributes,
                                           "}\n  return %0\n}\n")),
                     {"tensor", 2, {}, std::move(dims)});
    });
  };
  EXPECT_EQ(failure("\"sequence,embed\", origin=\"h.0\"", {"sequence", "embed"}),
            "axis \"tensor\" is asked to split two dims of f32[4,6]\n  \"sequence\" and \"embed\"\n  made in h.0\n"
            "  hint: give one of them another axis in [layout]");
  EXPECT_EQ(failure("\"a,b,c\", origin=\"h.0\"", {}),
            "constrain names 3 dims of f32[4,6]\n  made in h.0\n  hint: name each dim, \"\" for one without a name");
  EXPECT_EQ(failure("\"sequence,embed\"", {"sequence"}), "no error");
}

std::string failure_of(const std::vector<DimName>& dims, int members) {
  const auto mlp = test::model("mlp", {{"width", 6}, {"layers", 2}, {"context", 4}, {"vocabulary", 10}});
  const CompileOptions options{.axes = {{"tensor", members, {"mlp", "embed"}}}, .dims = {{"layers.0.weight", dims}}};
  return message_of([&] { lower(gradient_step(*mlp, {4, 4, 2}), make_schedule("gpipe", {.actors = 1, .microbatches = 2}), options); });
}

TEST(DecidedLayouts, RefuseParametersThatDoNotFit) {
  EXPECT_EQ(failure_of({{"mlp"}, {"embed"}}, 2),
            "axis \"tensor\" is asked to split two dims of \"layers.0.weight\", f32[6,6]\n  \"mlp\" and \"embed\"\n"
            "  hint: give one of them another axis in [layout]");
  EXPECT_EQ(failure_of({{"mlp", 1, 3}, {}}, 4),
            "axis \"tensor\" has 4 members, \"mlp\" of \"layers.0.weight\" is 3 units\n  \"layers.0.weight\" is f32[6,6]\n"
            "  hint: use at most 3 members, or leave the dim whole in [layout]");
  EXPECT_EQ(failure_of({{"mlp", 6, 1}, {}}, 2),
            "axis \"tensor\" has 2 members, \"mlp\" of \"layers.0.weight\" is 1 unit\n  \"layers.0.weight\" is f32[6,6]\n"
            "  hint: use at most 1 member, or leave the dim whole in [layout]");
  EXPECT_EQ(failure_of({{"mlp", 1, 3}, {}}, 3), "no error");
}

}  // namespace
}  // namespace penstock
