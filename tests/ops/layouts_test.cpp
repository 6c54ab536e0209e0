// SPDX-License-Identifier: Apache-2.0
// The layout rules of some ops, and cases in which no rule is asked. Kernels show that the rows are right (torch/layout_rows_test.cpp).
#include "ops/layouts.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "ops/definition.h"

namespace penstock {
namespace {

using Integers = std::vector<std::int64_t>;

struct Whole {
  Whole(std::string name, std::vector<TensorType> types, Attributes attributes = {}) : operands(std::move(types)) {
    op.name = std::move(name);
    op.attributes = std::move(attributes);
    for (std::size_t i = 0; i < operands.size(); ++i) op.operands.emplace_back(static_cast<std::int64_t>(i));
    results = find_op(op.name)->infer(op, operands);
  }
  LayoutSite site(std::int64_t members) const { return {op, operands, results, members}; }
  std::string row(std::size_t operand, const Layout& split, std::int64_t members = 2) const {
    return text(layout_row(site(members), operand, split));
  }
  static std::string text(const std::optional<LayoutRow>& row) {
    if (!row) return "none";
    const auto all = [](const std::vector<Layout>& of) { return join(of, ", ", [](const Layout& layout) { return text_of(layout); }); };
    return concat(all(row->operands), " -> ", all(row->results));
  }
  // A member's op where operand 0 is split so.
  Whole local(const Layout& split, std::int64_t members, std::int64_t member) const {
    const LayoutRow row = *layout_row(site(members), 0, split);
    const Op made = local_op(site(members), row, member);
    std::vector<TensorType> types;
    for (const ValueId value : made.operands)
      types.push_back(local_type(operands[value.index()], row.operands[value.index()], members, member));
    return {made.name, types, made.attributes};
  }

