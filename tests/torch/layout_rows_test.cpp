// SPDX-License-Identifier: Apache-2.0
// Every row that an op's layout rule gives, against the op on whole tensors: what the members compute of their parts is what the row says.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "base/text.h"
#include "ops/definition.h"
#include "ops/layouts.h"
#include "support/errors.h"
#include "support/seed.h"
#include "torch/op_samples.h"
#include "torch/parts.h"
#include "torch/run_graph.h"

namespace penstock {
namespace {

using test::cut;
using test::joined;
using test::OpSample;
using Tensors = std::vector<at::Tensor>;
using Types = std::span<const TensorType>;

// An op with the types of its operands and results.
struct TypedOp {
  Op op;
  std::vector<TensorType> operands, results;

  LayoutSite site(std::int64_t members) const { return {op, operands, results, members}; }
};

TypedOp typed(const OpSample& sample) {
  return {sample.op, sample.operand_types(), sample.results};
}

OpSample in_f32(OpSample sample) {
  for (auto& operand : sample.operands)
    if (operand.type.dtype == DType::f64) operand.type.dtype = DType::f32;
  sample.results = find_op(sample.op.name)->infer(sample.op, sample.operand_types());
  return sample;
}

std::string text_of_row(const LayoutRow& row) {
  const auto text = [](const Layout& layout) { return text_of(layout); };
  return concat("(", join(row.operands, ", ", text), ") -> (", join(row.results, ", ", text), ")");
}

Tensors draw(const OpSample& sample, std::mt19937_64& random) {
  Tensors out;
  for (const auto& operand : sample.operands) out.push_back(test::random_tensor(random, operand.type, operand.low, operand.high));
  return out;
}

// All splits of a tensor among so many members.
std::vector<Layout> splits_of(const TensorType& type, std::int64_t members) {
  std::vector<Layout> out;
  for (std::size_t d = 0; d < type.shape.size(); ++d)
    for (const std::int64_t outer : {1, 2, 3})
      for (std::int64_t units = 2; units <= type.shape[d]; ++units)
        if (type.shape[d] % outer == 0 && type.shape[d] / outer % units == 0) {
          const Layout split = split_layout(static_cast<std::int64_t>(d), outer, units, members);
          if (std::find(out.begin(), out.end(), split) == out.end()) out.push_back(split);
        }
  for (std::size_t d = 0; d < type.shape.size(); ++d)
    if (type.shape[d] > 0 && type.shape[d] % (2 * members) == 0) out.push_back(mirrored_layout(static_cast<std::int64_t>(d), members));
  return out;
}

// A tensor in a block that begins `ahead` elements before it and is cut into ranges that reach just to its end, or one element beyond.
std::vector<Layout> flats_of(const TensorType& type, std::int64_t members) {
  std::vector<Layout> out;
  for (const std::int64_t ahead : {0, 1, 5})
    for (const std::int64_t behind : {0, 1})
      out.push_back({Layout::Kind::flat, -1, ahead, (ahead + type.elements() + behind + members - 1) / members});
  return out;
}

std::vector<LayoutRow> listed_rows(const TypedOp& op, std::int64_t members) {
  std::vector<LayoutRow> out;
  const LayoutSite site = op.site(members);
  const auto add = [&](const std::optional<LayoutRow>& row) {
    if (row && std::find(out.begin(), out.end(), *row) == out.end()) out.push_back(*row);
  };
  for (std::size_t i = 0; i < op.operands.size(); ++i)
    for (const Layout& split : splits_of(op.operands[i], members)) {
      const auto row = layout_row(site, i, split);
      if (row) {
        EXPECT_EQ(row->operands.at(i), split) << op.op.name << ", operand " << i;
      }
      add(row);
    }
  for (std::size_t i = 0; i < op.results.size(); ++i)
    for (const Layout& split : splits_of(op.results[i], members)) {
      const auto row = layout_row_of_result(site, i, split);
      if (row) {
        EXPECT_EQ(row->results.at(i), split) << op.op.name << ", result " << i;
      }
      add(row);
    }
  return out;
}

Tensors run(const TypedOp& op, const Tensors& operands) {
  Graph graph;
  graph.name = "g";
  Op made = op.op;
  made.operands.clear();
  made.results.clear();
  for (std::size_t i = 0; i < op.operands.size(); ++i) made.operands.push_back(graph.add_input(op.operands[i], concat("x", i)));
  for (const TensorType& type : op.results) made.results.push_back(graph.add_value(type));
  graph.outputs = made.results;
  graph.ops.push_back(std::move(made));
  return test::run_graph(graph, operands);
}

// A member's op, with the types that it infers, and with the whole op's operands that it has.
struct MemberOp {
  TypedOp op;
  Tensors operands;
};
MemberOp member_of(const TypedOp& whole, const LayoutRow& row, std::int64_t members, std::int64_t member, const Tensors& operands) {
  MemberOp out{{local_op(whole.site(members), row, member), {}, {}}, {}};
  std::vector<ValueId> kept;
  for (const ValueId value : out.op.op.operands) {
    const auto i =
        static_cast<std::size_t>(std::find(whole.op.operands.begin(), whole.op.operands.end(), value) - whole.op.operands.begin());
    out.op.operands.push_back(local_type(whole.operands[i], row.operands[i], members, member));
    out.operands.push_back(cut(operands[i], row.operands[i], members, member));
    kept.emplace_back(static_cast<std::int64_t>(kept.size()));
  }
  out.op.op.operands = kept;
  out.op.results = find_op(out.op.op.name)->infer(out.op.op, out.op.operands);
  return out;
}

using RunOp = std::function<Tensors(const TypedOp&, const Tensors&)>;

// The op's results, computed by members in this row.
Tensors run_split(const TypedOp& whole, const LayoutRow& row, std::int64_t members, const Tensors& operands, const RunOp& run_one) {
  std::vector<Tensors> parts(whole.results.size());
  for (std::int64_t m = 0; m < members; ++m) {
    const MemberOp member = member_of(whole, row, members, m, operands);
    for (std::size_t r = 0; r < parts.size(); ++r)
      EXPECT_EQ(member.op.results.at(r), local_type(whole.results[r], row.results[r], members, m)) << "result " << r << " of member " << m;
    if (testing::Test::HasFailure()) return {};
    const Tensors results = run_one(member.op, member.operands);
    for (std::size_t r = 0; r < parts.size(); ++r) parts[r].push_back(results[r]);
  }
  Tensors out;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    out.push_back(joined(parts[r], row.results[r]));
    for (const at::Tensor& x : parts[r])
      if (row.results[r].is_whole()) {
        EXPECT_TRUE(x.equal(parts[r][0])) << "result " << r << " differs between members";
      }
  }
  return out;
}

void expect_equal(const Tensors& found, const Tensors& expected, double tolerance = 1e-12) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t r = 0; r < found.size(); ++r)
    EXPECT_LT(test::relative_difference(found[r], expected[r], 1), tolerance) << "result " << r;
}

