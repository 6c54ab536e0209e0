// SPDX-License-Identifier: Apache-2.0
// Attributes, structure and structural hash.
#include "penstock/graph.h"

#include <gtest/gtest.h>

#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

Graph parse(const std::string& body) {
  return parse_graph("penstock graph 1\n" + body);
}

TEST(Attributes, MissingOrOfAnotherKindIsAnError) {
  Op op;
  op.name = "add";
  op.attributes["other"] = std::int64_t{2};
  EXPECT_EQ(message_of([&] { attribute<double>(op, "other"); }), "attribute \"other\" of add is 2, of kind i64\n  it must be of kind f64");
  EXPECT_EQ(message_of([&] { attribute_or<double>(op, "other", 1.0); }),
            "attribute \"other\" of add is 2, of kind i64\n  it must be of kind f64");
  EXPECT_EQ(message_of([&] { attribute<bool>(op, "keepdim"); }), "add has no attribute \"keepdim\"\n  it must be of kind bool");
}

TEST(Graph, ProducersAndUses) {
  const Graph graph = parse("graph @g(%x: f32[]) -> (f32[], f32[]) { %0: f32[] = neg(%x) %1: f32[] = add(%0, %0) return %1, %0 }");
  EXPECT_EQ(producers(graph), (std::vector<OpId>{OpId(), OpId(0), OpId(1)}));
  EXPECT_EQ(use_counts(graph), (std::vector<int>{1, 3, 1}));
}

constexpr const char* kLoop =
    "graph @g(%x: f32[4]) -> (f32[2]) { %0: f32[2] = accumulate(%x) {microbatches=2, split=1} (%p: f32[2]) -> (f32[2]) { return %p } "
    "return %0 }";

TEST(Structure, BrokenGraphsAreNamed) {
  const Graph good = parse("graph @g(%x: f32[]) -> (f32[]) { %0: f32[] = neg(%x) %1: f32[] = exp(%0) return %1 }");
  const auto broken = [&](const Graph& from, auto&& change) {
    Graph graph = from;
    change(graph);
    return message_of([&] { verify_structure(graph); });
  };
  EXPECT_EQ(broken(good, [](Graph&) {}), "no error");
  EXPECT_EQ(broken(good, [](Graph& g) { g.ops[0].operands[0] = ValueId(2); }),
            "graph @g: op 0 (neg): operand 0 is value 2, which is not defined before its use");
  EXPECT_EQ(broken(good, [](Graph& g) { g.ops[0].operands[0] = ValueId(9); }),
            "graph @g: op 0 (neg): operand 0 is value 9; the graph has 3 values");
  EXPECT_EQ(broken(good, [](Graph& g) { g.ops[1].results[0] = ValueId(1); }),
            "graph @g: result 0 of op 1 (exp) is value 1, which is already defined");
  EXPECT_EQ(broken(good, [](Graph& g) { g.ops[1].results.clear(); }), "graph @g: op 1 (exp) has no result");
  EXPECT_EQ(broken(good, [](Graph& g) { g.outputs[0] = ValueId(); }), "graph @g: return: output 0 is value -1; the graph has 3 values");
  EXPECT_EQ(broken(good, [](Graph& g) { g.values[1].type.shape = {-1}; }),
            "graph @g: result 0 of op 0 (neg) is f32[-1]: negative, or more bytes than 63 bits count");
  EXPECT_EQ(broken(good, [](Graph& g) { g.ops[0].attributes["stage"] = true; }),
            "graph @g: op 0 (neg): attribute \"stage\" is a mark of the op");
  EXPECT_EQ(broken(good, [](Graph& g) { g.ops[0].attributes["a b"] = true; }),
            "graph @g: op 0 (neg): \"a b\" is no name for an attribute\n  letters, digits, '_' and '.'");
  EXPECT_EQ(broken(good, [](Graph& g) { g.state = 2; }), "graph @g: state is 2; there are 1 inputs and 1 outputs");
  EXPECT_EQ(broken(good, [](Graph& g) { g.state = 1, g.values[0].type.shape = {3}; }),
            "graph @g: state %x is f32[3]; its next value, output 0, is f32[]");
  EXPECT_EQ(broken(good, [](Graph& g) { g.output_names = {"a", "b"}; }),
            "graph @g: there are 2 output names for 1 outputs after the state");
}

