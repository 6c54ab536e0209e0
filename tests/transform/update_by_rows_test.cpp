// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "base/text.h"
#include "ops/verify.h"
#include "support/errors.h"
#include "support/text_graphs.h"
#include "transform/passes.h"

namespace penstock {
namespace {

using test::graph_of;
using test::text_of;

struct Made {
  int rows = 20;  // of the table; a step has 8 indices
  std::string update = "momentum=0.0, weight_decay=0.0";
  std::string port = "rows";  // that numbers the samples
  std::string output = "%n";  // given beside the states; %n: the sum of squares of the gradient
  bool in_bags = false;       // the rows of a sample are summed
};

std::string step(const Made& m) {
  const std::string table = concat("f32[", m.rows, ",3]");
  const std::string given = m.output == "%n" ? "f32[]" : table;
  return concat("graph @step(%w: ", table, ", %v: ", table, ", %x: i64[4,2], %", m.port, ": i64[4], %rate: f32[]) -> (", table, ", ", table,
                ", ", given, ") {state=2} {\n  %0: ", table, " = accumulate(%x, %", m.port,
                ", %w) {microbatches=2, split=2} (%x: i64[2,2], %r: "
                "i64[2], %w: ",
                table, ") -> (", table, ") {\n    %0: ", m.in_bags ? "f32[2,3] = embedding_bag" : "f32[2,2,3] = embedding",
                "(%w, %x) {stage=\"a\", sequence=0}\n    %1: ", table, " = ", m.in_bags ? "embedding_bag" : "embedding",
                "_dense_backward(%0, %x) {num_weights=", m.rows,
                ", stage=\"a\", phase=\"backward\", sequence=0}\n    return %1\n  }\n  %1: ", table,
                " = mul(%0, %0) {sequence=1}\n  %2: f32[] = sum(%1) {dim=[0, 1], keepdim=false, sequence=2}\n  %3: ", table,
                " = mul(%0) {other=0.5, sequence=3}\n  %4: ", table, ", %5: ", table, " = sgd(%w, %3, %v, %rate) {", m.update,
                ", sequence=4}\n  return %4, %5, ", m.output == "%n" ? "%2" : m.output, "\n}\n");
}

TEST(UpdateByRows, TheLoopGivesARowForEachIndex) {
  const Graph made = update_by_rows(graph_of(step({})));
  verify(made);
  EXPECT_EQ(
      text_of(made),
      R"(graph @step(%w: f32[20,3], %v: f32[20,3], %x: i64[4,2], %rows: i64[4], %rate: f32[]) -> (f32[20,3], f32[20,3], f32[]) {state=2} {
  %0: f32[4,6] = accumulate(%x, %rows, %w) {microbatches=2, split=2} (%x: i64[2,2], %r: i64[2], %w: f32[20,3]) -> (f32[4,6]) {
    %0: f32[2,2,3] = embedding(%w, %x) {stage="a", sequence=0}
    %1: f32[20,3] = embedding_dense_backward(%0, %x) {num_weights=20, stage="a", phase="backward", sequence=0}
    %2: f32[2,6] = reshape(%0) {shape=[2, 6], stage="a", phase="backward", sequence=0}
    %3: f32[4,6] = embedding_dense_backward(%2, %r) {num_weights=4, stage="a", phase="backward", sequence=0}
    return %3
  }
  %1: i64[8] = reshape(%x) {shape=[8]}
  %2: f32[8,3] = reshape(%0) {shape=[8, 3]}
  %3: f32[8,3] = sum_equal_rows(%2, %1) {num_weights=20}
  %4: f32[8,3] = mul(%3, %3) {sequence=1}
  %5: f32[] = sum(%4) {dim=[0, 1], keepdim=false, sequence=2}
  %6: f32[8,3] = mul(%3) {other=0.5, sequence=3}
  %7: f32[20,3] = sgd_rows(%w, %6, %1, %rate) {sequence=4}
  return %7, %v, %5
}
)");
}

// The loop gives a row for each bag, which is that of all its indices.
TEST(UpdateByRows, TheLoopGivesARowForEachBag) {
  const Graph made = update_by_rows(graph_of(step({.in_bags = true})));
  verify(made);
  const std::string text = text_of(made);
  EXPECT_NE(text.find("%3: f32[4,3] = embedding_dense_backward(%2, %r) {num_weights=4,"), text.npos) << text;
  EXPECT_NE(text.find("  %2: f32[4,1,3] = reshape(%0) {shape=[4, 1, 3]}\n  %3: f32[4,2,3] = expand(%2) {size=[4, 2, 3]}\n"
                      "  %4: f32[8,3] = reshape(%3) {shape=[8, 3]}\n  %5: f32[8,3] = sum_equal_rows(%4, %1) {num_weights=20}\n"),
            text.npos)
      << text;
}

// Rows are taken of all that an update reads, and put back, also where a step has as many indices as the table has rows.
TEST(UpdateByRows, ALazyUpdateIsOfTheRowsOfTheIndices) {
  for (const int rows : {20, 8}) {
    const Graph made = update_by_rows(graph_of(step({.rows = rows, .update = "momentum=0.5, weight_decay=0.25"})), true);
    verify(made);
    const std::string text = text_of(made), table = concat("f32[", rows, ",3]");
    EXPECT_NE(text.find(concat(R"(  %6: f32[8,3] = mul(%3) {other=0.5, sequence=3}
  %7: i64[8,1] = reshape(%1) {shape=[8, 1]}
  %8: f32[8,1,3] = take_rows(%w, %7)
  %9: f32[8,1,3] = reshape(%6) {shape=[8, 1, 3]}
  %10: f32[8,1,3] = take_rows(%v, %7)
  %11: f32[8,1,3], %12: f32[8,1,3] = sgd(%8, %9, %10, %rate) {momentum=0.5, weight_decay=0.25, sequence=4}
  %13: )",
                               table, " = put_rows(%w, %11, %7)\n  %14: ", table, " = put_rows(%v, %12, %7)\n  return %13, %14, %5\n")),
              text.npos)
        << text;
  }
}

