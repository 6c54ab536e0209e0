// SPDX-License-Identifier: Apache-2.0
// The text form of graphs: what is printed reads back, what is wrong is shown with its place.
#include <gtest/gtest.h>

#include "penstock/graph.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

// One of everything.
constexpr const char* kText = R"(penstock graph 1
graph @step(%h.0.weight: f32[4,4], %first:h.0.weight: f32[4,4], %x: f32[8,4]) -> (f32[4,4], f32[4,4], f32[]) {state=2, outputs=["loss"]} {
  %0: f32[4,4] = aten::cumsum.out(%h.0.weight, %h.0.weight) {dim=-1, dtype=bf16, f=1.0, fs=[1.0, -inf], g=true, none=[], reals=f64[], s="a\"b", sizes=[1, -2], stage="encoder", phase="backward", origin="h.0", sequence=3}
  %1: f32[], %2: f32[4,4] = accumulate(%x, %0) {microbatches=4, split=1} (%x: f32[2,4], %w: f32[4,4]) -> (f32[], f32[4,4]) {
    %0: f32[2,4] = linear(%x, %w) {stage="a"}
    %1: f32[] = sum(%0)
    return %1, %w
  }
  %3: f32[4,4] = zeros()
  return %2, %3, %1
}
)";

TEST(TextForm, PrintsWhatItReads) {
  EXPECT_EQ(print(parse_graph(kText)), kText);
  verify_structure(parse_graph(kText));
}

TEST(TextForm, ReadsMarksAndAttributes) {
  const Graph graph = parse_graph(kText);
  const Op& op = graph.ops[0];
  EXPECT_EQ(op.name, "aten::cumsum.out");
  EXPECT_EQ(op.stage, "encoder");
  EXPECT_EQ(op.phase, Phase::backward);
  EXPECT_EQ(op.origin, "h.0");
  EXPECT_EQ(op.sequence, 3);
  EXPECT_EQ(attribute<DType>(op, "dtype"), DType::bf16);
  EXPECT_EQ(attribute<double>(op, "f"), 1.0);
  EXPECT_EQ(attribute<std::string>(op, "s"), "a\"b");
  EXPECT_TRUE(attribute<std::vector<double>>(op, "reals").empty());
  EXPECT_TRUE(attribute<std::vector<std::int64_t>>(op, "none").empty());
  EXPECT_EQ(attribute_or<std::int64_t>(op, "step", 7), 7);
  EXPECT_EQ(graph.ops[1].body->inputs.size(), 2u);
}

TEST(TextForm, ResultsAreNumberedWhateverTheyAreCalled) {
  const Graph graph =
      parse_graph("penstock graph 1 graph @g(%a: f32[]) -> (f32[]) { // a remark\n %total: f32[] = neg(%a) return %total }");
  EXPECT_EQ(print_body(graph, 2), "graph @g(%a: f32[]) -> (f32[]) {\n    %0: f32[] = neg(%a)\n    return %0\n  }\n");
}

// Inputs that a program made, not a user: no names, equal names, names that the text form uses for itself.
TEST(TextForm, AnyInputNamesReadBack) {
  Graph graph;
  graph.name = "odd name";
  for (const char* name : {"", "", "in", "x", "x", "0", "a b", "a:", "//", "%", "x.2"}) graph.add_input({DType::f32, {}}, name);
  Op op;
  op.name = "odd op";
  op.operands = {graph.inputs[5]};
  op.results = {graph.add_value({DType::f32, {2}})};
  graph.ops.push_back(op);
  graph.outputs = {graph.ops[0].results[0]};
  const std::string text = print(graph);
  EXPECT_EQ(print(parse_graph(text)), text);
  EXPECT_NE(text.find("%\"0\": f32[]"), std::string::npos) << text;
}

std::string reading(const std::string& body) {
  return message_of([&] { parse_graph("penstock graph 1\n" + body, "g.txt"); });
}

TEST(TextFormErrors, ShowPlaceLineAndCaret) {
  EXPECT_EQ(reading("graph @g(%x: f32[2]) -> (f32[2]) {\n  %0: f32[2] = neg(%y)\n  return %0\n}"),
            "g.txt:3:20: %y is not defined before its use\n"
            "    %0: f32[2] = neg(%y)\n"
            "                     ^ near here");
}

TEST(TextFormErrors, EachKindOfMistake) {
  const auto says = [](const std::string& body, const std::string& what) {
    EXPECT_NE(reading(body).find(what), std::string::npos) << body << "\n" << reading(body);
  };
  const auto op = [](const std::string& line) { return "graph @g(%x: f32[2]) -> (f32[2]) {\n  " + line + "\n  return %0\n}"; };
  says("graph @g(%x: f31[2]) -> () { return }", "\"f31\" is no dtype");
  says("graph @g(%x: f32[-1]) -> () { return }", "negative size or more bytes");
  says("graph @g(%x: f32[0,4294967296,4294967296]) -> () { return }", "negative size or more bytes");
  says("graph @g(%x: f32[99999999999999999999]) -> () { return }", "does not fit into 64 bits");
  says("graph @g(%x: f32[2], %x: f32[2]) -> () { return }", "%x is already defined");
  says("graph @g(%x: f32[2]) -> (f32[3]) { return %x }", "output 0 is f32[2]; the signature says f32[3]");
  says("graph @g(%x: f32[2]) -> () { return %x }", "returns 1 values; the signature says 0");
  says("graph @g() -> () {states=1} { return }", "\"states\" is no attribute of a graph");
  says("graph @g() -> () {state=-1} { return }", "must be from 0 to");
  says("graph @g() -> () { return } x", "nothing may follow it");
  says("graph @g() -> () {", "expected \"%\"");
  says(op("%0: f32[2] = neg(%0)"), "%0 is not defined before its use");
  says(op("%x: f32[2] = neg(%x)"), "%x is already defined");
  says(op("%0: f32[2] = neg(%x) {a=1, a=2}"), "attribute \"a\" is given twice");
  says(op("%0: f32[2] = neg(%x) {stage=\"a\", stage=\"b\"}"), "attribute \"stage\" is given twice");
  says(op("%0: f32[2] = neg(%x) {a=[1, 2.5]}"), "a real in a list of integers");
  says(op("%0: f32[2] = neg(%x) {a=maybe}"), "\"maybe\" is no attribute value");
  says(op("%0: f32[2] = neg(%x) {phase=\"sideways\"}"), "phase is \"forward\" or \"backward\"");
  says(op("%0: f32[2] = neg(%x) {a=\"open}"), "no closing quote");
  EXPECT_NE(message_of([] { parse_graph("penstock program 1\n"); }).find("this is a penstock program, not a penstock graph"),
            std::string::npos);
}

TEST(TextFormErrors, NestingHasALimit) {
  std::string text = "graph @g() -> () { %0: f32[] = zeros()";
  for (int i = 0; i < 100000; ++i) text += " %1: f32[] = accumulate() () -> () { %0: f32[] = zeros()";
  EXPECT_NE(reading(text).find("loops are nested deeper than 16"), std::string::npos);
}

}  // namespace
}  // namespace penstock