TEST(Structure, BrokenLoopsAreNamed) {
  const auto broken = [&](auto&& change) {
    Graph graph = parse(kLoop);
    Graph body = *graph.ops[0].body;
    change(graph, body);
    if (graph.ops[0].body) graph.ops[0].body = std::make_shared<const Graph>(body);
    return message_of([&] { verify_structure(graph); });
  };
  EXPECT_EQ(broken([](Graph&, Graph&) {}), "no error");
  EXPECT_EQ(broken([](Graph& g, Graph&) { g.ops[0].operands.clear(); }),
            "graph @g: op 0 (accumulate) has 0 operands; its body has 1 inputs");
  EXPECT_EQ(broken([](Graph&, Graph& b) { b.outputs.clear(); }), "graph @g: op 0 (accumulate) has 1 results; its body has 0 outputs");
  EXPECT_EQ(broken([](Graph&, Graph& b) { b.state = 1; }),
            "graph @g: op 0 (accumulate): state and output names belong to a step, not to a loop's body");
  EXPECT_EQ(broken([](Graph& g, Graph&) { g.ops[0].attributes["split"] = std::int64_t{2}; }),
            "graph @g: op 0 (accumulate): split is 2 of 1 operands");
  EXPECT_EQ(broken([](Graph& g, Graph&) { g.ops[0].attributes["microbatches"] = std::int64_t{0}; }),
            "graph @g: op 0 (accumulate): microbatches is 0");
  EXPECT_EQ(broken([](Graph& g, Graph&) { g.ops[0].attributes.erase("split"); }),
            "accumulate has no attribute \"split\"\n  it must be of kind i64");
  EXPECT_EQ(broken([](Graph& g, Graph&) { g.ops[0].body = nullptr; }), "graph @g: op 0 (accumulate) has no body");
  EXPECT_EQ(broken([](Graph& g, Graph&) { g.ops[0].name = "neg"; }), "graph @g: op 0 (neg) has a body; only accumulate has one");
  EXPECT_EQ(broken([](Graph&, Graph& b) { b.outputs[0] = ValueId(7); }),
            "graph @body: return: output 0 is value 7; the graph has 1 values");
}

TEST(StructuralHash, SeesStructureButNoNamesOrMarks) {
  const Graph a = parse("graph @g(%x: f32[2]) -> (f32[2]) {state=1} { %0: f32[2] = mul(%x) {other=2.0} return %0 }");
  const Graph renamed = parse(
      "graph @h(%y: f32[2]) -> (f32[2]) {state=1} { %0: f32[2] = mul(%y) {other=2.0, stage=\"s\", phase=\"backward\", origin=\"o\", "
      "sequence=4} return "
      "%0 }");
  EXPECT_EQ(structural_hash(a), structural_hash(renamed));
  EXPECT_TRUE(structurally_equal(a, renamed));
  for (const char* other : {
           "graph @g(%x: f32[3]) -> (f32[3]) {state=1} { %0: f32[3] = mul(%x) {other=2.0} return %0 }",
           "graph @g(%x: f32[2]) -> (f32[2]) {state=1} { %0: f32[2] = mul(%x) {other=3.0} return %0 }",
           "graph @g(%x: f32[2]) -> (f32[2]) {state=1} { %0: f32[2] = mul(%x) {other=2} return %0 }",
           "graph @g(%x: f32[2]) -> (f32[2]) {state=1} { %0: f32[2] = add(%x) {other=2.0} return %0 }",
           "graph @g(%x: f32[2]) -> (f32[2]) {state=1} { %0: f32[2] = mul(%x) {other=2.0} return %x }",
           "graph @g(%x: f32[2]) -> (f32[2]) { %0: f32[2] = mul(%x) {other=2.0} return %0 }",
       }) {
    EXPECT_NE(structural_hash(a), structural_hash(parse(other))) << other;
    EXPECT_FALSE(structurally_equal(a, parse(other))) << other;
  }
}

TEST(StructuralHash, AllNansAreOne) {
  const auto with = [](const char* number) {
    return parse(std::string("graph @g(%x: f32[2]) -> (f32[2]) { %0: f32[2] = mul(%x) {other=") + number + "} return %0 }");
  };
  EXPECT_EQ(structural_hash(with("nan")), structural_hash(with("-nan")));
  EXPECT_TRUE(structurally_equal(with("nan"), with("-nan")));
}

TEST(StructuralHash, SeesLoopBodies) {
  std::string other = kLoop;
  other.replace(other.find("return %p"), 9, "%0: f32[2] = neg(%p) return %0");
  EXPECT_FALSE(structurally_equal(parse(kLoop), parse(other)));
  EXPECT_TRUE(structurally_equal(parse(kLoop), parse(kLoop)));
}

}  // namespace
}  // namespace penstock
