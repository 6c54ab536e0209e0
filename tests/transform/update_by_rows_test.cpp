#include <gtest/gtest.h>

#include "base/text.h"
#include "ops/verify.h"
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
};

std::string step(const Made& m) {
  const std::string table = concat("f32[", m.rows, ",3]");
  const std::string given = m.output == "%n" ? "f32[]" : table;
  return concat("graph @step(%w: ", table, ", %v: ", table, ", %x: i64[4,2], %", m.port, ": i64[4], %rate: f32[]) -> (", table, ", ", table,
                ", ", given, ") {state=2} {\n  %0: ", table, " = accumulate(%x, %", m.port,
                ", %w) {microbatches=2, split=2} (%x: i64[2,2], %r: "
                "i64[2], %w: ",
                table, ") -> (", table, ") {\n    %0: f32[2,2,3] = embedding(%w, %x) {stage=\"a\", sequence=0}\n    %1: ", table,
                " = embedding_dense_backward(%0, %x) {num_weights=", m.rows,
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
