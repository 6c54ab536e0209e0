// SPDX-License-Identifier: Apache-2.0
#include "exported/rename.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "exported/rename_rows.h"
#include "support/errors.h"
#include "support/text_graphs.h"

namespace penstock {
namespace {

using test::graph_of;
using test::text_of;

TEST(RenameOps, WhatIsMadeCarriesTheMarksOfTheOpThatItReplaces) {
  EXPECT_EQ(text_of(rename_ops(graph_of(R"(graph @g(%x: f32[2,3]) -> (f32[2,3]) {
  %0: f32[2,3] = aten::gelu(%x) {approximate="none", stage="1", origin="mlp", sequence=7}
  %1: f32[2,3] = aten::gelu_backward(%0, %x) {approximate="none", phase="backward", origin="mlp", sequence=7}
  return %1
})"))),
            R"(graph @g(%x: f32[2,3]) -> (f32[2,3]) {
  %0: f32[2,3] = gelu(%x) {approximate="none", stage="1", origin="mlp", sequence=7}
  %1: f32[2,3] = gelu_backward(%0, %x) {approximate="none", phase="backward", origin="mlp", sequence=7}
  return %1
}
)");
}

// An op without a row, attributes that a row does not take, operands that an op of ours does not take, a result of another type than ours
// gives.
TEST(RenameOps, TheRestStaysByName) {
  const std::string text = R"(graph @g(%x: f32[2,3], %b: f32[3], %w: f32[3,3], %n: i32[2]) -> (f32[2,3], f32[2,3], f32[2,3], f32[2]) {
  %0: f32[2,3] = aten::flip(%x) {dims=[0], sequence=0}
  %1: f32[2,3] = aten::addmm(%b, %x, %w) {alpha=1, beta=2, sequence=1}
  %2: f32[2,3] = aten::embedding(%w, %n) {sequence=2}
  %3: f32[2] = aten::sum.dim_IntList(%x) {dim=[0], keepdim=false, sequence=3}
  return %0, %1, %2, %3
}
)";
  EXPECT_EQ(text_of(rename_ops(graph_of(text))), text);
}

TEST(RenameOps, CopiesAndAliasesGo) {
  EXPECT_EQ(text_of(rename_ops(graph_of(R"(graph @g(%x: f32[2,3]) -> (f32[3,2]) {
  %0: f32[2,3] = aten::clone(%x)
  %1: f32[2,3] = aten::detach(%0)
  %2: f32[2,3] = aten::view(%1) {size=[2, 3]}
  %3: f32[3,2] = aten::t(%2)
  %4: f32[2,3] = aten::t(%3)
  %5: f32[6] = aten::view(%4) {size=[6]}
  %6: f32[3,2] = aten::_unsafe_view(%5) {size=[3, 2], sequence=6}
  return %6
})"))),
            R"(graph @g(%x: f32[2,3]) -> (f32[3,2]) {
  %0: f32[3,2] = reshape(%x) {shape=[3, 2], sequence=6}
  return %0
}
)");
}

// A Linear module's products, as they are exported and as Penstock's own linear and its gradient are.
TEST(RenameOps, ALinearWithItsGradient) {
  EXPECT_EQ(text_of(rename_ops(graph_of(
                R"(graph @g(%x: f32[2,4,3], %dy: f32[2,4,5], %w: f32[5,3], %b: f32[5]) -> (f32[2,4,5], f32[2,4,3], f32[5,3], f32[5]) {
  %0: f32[8,3] = aten::view(%x) {size=[8, 3], sequence=0}
  %1: f32[3,5] = aten::t(%w) {sequence=1}
  %2: f32[8,5] = aten::addmm(%b, %0, %1) {alpha=1, beta=1, sequence=2}
  %3: f32[2,4,5] = aten::view(%2) {size=[2, 4, 5], sequence=3}
  %4: f32[8,5] = aten::view(%dy) {size=[8, 5], phase="backward", sequence=3}
  %5: f32[5,3] = aten::t(%1) {phase="backward", sequence=2}
  %6: f32[8,3] = aten::mm(%4, %5) {phase="backward", sequence=2}
  %7: f32[5,8] = aten::t(%4) {phase="backward", sequence=2}
  %8: f32[5,3] = aten::mm(%7, %0) {phase="backward", sequence=2}
  %9: f32[3,5] = aten::t(%8) {phase="backward", sequence=2}
  %10: f32[1,5] = aten::sum.dim_IntList(%4) {dim=[0], keepdim=true, phase="backward", sequence=2}
  %11: f32[5] = aten::view(%10) {size=[5], phase="backward", sequence=2}
  %12: f32[5,3] = aten::t(%9) {phase="backward", sequence=1}
  %13: f32[2,4,3] = aten::view(%6) {size=[2, 4, 3], phase="backward", sequence=0}
  return %3, %13, %12, %11
})"))),
            R"(graph @g(%x: f32[2,4,3], %dy: f32[2,4,5], %w: f32[5,3], %b: f32[5]) -> (f32[2,4,5], f32[2,4,3], f32[5,3], f32[5]) {
  %0: f32[8,3] = reshape(%x) {shape=[8, 3], sequence=0}
  %1: f32[2,4,5] = linear(%x, %w, %b) {sequence=3}
  %2: f32[8,5] = reshape(%dy) {shape=[8, 5], phase="backward", sequence=3}
  %3: f32[8,3] = mm(%2, %w) {phase="backward", sequence=3}
  %4: f32[5,8] = transpose(%2) {dim0=0, dim1=1, phase="backward", sequence=3}
  %5: f32[5,3] = mm(%4, %0) {phase="backward", sequence=3}
  %6: f32[5] = sum(%2) {dim=[0], keepdim=false, phase="backward", sequence=3}
  %7: f32[2,4,3] = reshape(%3) {shape=[2, 4, 3], phase="backward", sequence=0}
  return %1, %7, %5, %6
}
)");
}

