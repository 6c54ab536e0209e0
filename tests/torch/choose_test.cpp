// SPDX-License-Identifier: Apache-2.0
#include "torch/choose.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "support/errors.h"
#include "support/temporary.h"

namespace penstock {
namespace {

using test::message_of;

// A layer forward, and its backward run twice: the weight's gradient is stored, then added.
Program layer() {
  return parse_program(R"(penstock program 1
program @p {microbatches=2}
task @F {scratch=0}
graph @F(%x: f32[2,4,8], %w: f32[6,8], %b: f32[6]) -> (f32[2,4,6]) {
  %0: f32[2,4,6] = linear(%x, %w, %b)
  return %0
}
task @B {scratch=0}
graph @B(%x: f32[8,8], %d: f32[8,6], %e: f64[2,2]) -> (f32[6,8], f64[2,2]) {
  %0: f32[6,8] = transpose(%d) {dim0=0, dim1=1}
  %1: f32[6,8] = mm(%0, %x)
  %2: f64[2,2] = mm(%e, %e)
  return %1, %2
}
)");
}

TEST(ChooseKernels, NamesEveryF32Product) {
  Program program = layer();
  KernelChoices choices;
  EXPECT_TRUE(choose_kernels(program, choices));
  std::vector<std::string> products;
  for (const auto& [product, kernel] : choices) products.push_back(product);
  EXPECT_EQ(join(products, "; "), "f32 6x8x8 tn store; f32 8x6x8 nt bias");
  EXPECT_TRUE(program.tasks[0].graph->ops[0].attributes.contains("kernel"));
  EXPECT_TRUE(program.tasks[1].graph->ops[1].attributes.contains("kernel"));
  EXPECT_FALSE(program.tasks[1].graph->ops[2].attributes.contains("kernel")) << "f64 has one library";
}

TEST(ChooseKernels, TakesWhatIsKept) {
  const test::TemporaryFolder folder;
  const std::string file = folder.file("cache/kernels.txt");
  Program program = layer();
  choose_kernels(program, file);
  KernelChoices choices = read_kernel_choices(file);
  ASSERT_EQ(choices.size(), 2u);
  for (auto& [product, kernel] : choices) kernel = "mkl";
  write_kernel_choices(file, choices);
  Program again = layer();
  choose_kernels(again, file);
  EXPECT_EQ(attribute<std::string>(again.tasks[0].graph->ops[0], "kernel"), "mkl");
  EXPECT_EQ(print(parse_program(print(again))), print(again));
}

TEST(ChooseKernels, AnotherProcessorsChoicesDoNotCount) {
  const test::TemporaryFolder folder;
  const std::string file = folder.file("kernels.txt");
  write_file(file, "penstock kernels 1\nprocessor \"abacus\"\n\"f32 1x1x1 nn store\" \"mkl\"\n");
  EXPECT_TRUE(read_kernel_choices(file).empty());
}

TEST(ChooseKernels, RejectsAFileThatIsNone) {
  const test::TemporaryFolder folder;
  const std::string file = folder.file("kernels.txt");
  write_file(file, "penstock kernels 1\nprocessor \"x\"\n\"f32 1x1x1 nn store\" \"abacus\"\n");
  EXPECT_TRUE(message_of([&] { read_kernel_choices(file); }).starts_with(file + ":3:22: unknown kernel \"abacus\"\n"));
}

TEST(ChooseKernels, AProductRateIsMeasuredInEachDtype) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) EXPECT_GT(product_rate(dtype), 0) << name(dtype);
}

}  // namespace
}  // namespace penstock