bool has_kernel(const Op& op) {
  return !find_op(op.name)->collective;
}

class LayoutRows : public testing::Test {
 protected:
  void TearDown() override {
    if (HasFailure()) ADD_FAILURE() << "seed " << seed;
  }
  const std::uint64_t seed = test::drawn_seed();
  std::mt19937_64 random{seed};
};

TEST_F(LayoutRows, HaveASampleOfEveryOp) {
  std::set<std::string_view> known = {"accumulate"}, all;
  for (const OpSample& sample : test::op_samples()) known.insert(find_op(sample.op.name)->name);
  for (const std::string_view name : op_names()) all.insert(name);
  EXPECT_EQ(known, all);
}

// Ops without operands have none, nor the loop, whose layouts are its body's, nor what lowering makes of lookups once layouts are decided.
TEST_F(LayoutRows, AreThereForAllOpsButFive) {
  std::set<std::string> without = {"accumulate"}, rowless = {"accumulate", "arange", "embedding_patched", "full", "random_key"};
  std::map<std::string, bool> has;
  for (const OpSample& sample : test::op_samples()) has[sample.op.name] |= !listed_rows(typed(sample), 2).empty();
  for (const auto& [name, any] : has)
    if (!any) without.insert(name);
  EXPECT_EQ(without, rowless);
}