// The mean over the targets that count: the sum, divided by a number that the targets alone say.
TEST(RenameOps, CrossEntropyWithItsGradient) {
  EXPECT_EQ(text_of(rename_ops(graph_of(R"(graph @g(%x: f32[4,3], %targets: i64[4], %dloss: f32[]) -> (f32[], f32[4,3]) {
  %0: f32[4,3] = aten::_log_softmax(%x) {dim=1, half_to_float=false, sequence=0}
  %1: f32[4,3] = aten::detach(%0) {sequence=0}
  %2: f32[], %3: f32[] = aten::nll_loss_forward(%0, %targets) {reduction=1, ignore_index=-100, none=[2], sequence=1}
  %4: f32[4,3] = aten::nll_loss_backward(%dloss, %0, %targets, %3) {reduction=1, ignore_index=-100, none=[3], phase="backward", sequence=1}
  %5: f32[4,3] = aten::_log_softmax_backward_data(%4, %1) {dim=1, input_dtype=f32, phase="backward", sequence=0}
  return %2, %5
})"))),
            R"(graph @g(%x: f32[4,3], %targets: i64[4], %dloss: f32[]) -> (f32[], f32[4,3]) {
  %0: bool[4] = ne(%targets) {other=-100.0, sequence=1}
  %1: i64[] = sum(%0) {dim=[0], keepdim=false, sequence=1}
  %2: f32[] = to(%1) {dtype=f32, sequence=1}
  %3: f32[], %4: f32[4] = cross_entropy(%x, %targets) {ignore_index=-100, sequence=1}
  %5: f32[] = div(%3, %2) {sequence=1}
  %6: f32[] = div(%dloss, %2) {phase="backward", sequence=1}
  %7: f32[4,3] = cross_entropy_backward(%6, %x, %targets, %4) {ignore_index=-100, phase="backward", sequence=1}
  return %5, %7
}
)");
}