  Op op;
  std::vector<TensorType> operands, results;
};

TensorType f32(Shape shape) {
  return {DType::f32, std::move(shape)};
}
TensorType i64(Shape shape) {
  return {DType::i64, std::move(shape)};
}

TEST(Layouts, OfAProduct) {
  const Whole linear("linear", {f32({4, 6, 10}), f32({8, 10}), f32({8})});
  EXPECT_EQ(linear.row(0, split_layout(0, 1, 4, 2)), "split 0, whole, whole -> split 0");
  EXPECT_EQ(linear.row(1, split_layout(0, 2, 4, 2)), "whole, split 0 of 2, split 0 of 2 -> split 2 of 2");
  EXPECT_EQ(linear.row(1, split_layout(1, 1, 5, 2)), "split 2, split 1, whole -> term");
  const Whole first = linear.local(split_layout(2, 1, 5, 2), 2, 0), second = linear.local(split_layout(2, 1, 5, 2), 2, 1);
  EXPECT_EQ(first.operands, (std::vector{f32({4, 6, 6}), f32({8, 6}), f32({8})}));
  EXPECT_EQ(second.operands, (std::vector{f32({4, 6, 4}), f32({8, 4})})) << "the first member alone adds the bias";
}

TEST(Layouts, OfPackedHeads) {
  const Whole split("split", {f32({4, 6, 30})}, {{"dim", std::int64_t{2}}, {"split_size", std::int64_t{10}}});
  const Layout heads = split_layout(2, 3, 5, 2);
  EXPECT_EQ(split.row(0, heads), "split 2 of 3 -> split 2, split 2, split 2");
  EXPECT_EQ(split.row(0, split_layout(2, 1, 30, 2)), "none") << "its parts lie across the pieces";
  EXPECT_EQ(split.local(heads, 2, 0).op.attributes.at("split_size"), Attribute(std::int64_t{6}));
  EXPECT_EQ(split.local(heads, 2, 1).op.attributes.at("split_size"), Attribute(std::int64_t{4}));
  const Whole reshape("reshape", {f32({4, 6, 10})}, {{"shape", Integers{4, 6, 5, -1}}});
  EXPECT_EQ(reshape.row(0, split_layout(2, 1, 5, 2)), "split 2 -> split 2");
  EXPECT_EQ(reshape.row(0, split_layout(2, 1, 10, 3)), "none") << "a head is not cut";
  EXPECT_EQ(reshape.local(split_layout(2, 1, 5, 2), 2, 1).results[0], f32({4, 6, 2, 2}));
}

// Places are those in the whole tensor, however many axes have cut it.
TEST(Layouts, SayWhereAPartLies) {
  const Whole dropout("dropout", {f32({4, 6, 10}), i64({}), i64({4})}, {{"p", 0.1}});
  EXPECT_EQ(dropout.row(0, split_layout(0, 1, 4, 2)), "split 0, whole, split 0 -> split 0");
  EXPECT_EQ(dropout.row(2, split_layout(0, 1, 4, 2)), "split 0, whole, split 0 -> split 0");
  const Whole part = dropout.local(split_layout(1, 1, 6, 2), 2, 1).local(split_layout(2, 1, 10, 3), 3, 1);
  EXPECT_EQ(part.op.attributes.at("inner"), Attribute(Integers{30, 3}));
  EXPECT_EQ(part.op.attributes.at("whole"), Attribute(Integers{60, 10}));
  EXPECT_EQ(part.op.attributes.at("begin"), Attribute(Integers{30, 4}));
  const Whole embedding("embedding", {f32({257, 6}), i64({4, 3})});
  EXPECT_EQ(embedding.row(0, split_layout(0, 1, 257, 3), 3), "split 0, whole -> term");
  const Whole rows = embedding.local(split_layout(0, 1, 257, 3), 3, 2).local(split_layout(0, 1, 85, 2), 2, 1);
  EXPECT_EQ(rows.operands[0], f32({42, 6}));
  EXPECT_EQ(rows.op.attributes.at("begin"), Attribute(std::int64_t{172 + 43}));
  EXPECT_EQ(rows.op.attributes.at("whole"), Attribute(std::int64_t{257}));
}

TEST(Layouts, OfLossesInParts) {
  const Attributes ignored = {{"ignore_index", std::int64_t{-100}}};
  const Layout classes = split_layout(1, 1, 257, 3), rows = split_layout(0, 1, 4, 3);
  const Whole whole("cross_entropy", {f32({4, 257}), i64({4})}, ignored);
  EXPECT_EQ(whole.row(0, rows, 3), "split 0, split 0 -> term, split 0");
  EXPECT_EQ(whole.row(0, classes, 3), "none");
  const Whole parts("cross_entropy_parts", {f32({4, 257}), i64({4})}, {{"ends", Integers{86, 172, 257}}});
  EXPECT_EQ(parts.row(0, rows, 3), "split 0, split 0 -> split 2");
  EXPECT_EQ(parts.row(0, classes, 3), "split 1, whole -> split 0");
  EXPECT_EQ(parts.row(0, split_layout(1, 1, 257, 2), 2), "none") << "two members do not have three parts";
  const Whole others("cross_entropy_parts", {f32({4, 257}), i64({4})}, {{"ends", Integers{85, 172, 257}}});
  EXPECT_EQ(others.row(0, classes, 3), "none") << "the parts end elsewhere";
  const Whole blocks("cross_entropy_parts", {f32({4, 8}), i64({4})}, {{"ends", Integers{4, 8}}});
  EXPECT_EQ(blocks.row(0, split_layout(1, 2, 4, 2)), "none") << "a member's classes are no range";
  const Whole last = parts.local(classes, 3, 2);
  EXPECT_EQ(last.operands[0], f32({4, 85}));
  EXPECT_EQ(last.op.attributes, (Attributes{{"begin", std::int64_t{172}}, {"ends", Integers{85}}}));
  EXPECT_EQ(last.results[0], f32({1, 2, 4}));
  EXPECT_EQ(parts.local(rows, 3, 2).op.attributes, parts.op.attributes);
  const Whole join("cross_entropy_join", {f32({3, 2, 4}), i64({4})},
                   {{"ignore_index", std::int64_t{-100}}, {"classes", std::int64_t{257}}});
  EXPECT_EQ(join.row(0, split_layout(0, 1, 3, 3), 3), "none");
  EXPECT_EQ(join.row(0, split_layout(2, 1, 4, 3), 3), "split 2, split 0 -> term, split 0");
  const Whole backward("cross_entropy_backward", {f32({}), f32({4, 257}), i64({4}), f32({4})}, ignored);
  EXPECT_EQ(backward.row(1, classes, 3), "whole, split 1, whole, whole -> split 1");
  EXPECT_EQ(backward.row(1, split_layout(0, 1, 4, 2)), "whole, split 0, split 0, split 0 -> split 0");
  const Whole even("cross_entropy_backward", {f32({}), f32({4, 8}), i64({4}), f32({4})}, ignored);
  EXPECT_EQ(even.row(1, split_layout(1, 2, 4, 2)), "none") << "a member's classes are no range";
}

TEST(Layouts, OfResults) {
  const Whole backward("embedding_dense_backward", {f32({4, 3, 6}), i64({4, 3})}, {{"num_weights", std::int64_t{7}}});
  const auto row_of = [&](const Layout& split) { return Whole::text(layout_row_of_result(backward.site(2), 0, split)); };
  EXPECT_EQ(row_of(split_layout(0, 1, 7, 2)), "whole, whole -> split 0");
  EXPECT_EQ(row_of(split_layout(1, 1, 6, 2)), "split 2, whole -> split 1");
  EXPECT_EQ(backward.row(0, split_layout(2, 1, 6, 2)), "split 2, whole -> split 1");
  EXPECT_EQ(backward.row(1, split_layout(0, 1, 4, 2)), "split 0, split 0 -> term");
}

TEST(Layouts, AreNotAskedForPartsOfNothing) {
  const Whole relu("relu", {f32({4, 6})});
  EXPECT_EQ(relu.row(0, split_layout(0, 1, 4, 3), 3), "split 0 -> split 0");
  EXPECT_EQ(relu.row(0, split_layout(0, 2, 2, 3), 3), "none") << "the third member would have nothing";
  EXPECT_EQ(relu.row(0, split_layout(0, 3, 2, 2)), "none") << "3 blocks do not make 4 rows";
  EXPECT_EQ(relu.row(0, split_layout(2, 1, 2, 2)), "none") << "no such dim";
  EXPECT_EQ(relu.row(0, kTerm), "none");
  EXPECT_EQ(Whole("reshape", {f32({4, 0})}, {{"shape", Integers{0, 4}}}).row(0, split_layout(0, 1, 4, 2)), "none");
  EXPECT_EQ(Whole("random_key", {i64({}), i64({})}, {{"op", std::int64_t{1}}}).row(0, split_layout(0, 1, 2, 2)), "none");
}

TEST(Layouts, LinearOpsAreNotThoseThatAddANumber) {
  const TensorType x = f32({4});
  EXPECT_TRUE(is_linear(Whole("add", {x, x}).op));
  EXPECT_FALSE(is_linear(Whole("add", {x}, {{"other", 1.0}}).op));
  EXPECT_FALSE(is_linear(Whole("mul", {x, x}).op));
  EXPECT_TRUE(is_linear(Whole("mul", {x}, {{"other", 2.0}}).op));
  EXPECT_FALSE(is_linear(Whole("to", {x}, {{"dtype", DType::f64}}).op));
}

}  // namespace
}  // namespace penstock