TEST_F(LayoutRows, GiveWhatTheWholeOpGives) {
  std::size_t rows = 0;
  for (const OpSample& sample : test::op_samples()) {
    const TypedOp op = typed(sample);
    const Tensors operands = draw(sample, random);
    const Tensors expected = has_kernel(op.op) ? run(op, operands) : Tensors{};
    for (const std::int64_t members : {2, 3})
      for (const LayoutRow& row : listed_rows(op, members)) {
        SCOPED_TRACE(concat(sample.text(), "\n", text_of_row(row), " among ", members));
        ++rows;
        if (!has_kernel(op.op)) {
          for (std::int64_t m = 0; m < members; ++m)
            EXPECT_EQ(member_of(op, row, members, m, operands).op.results[0], local_type(op.results[0], row.results[0], members, m));
          continue;
        }
        expect_equal(run_split(op, row, members, operands, run), expected);
        if (HasFailure()) return;
      }
  }
  std::printf("%zu rows hold\n", rows);
}

// The kernels of f32 are others, and choose by the shapes that they see.
TEST_F(LayoutRows, GiveWhatTheWholeOpGivesInF32) {
  for (const OpSample& wide : test::op_samples()) {
    const OpSample sample = in_f32(wide);
    const TypedOp op = typed(sample);
    if (!has_kernel(op.op)) continue;
    const Tensors operands = draw(sample, random), expected = run(op, operands);
    for (const LayoutRow& row : listed_rows(op, 3)) {
      SCOPED_TRACE(concat(sample.text(), "\n", text_of_row(row)));
      // What only moves or draws has the same bits.
      const bool exact = op.op.name == "dropout" || op.op.name == "embedding" || find_op(op.op.name)->views >= 0;
      expect_equal(run_split(op, row, 3, operands, run), expected, exact ? 1e-30 : 1e-4);
      if (HasFailure()) return;
    }
  }
}

// Tables and indices that do not lie densely go other ways through the kernels; so do indices that no table has.
TEST_F(LayoutRows, OfEmbeddingsNeedNoDenseTables) {
  const auto graph = [](const std::string& op, const std::string& attributes) {
    return concat("penstock graph 1\ngraph @g(%w: f32[6,3], %i: i64[4,5]) -> (f32[", op == "embedding" ? "5,4,6" : "5,6",
                  "]) {\n%0: f32[3,6] = transpose(%w) {dim0=0, dim1=1}\n%1: i64[5,4] = transpose(%i) {dim0=0, dim1=1}\n%2: f32[",
                  op == "embedding" ? "5,4,6" : "5,6", "] = ", op, "(%0, %1) ", attributes, "\nreturn %2\n}");
  };
  const at::Tensor weight = test::random_tensor(random, {DType::f32, {6, 3}}), zeros = at::zeros_like(weight);
  const at::Tensor indices = test::random_tensor(random, {DType::i64, {4, 5}}, 0, 7);
  for (const std::string op : {"embedding", "embedding_bag"}) {
    const at::Tensor here = test::run_graph(graph(op, "{begin=2, whole=7}"), {weight, indices})[0];
    const at::Tensor table = at::cat({zeros.narrow(1, 0, 2), weight, zeros.narrow(1, 0, 2)}, 1).t();
    const at::Tensor rows = table.index_select(0, indices.t().reshape({-1})).view({5, 4, 6});
    EXPECT_LT(test::relative_difference(here, op == "embedding" ? rows : rows.sum(1)), 1e-6) << op;
  }
  const at::Tensor outside = indices.mul(0).add(7);
  EXPECT_EQ(test::message_of([&] { test::run_graph(graph("embedding", "{begin=2, whole=7}"), {weight, outside}); }),
            "embedding: index 7 is outside its 7 rows\n  hint: is a token outside the model's vocabulary?");
}

bool cuts_alike(const LayoutRow& a, const LayoutRow& b) {
  const auto equal = [](const Layout& x, const Layout& y) { return x.kind == y.kind && x.dim == y.dim; };
  return std::ranges::equal(a.operands, b.operands, equal) && std::ranges::equal(a.results, b.results, equal);
}

// Ranges of the elements, wherever they cut the tensor; some members have none. What lies flat is joined flat.
TEST_F(LayoutRows, OfFlatOperandsGiveWhatTheWholeOpGives) {
  std::set<std::string> flat;
  for (const OpSample& sample : test::op_samples()) {
    const TypedOp op = typed(sample);
    if (!has_kernel(op.op)) continue;
    const Tensors operands = draw(sample, random);
    Tensors expected = run(op, operands);
    for (const std::int64_t members : {2, 3})
      for (std::size_t i = 0; i < op.operands.size(); ++i)
        for (const Layout& layout : flats_of(op.operands[i], members)) {
          const auto row = layout_row(op.site(members), i, layout);
          if (!row) continue;
          SCOPED_TRACE(concat(sample.text(), "\n", text_of_row(*row), " among ", members));
          flat.insert(op.op.name);
          for (std::size_t r = 0; r < expected.size(); ++r)
            if (row->results[r].is_flat()) expected[r] = expected[r].flatten();
          expect_equal(run_split(op, *row, members, operands, run), expected);
          if (HasFailure()) return;
        }
  }
  for (const char* name : {"adamw", "sgd", "add_n", "mul", "sum"}) EXPECT_TRUE(flat.contains(name)) << name;
  for (const char* name : {"dropout", "reshape", "mean", "mm"}) EXPECT_FALSE(flat.contains(name)) << name;
}