// An update that leaves other rows as they are in any case is not asked for it.
TEST(UpdateByRows, APlainUpdateIsLazyAnyway) {
  for (const int rows : {20, 8}) {
    const Graph graph = graph_of(step({.rows = rows}));
    EXPECT_EQ(text_of(update_by_rows(graph, true)), text_of(update_by_rows(graph)));
  }
}

TEST(UpdateByRows, LazyOnesAreRefusedWhereRowsMoveThatNoSampleNames) {
  const auto refusal = [](const std::string& text) { return test::message_of([&] { update_by_rows(graph_of(text), true); }); };
  const std::string
      begin = "train.lazy_rows: rows of \"w\" cannot be updated by themselves\n  ",
      end =
          "\n  hint: take a model whose tables lookups by the data alone read, and an optimiser that goes element by element, "
          "such as adamw; or set train.lazy_rows = false";
  const auto with = [&](std::string text, const std::string& what, const std::string& other) {
    return text.replace(text.find(what), what.size(), other);
  };
  const std::string moving = step({.update = "momentum=0.5, weight_decay=0.0"});
  const std::string alone = "its gradient is not of one lookup by the data's indices";
  EXPECT_EQ(refusal(step({.update = "momentum=0.5, weight_decay=0.0", .port = "numbers"})), begin + alone + end);
  EXPECT_EQ(refusal(with(moving, "    return %1\n",
                         "    %2: f32[20,3] = add(%1, %w) {stage=\"a\", phase=\"backward\", sequence=1}\n    return %2\n")),
            begin + alone + end);
  EXPECT_EQ(refusal(step({.update = "momentum=0.5, weight_decay=0.0", .output = "%5"})), begin + "the step gives all of its update" + end);
  EXPECT_EQ(
      refusal(with(moving, "  %3: f32[20,3] = mul(%0) {other=0.5, sequence=3}\n", "  %3: f32[20,3] = cumsum(%0) {dim=0, sequence=3}\n")),
      begin + "its update has \"cumsum\", which does not go element by element" + end);
  EXPECT_EQ(refusal("graph @step(%w: f32[2], %x: f32[4,2], %r: f32[]) -> (f32[2]) {state=1} {\n  %0: f32[2] = accumulate(%x, %w) "
                    "{microbatches=2, split=1} (%x: f32[2,2], %w: f32[2]) -> (f32[2]) {\n    %0: f32[2] = sum(%x) {dim=[0], keepdim=false, "
                    "stage=\"a\"}\n    return %0\n  }\n  return %0\n}\n"),
            "train.lazy_rows: the model trains no table that it looks up\n  hint: set train.lazy_rows = false");
}

// As many indices as rows, other updates, samples without numbers, and a gradient that is given.
TEST(UpdateByRows, OthersStayAsTheyAre) {
  const Made others[] = {{.rows = 8},
                         {.update = "momentum=0.5, weight_decay=0.0"},
                         {.update = "momentum=0.0, weight_decay=0.5"},
                         {.port = "numbers"},
                         {.output = "%0"},
                         {.output = "%5"}};
  for (const Made& m : others) {
    const Graph graph = graph_of(step(m));
    EXPECT_EQ(text_of(update_by_rows(graph)), text_of(graph));
  }
}

}  // namespace
}  // namespace penstock