// The attention that remains with the mask that a model makes of its positions; `kept` makes %2, true where query %1 attends to key %0.
std::string masked_attention(const std::string& kept) {
  const std::string text = text_of(rename_ops(graph_of(R"(graph @g(%q: f32[1,2,4,3], %lengths: i64[4]) -> (f32[1,2,4,3]) {
  %0: i64[4] = aten::arange() {end=4, sequence=0}
  %1: i64[4,1] = aten::unsqueeze(%0) {dim=1, sequence=1}
  %2: bool[4,4] = )" + kept + R"( {sequence=2}
  %3: f32[] = full() {dtype=f32, fill_value=-inf, size=[], sequence=3}
  %4: f32[] = full() {dtype=f32, fill_value=0.0, size=[], sequence=3}
  %5: f32[4,4] = aten::where.self(%2, %4, %3) {sequence=3}
  %6: f32[1,2,4,3], %7: f32[1,2,4] = aten::_scaled_dot_product_flash_attention_for_cpu(%q, %q, %q, %5) {dropout_p=0.0, is_causal=false, scale=0.5, sequence=3}
  return %6
})")));
  const std::size_t begin = text.rfind(" = ") + 3;
  return text.substr(begin, text.find('\n', begin) - begin);
}

TEST(RenameOps, AConstantMaskIsNoOperandOfAttention) {
  EXPECT_EQ(masked_attention("aten::le.Tensor(%0, %1)"),
            "scaled_dot_product_attention(%q, %q, %q) {is_causal=true, scale=0.5, sequence=3}");
  // The first query attends to nothing; keys behind the query; a mask that is data.
  for (const char* kept : {"aten::lt.Tensor(%0, %1)", "aten::le.Tensor(%1, %0)", "aten::ne.Tensor(%lengths, %1)"})
    EXPECT_TRUE(masked_attention(kept).ends_with(") {is_causal=false, scale=0.5, sequence=3}")) << masked_attention(kept);
}

TEST(RenameOps, AMaskThatIsDataIsABias) {
  EXPECT_EQ(text_of(rename_ops(graph_of(R"(graph @g(%q: f32[1,2,4,3], %mask: f32[4,4]) -> (f32[1,2,4,3]) {
  %0: f32[1,2,4,3], %1: f32[1,2,4] = aten::_scaled_dot_product_flash_attention_for_cpu(%q, %q, %q, %mask) {dropout_p=0.0, is_causal=false, scale=0.5, sequence=3}
  return %0
})"))),
            R"(graph @g(%q: f32[1,2,4,3], %mask: f32[4,4]) -> (f32[1,2,4,3]) {
  %0: f32[1,4,4] = unsqueeze(%mask) {dim=0, sequence=3}
  %1: f32[1,1,4,4] = unsqueeze(%0) {dim=0, sequence=3}
  %2: f32[1,2,4,3], %3: f32[1,2,4] = scaled_dot_product_attention(%q, %q, %q, %1) {is_causal=false, scale=0.5, sequence=3}
  return %2
}
)");
}

// A graph may be anybody's file: what lacks operands or attributes stays by name, or is refused where it is run.
TEST(RenameOps, NothingIsReadThatAnOpLacks) {
  const std::vector<std::string> attributes = {
      "", "{dim=9}", "{dim=[9], size=[], pad=[1, 1, 1, 1, 1, 1], repeats=[], stride=[], padding=[], output_mask=[]}",
      "{dim=-9, output_mask=[1], dilation=[1], groups=1, transposed=false, kernel_size=[], normalized_shape=[3], eps=1.0, reduction=1, "
      "ignore_index=0, none=[0]}"};
  const std::pair<const char*, const char*> results[] = {{"%0: f32[2,3]", "f32[2,3]"}, {"%0: f32[], %1: i64[4,4,4]", "f32[]"}};
  for (const RenameRow& row : rename_rows())
    for (const char* operands : {"", "%x", "%n, %x", "%x, %n, %n, %x"})
      for (const std::string& given : attributes)
        for (const auto& [defined, type] : results) {
          const Graph graph = graph_of(concat("graph @g(%x: f32[2,3], %n: i64[4]) -> (", type, ") {\n  ", defined, " = ", row.name, "(",
                                              operands, ") ", given, "\n  return %0\n}"));
          const std::string message = test::message_of([&] { verify_structure(rename_ops(graph)); });
          EXPECT_EQ(message.substr(0, 8), row.name.starts_with("aten::as_strided") ? "op \"aten" : "no error") << print(graph);
        }
}

TEST(RenameOpsFailure, MemoryThatIsReadByStrides) {
  EXPECT_EQ(test::message_of([] {
              rename_ops(graph_of(R"(graph @g(%x: f32[4,3]) -> (f32[3,2]) {
  %0: f32[3,2] = aten::as_strided(%x) {size=[3, 2], stride=[1, 3], origin="window"}
  return %0
})"));
            }),
            R"(op "aten::as_strided" in module "window" reads memory by strides
  hint: write it with views: view, transpose, unfold, slices)");
}

TEST(RenameOps, GeluByTanhWithItsGradient) {
  EXPECT_EQ(text_of(rename_ops(graph_of(R"(graph @g(%x: f32[3], %dy: f32[3]) -> (f32[3], f32[3]) {
  %0: f32[3] = mul(%x) {other=0.5, sequence=0}
  %1: f32[3] = aten::pow.Tensor_Scalar(%x) {exponent=3.0, sequence=1}
  %2: f32[3] = aten::mul.Scalar(%1) {other=0.044715, sequence=2}
  %3: f32[3] = aten::add.Tensor(%x, %2) {sequence=3}
  %4: f32[3] = aten::mul.Scalar(%3) {other=0.7978845608028654, sequence=4}
  %5: f32[3] = aten::tanh(%4) {sequence=5}
  %6: f32[3] = aten::add.Scalar(%5) {other=1.0, sequence=6}
  %7: f32[3] = aten::mul.Tensor(%0, %6) {sequence=7}
  %8: f32[3] = aten::mul.Tensor(%dy, %0) {phase="backward", sequence=7}
  %9: f32[3] = aten::mul.Tensor(%dy, %6) {phase="backward", sequence=7}
  %10: f32[3] = aten::tanh_backward(%8, %5) {phase="backward", sequence=5}
  %11: f32[3] = aten::mul.Scalar(%10) {other=0.7978845608028654, phase="backward", sequence=4}
  %12: f32[3] = aten::mul.Scalar(%11) {other=0.044715, phase="backward", sequence=2}
  %13: f32[3] = aten::pow.Tensor_Scalar(%x) {exponent=2.0, phase="backward", sequence=1}
  %14: f32[3] = aten::mul.Scalar(%13) {other=3.0, phase="backward", sequence=1}
  %15: f32[3] = aten::mul.Tensor(%12, %14) {phase="backward", sequence=1}
  %16: f32[3] = aten::add.Tensor(%11, %15) {phase="backward", sequence=1}
  %17: f32[3] = aten::mul.Scalar(%9) {other=0.5, phase="backward", sequence=0}
  %18: f32[3] = aten::add.Tensor(%16, %17) {phase="backward", sequence=0}
  return %7, %18
})"))),
            R"(graph @g(%x: f32[3], %dy: f32[3]) -> (f32[3], f32[3]) {
  %0: f32[3] = gelu(%x) {approximate="tanh", sequence=7}
  %1: f32[3] = gelu_backward(%dy, %x) {approximate="tanh", phase="backward", sequence=7}
  return %0, %1
}
)");
}

// The gradient of x joins another one, as that of a residual stream does.
TEST(RenameOps, RmsNormWithItsGradient) {
  EXPECT_EQ(text_of(rename_ops(graph_of(R"(graph @g(%x: f32[2,4], %w: f32[4], %dy: f32[2,4], %z: f32[2,4]) -> (f32[2,4], f32[4], f32[2,4]) {
  %0: f32[2,4] = aten::pow.Tensor_Scalar(%x) {exponent=2, sequence=0}
  %1: f32[2,1] = aten::mean.dim(%0) {dim=[-1], keepdim=true, sequence=1}
  %2: f32[2,1] = aten::add.Scalar(%1) {other=1e-06, sequence=2}
  %3: f32[2,1] = aten::rsqrt(%2) {sequence=3}
  %4: f32[2,4] = aten::mul.Tensor(%x, %3) {sequence=4}
  %5: f32[2,4] = aten::mul.Tensor(%w, %4) {sequence=5}
  %6: f32[2,4] = aten::mul.Tensor(%dy, %w) {phase="backward", sequence=5}
  %7: f32[2,4] = aten::mul.Tensor(%dy, %4) {phase="backward", sequence=5}
  %8: f32[1,4] = aten::sum.dim_IntList(%7) {dim=[0], keepdim=true, phase="backward", sequence=5}
  %9: f32[4] = aten::view(%8) {size=[4], phase="backward", sequence=5}
  %10: f32[2,4] = aten::mul.Tensor(%6, %x) {phase="backward", sequence=4}
  %11: f32[2,4] = aten::mul.Tensor(%6, %3) {phase="backward", sequence=4}
  %12: f32[2,1] = aten::sum.dim_IntList(%10) {dim=[1], keepdim=true, phase="backward", sequence=4}
  %13: f32[2,4] = aten::add.Tensor(%z, %11) {phase="backward", sequence=4}
  %14: f32[2,1] = aten::pow.Tensor_Scalar(%3) {exponent=3, phase="backward", sequence=3}
  %15: f32[2,1] = aten::mul.Scalar(%12) {other=-0.5, phase="backward", sequence=3}
  %16: f32[2,1] = aten::mul.Tensor(%15, %14) {phase="backward", sequence=3}
  %17: f32[2,4] = aten::expand(%16) {size=[2, 4], phase="backward", sequence=1}
  %18: f32[2,4] = aten::div.Scalar(%17) {other=4, phase="backward", sequence=1}
  %19: f32[2,4] = aten::pow.Tensor_Scalar(%x) {exponent=1.0, phase="backward", sequence=0}
  %20: f32[2,4] = aten::mul.Scalar(%19) {other=2.0, phase="backward", sequence=0}
  %21: f32[2,4] = aten::mul.Tensor(%18, %20) {phase="backward", sequence=0}
  %22: f32[2,4] = aten::add.Tensor(%13, %21) {phase="backward", sequence=0}
  return %5, %9, %22
})"))),
            R"(graph @g(%x: f32[2,4], %w: f32[4], %dy: f32[2,4], %z: f32[2,4]) -> (f32[2,4], f32[4], f32[2,4]) {
  %0: f32[2,4], %1: f32[2,1] = _fused_rms_norm(%x, %w) {eps=1e-06, sequence=5}
  %2: f32[2,4], %3: f32[4] = _fused_rms_norm_backward(%dy, %x, %1, %w) {phase="backward", sequence=5}
  %4: f32[2,4] = add(%z, %2) {phase="backward", sequence=5}
  return %0, %3, %4
}
)");
}

}  // namespace
}  // namespace penstock