// A mesh of two axes: the members of the second divide what those of the first have, along the same dims and in any other row.
TEST_F(LayoutRows, HoldForWhatAnAxisBeforeHasCut) {
  for (const OpSample& sample : test::op_samples()) {
    const TypedOp op = typed(sample);
    if (!has_kernel(op.op)) continue;
    const Tensors operands = draw(sample, random), expected = run(op, operands);
    for (const LayoutRow& row : listed_rows(op, 2)) {
      SCOPED_TRACE(concat(sample.text(), "\n", text_of_row(row)));
      const auto run_by_three = [&](bool alike) {
        return [&, alike](const TypedOp& part, const Tensors& parts) {
          std::vector<LayoutRow> rows = listed_rows(part, 3);
          if (alike) std::erase_if(rows, [&](const LayoutRow& second) { return !cuts_alike(row, second); });
          if (rows.empty()) return run(part, parts);
          return run_split(part, rows[random() % rows.size()], 3, parts, run);
        };
      };
      for (const bool alike : {false, true}) expect_equal(run_split(op, row, 2, operands, run_by_three(alike)), expected);
      if (HasFailure()) return;
    }
  }
}

TEST_F(LayoutRows, OfLinearOpsKeepTerms) {
  std::set<std::string> linear;
  for (const OpSample& sample : test::op_samples()) {
    const TypedOp op = typed(sample);
    if (!is_linear(op.op) || !has_kernel(op.op)) continue;
    SCOPED_TRACE(sample.text());
    if (sample.operands[0].type.dtype != DType::f64) continue;
    linear.insert(op.op.name);
    const Tensors first = draw(sample, random), second = draw(sample, random);
    Tensors both, expected;
    for (std::size_t i = 0; i < first.size(); ++i) both.push_back(first[i] + second[i]);
    const Tensors x = run(op, first), y = run(op, second);
    for (std::size_t r = 0; r < x.size(); ++r) expected.push_back(x[r] + y[r]);
    expect_equal(run(op, both), expected);
    if (HasFailure()) return;
  }
  const std::set<std::string> expected = {"add",
                                          "add_n",
                                          "cat",
                                          "constrain",
                                          "cumsum",
                                          "detach",
                                          "div",
                                          "expand",
                                          "mean",
                                          "mul",
                                          "neg",
                                          "permute",
                                          "reshape",
                                          "select",
                                          "select_backward",
                                          "slice",
                                          "slice_backward",
                                          "split",
                                          "squeeze",
                                          "stage_boundary",
                                          "sub",
                                          "sum",
                                          "transpose",
                                          "unsqueeze",
                                          "upsample_bicubic2d",
                                          "upsample_bicubic2d_backward",
                                          "upsample_bilinear2d",
                                          "upsample_bilinear2d_backward",
                                          "upsample_linear1d",
                                          "upsample_linear1d_backward",
                                          "upsample_nearest1d",
                                          "upsample_nearest1d_backward",
                                          "upsample_nearest2d",
                                          "upsample_nearest2d_backward",
                                          "upsample_nearest3d",
                                          "upsample_nearest3d_backward",
                                          "upsample_trilinear3d",
                                          "upsample_trilinear3d_backward"};
  EXPECT_EQ(linear, expected);
}

// --- rows that hold but that no rule gives

// Whole, and the plain splits of every dim.
std::vector<Layout> plain_layouts(const TensorType& type) {
  std::vector<Layout> out = {kWhole};
  for (std::size_t d = 0; d < type.shape.size(); ++d)
    if (type.shape[d] > 1) out.push_back(split_layout(static_cast<std::int64_t>(d), 1, type.shape[d], 2));
  return out;
}

bool is_equal(const at::Tensor& a, const at::Tensor& b) {
  return test::relative_difference(a, b, 1) < 1e-9;
}

// How result `r` lies, given what both members have of it; the first of whole, splits and term that fits.
std::optional<Layout> found_layout(const TypedOp& whole, std::size_t r, const std::vector<Tensors>& members, const at::Tensor& expected) {
  std::vector<Layout> layouts = plain_layouts(whole.results[r]);
  layouts.push_back(kTerm);
  for (const Layout& layout : layouts) {
    bool fits = true;
    for (std::int64_t m = 0; m < 2; ++m)
      fits = fits && members[static_cast<std::size_t>(m)][r].sizes() == at::IntArrayRef(local_type(whole.results[r], layout, 2, m).shape);
    if (fits && layout.is_whole()) fits = is_equal(members[1][r], expected);
    if (fits && is_equal(joined({members[0][r], members[1][r]}, layout), expected)) return layout;
  }
  return std::nullopt;
}

// The row with these operands, where result 0 is said to lie so, if it holds.
std::optional<LayoutRow> row_that_holds(const TypedOp& op, std::vector<Layout> operands, const Layout& result, const Tensors& inputs,
                                        const Tensors& expected) {
  LayoutRow row{std::move(operands), std::vector<Layout>(op.results.size(), kWhole)};
  row.results[0] = result;
  std::vector<Tensors> members;
  try {
    for (std::int64_t m = 0; m < 2; ++m) {
      const MemberOp member = member_of(op, row, 2, m, inputs);
      if (member.op.results.size() != op.results.size()) return std::nullopt;
      if (member.op.results[0] != local_type(op.results[0], result, 2, m)) return std::nullopt;
      members.push_back(run(member.op, member.operands));
    }
  } catch (const std::exception&) {
    return std::nullopt;  // these parts do not fit together
  }
  for (std::size_t r = 0; r < row.results.size(); ++r) {
    const std::optional<Layout> layout = found_layout(op, r, members, expected[r]);
    if (!layout || (r == 0 && *layout != result)) return std::nullopt;
    row.results[r] = *layout;
  }
  return row;
}

// Every way to give each operand one of its plain layouts; operands of one type get the same where there are too many ways.
std::vector<std::vector<Layout>> assignments(const TypedOp& op) {
  const bool alike = op.operands.size() > 3;
  std::vector<std::vector<Layout>> out = {{}};
  for (std::size_t i = 0; i < op.operands.size(); ++i) {
    const auto first = std::find(op.operands.begin(), op.operands.end(), op.operands[i]) - op.operands.begin();
    std::vector<std::vector<Layout>> longer;
    for (const std::vector<Layout>& before : out)
      for (const Layout& layout : plain_layouts(op.operands[i]))
        if (!alike || first == static_cast<std::ptrdiff_t>(i) || before[static_cast<std::size_t>(first)] == layout) {
          longer.push_back(before);
          longer.back().push_back(layout);
        }
    out = std::move(longer);
  }
  return out;
}

// Not a failure: what is left out on purpose, and what nobody has thought of.
TEST_F(LayoutRows, ThatHoldButAreNotListedAreReported) {
  std::set<std::string> seen;
  for (const OpSample& sample : test::op_samples()) {
    const TypedOp op = typed(sample);
    // Its kernel trusts the indices, which name places outside of a smaller image.
    if (!has_kernel(op.op) || op.op.name == "max_pool2d_with_indices_backward") continue;
    const std::vector<LayoutRow> listed = listed_rows(op, 2);
    const Tensors inputs = draw(sample, random), expected = run(op, inputs);
    std::vector<Layout> results = plain_layouts(op.results[0]);
    results.push_back(kTerm);
    for (const std::vector<Layout>& operands : assignments(op))
      for (const Layout& result : results) {
        const auto row = row_that_holds(op, operands, result, inputs, expected);
        const bool trivial = row && std::all_of(row->operands.begin(), row->operands.end(), [](const Layout& l) { return l.is_whole(); }) &&
                             std::all_of(row->results.begin(), row->results.end(), [](const Layout& l) { return l.is_whole(); });
        if (!row || trivial || std::find(listed.begin(), listed.end(), *row) != listed.end()) continue;
        const std::string text = concat(sample.text(), ": ", text_of_row(*row));
        if (seen.insert(text).second) std::printf("not listed: %s\n", text.c_str());
      }
  }
}

}  // namespace
}  // namespace penstock
