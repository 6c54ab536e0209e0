// SPDX-License-Identifier: Apache-2.0
// Chains of ops as one kernel each, on the stand-in, against the same ops one by one.
#include "torch/chain.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/text.h"
#include "ops/builder.h"
#include "ops/definition.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/seed.h"
#include "support/temporary.h"
#include "torch/device.h"
#include "torch/kernel_compiler.h"
#include "torch/op_samples.h"
#include "torch/run_graph.h"

namespace penstock {
namespace {

using Tensors = std::vector<at::Tensor>;

std::shared_ptr<KernelCompiler> compiler() {
  return std::make_shared<KernelCompiler>(open_device("standin"));
}

// A traced graph, and its inputs.
struct Traced {
  Builder builder{"g"};
  Tensors inputs = {};

  Tensor input(std::mt19937_64& random, DType dtype, const Shape& shape, double low = -1, double high = 1) {
    const ValueId value = builder.graph.add_input({dtype, shape}, concat("x", inputs.size()));
    inputs.push_back(test::random_tensor(random, {dtype, shape}, low, high));
    return {&builder, value.value};
  }
  void output(const Tensor& x) { builder.graph.outputs.emplace_back(x.value()); }
};

// How far a number may be from what ops one by one give, in parts of what is given: a step of its dtype, and 1e-6 of the largest.
double worst_excess(const at::Tensor& found, const at::Tensor& expected, double steps) {
  if (found.scalar_type() == at::kBool) return at::equal(found, expected) ? 0 : INFINITY;
  const double step = found.scalar_type() == at::kBFloat16 ? 1.0 / 128 : found.scalar_type() == at::kHalf ? 1.0 / 1024 : 1e-6;
  const at::Tensor x = found.to(at::kDouble), y = expected.to(at::kDouble);
  const at::Tensor allowed = y.abs() * (steps * step) + 1e-6 * std::max(y.abs().max().item<double>(), 1e-6);
  return ((x - y).abs() / allowed).max().item<double>();
}

void expect_alike(const Traced& traced, std::size_t chains, double steps) {
  SCOPED_TRACE(print(traced.builder.graph));
  const c10::Device standin = open_device("standin");
  const auto made = compiler();
  const Tensors expected = test::run_graph(traced.builder.graph, traced.inputs, standin),
                found = test::run_graph(traced.builder.graph, traced.inputs, standin, made);
  EXPECT_EQ(made->texts().size(), chains);
  for (std::size_t o = 0; o < expected.size(); ++o)
    if (steps == 0)
      EXPECT_TRUE(at::equal(found[o], expected[o])) << "output " << o << "\n" << join(made->texts(), "\n");
    else
      EXPECT_LT(worst_excess(found[o], expected[o], steps), 1) << "output " << o << "\n" << join(made->texts(), "\n");
}

TEST(Chains, TextsAreForReaders) {
  std::mt19937_64 random(1);
  Traced bias;
  const Tensor x = bias.input(random, DType::bf16, {4, 6}), b = bias.input(random, DType::bf16, {6});
  bias.output(gelu(x + b, "tanh") * 0.1);
  Traced norm;
  const Tensor y = norm.input(random, DType::f32, {3, 8}), scale = norm.input(random, DType::f32, {8});
  const Tensor centred = y - mean(y, {-1}, true), variance = mean(centred * centred, {-1}, true);
  norm.output(centred * rsqrt(variance + 1e-5) * scale);
  norm.output(variance);
  Traced turned;
  const Tensor z = turned.input(random, DType::f32, {6, 2, 5});
  turned.output(to(gt(transpose(z, 0, 2), 0.5), DType::f16));
  Traced softmax;
  const Tensor logits = softmax.input(random, DType::bf16, {2, 3, 64}), dy = softmax.input(random, DType::bf16, {2, 3, 64});
  const Tensor wide = to(logits, DType::f32), e = exp(wide - amax(wide, {-1}, true)), p = e / sum(e, {-1}, true);
  const Tensor weighted = to(dy, DType::f32) * p;
  softmax.output(to(weighted - p * sum(weighted, {-1}, true), DType::bf16));
  softmax.output(to(p, DType::bf16));
  Traced many;  // of as many tensors as a kernel takes
  Tensor whole;
  for (int i = 0; i < 15; ++i) {
    const Tensor one = many.input(random, DType::bf16, {64});
    whole = i == 0 ? silu(one) : gelu(whole) * one;
    if (i % 2 == 1) many.output(whole);
  }
  for (const auto& [name, traced] : {std::pair("bias", &bias), std::pair("norm", &norm), std::pair("transposed", &turned),
                                     std::pair("softmax", &softmax), std::pair("many", &many)}) {
    const auto made = compiler();
    test::run_graph(traced->builder.graph, traced->inputs, open_device("standin"), made);
    ASSERT_EQ(made->texts().size(), 1u);
    test::expect_golden(concat("chains/", name, ".cu"), made->texts()[0]);
  }
}

// Each op of one result with a formula behind another, which keeps its bits or negates it.
TEST(Chains, EveryFormulaIsAtens) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  std::set<std::string> taken;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Traced traced;
    for (const test::OpSample& sample : test::op_samples()) {
      if (sample.results.size() != 1 || sample.results[0].shape != Shape{6, 5} || find_op(sample.op.name)->collective) continue;
      if (find_op(sample.op.name)->views >= 0 || sample.op.name == "linear") continue;
      std::vector<ValueId> operands;
      for (const test::SampleOperand& operand : sample.operands)
        operands.emplace_back(
            traced
                .input(random, operand.type.dtype == DType::f64 ? dtype : operand.type.dtype, operand.type.shape, operand.low, operand.high)
                .value());
      std::vector<TensorType> types;
      for (const ValueId operand : operands) types.push_back(traced.builder.graph.type(operand));
      if (sample.results[0].dtype == DType::i64 || sample.op.name.starts_with("cross_entropy")) continue;
      const ValueId made = traced.builder.append(sample.op.name, operands, sample.op.attributes)[0];
      const Tensor result(&traced.builder, made.value);
      traced.output(result.dtype() == DType::boolean ? logical_not(result) : neg(result));
      taken.insert(sample.op.name);
    }
    const auto made = compiler();
    const c10::Device standin = open_device("standin");
    const Tensors expected = test::run_graph(traced.builder.graph, traced.inputs, standin),
                  found = test::run_graph(traced.builder.graph, traced.inputs, standin, made);
    const std::string texts = join(made->texts(), "\n");
    for (std::size_t o = 0; o < expected.size(); ++o) {
      const Op& op = *traced.builder.producer(traced.builder.producer(traced.builder.graph.outputs[o])->operands[0]);
      EXPECT_LT(worst_excess(found[o], expected[o], 1), 1) << op.name << " in " << name(dtype);
    }
  }
  EXPECT_GE(taken.size(), 40u);
}

// Ops whose results have no last bits that compilers choose, of operands of all kinds, so that fused they have the same bits.
class RandomOps {
 public:
  explicit RandomOps(std::mt19937_64& random) : random_(random) {
    const Shape shapes[] = {{3, 4, 8}, {2, 12}, {5, 7}, {16}, {2, 3, 2, 4}, {1, 8}};
    shape_ = shapes[below(6)];
    dtype_ = std::array{DType::f32, DType::bf16, DType::f16}[below(3)];
    for (std::size_t count = 2 + below(3); count > 0; --count) values_.push_back(outside());
    for (std::size_t count = 4 + below(14); count > 0; --count) values_.push_back(made());
    for (const std::vector<Tensor>* made : {&values_, &rows_})
      for (const Tensor& value : *made)
        if (coin(0.3)) traced.output(coin(0.7) ? cumsum(value, 0) : value);
    traced.output(values_.back());
  }

  Traced traced;

 private:
  std::size_t below(std::size_t count) { return std::uniform_int_distribution<std::size_t>(0, count - 1)(random_); }
  bool coin(double probability) { return std::bernoulli_distribution(probability)(random_); }

  // An input, or, in memory that later values take, the result of an op that is in no chain.
  Tensor source(const Shape& shape) {
    const Tensor x = traced.input(random_, dtype_, shape);
    return coin(0.8) ? cumsum(x, 0) : x;
  }

  // Broadcast to the shape, with other strides, with gaps, of fewer dims or as it is.
  Tensor outside() {
    Shape shape = shape_;
    switch (below(6)) {
      case 0:
        for (std::int64_t& size : shape)
          if (coin(0.5)) size = 1;
        return source(shape);
      case 1: {
        const int a = static_cast<int>(below(shape.size())), b = static_cast<int>(below(shape.size()));
        std::swap(shape[static_cast<std::size_t>(a)], shape[static_cast<std::size_t>(b)]);
        return transpose(source(shape), a, b);
      }
      case 2: {
        const std::size_t dim = below(shape.size());
        shape[dim] = 2 * shape[dim] + 1;
        return slice(source(shape), static_cast<int>(dim), 1, shape[dim], 2);
      }
      case 3:
        return source({shape.back()});
      default:
        return source(shape);
    }
  }

  // One of the last few as often as any.
  Tensor any() {
    const std::size_t count = coin(0.6) ? std::min<std::size_t>(values_.size(), 3) : values_.size();
    return values_[values_.size() - 1 - below(count)];
  }

  // The largest of each row, or what is made of some of these; libtorch finds the same, whatever its order.
  Tensor row(const Tensor& x) {
    const auto known = [&] { return rows_[below(rows_.size())]; };
    if (rows_.empty() || coin(0.3)) {
      rows_.push_back(amax(x, {static_cast<int>(shape_.size()) - 1}, true));
    } else {
      const Tensor a = known(), b = known();
      rows_.push_back(coin(0.3) ? a + b : coin(0.5) ? maximum(a, b - 0.5) : neg(a) * 0.5);
    }
    return rows_.back();
  }

  Tensor made() {
    const Tensor x = expand(coin(0.1) ? outside() : any(), shape_), y = coin(0.2) ? outside() : any();
    switch (below(13)) {
      case 0:
        return x + y;
      case 1:
        return x - y;
      case 2:
        return x * y;
      case 3:
        return x / (abs(y) + 1);
      case 4:
        return abs(x) - 0.5;
      case 5:
        return where(gt(x, y), x, neg(y));
      case 6:
        return maximum(x * 0.5, y);
      case 7:
        return to(to(x, coin(0.5) ? DType::f32 : DType::bf16), dtype_) + 0.25;
      case 8:
        return reshape(relu(reshape(x, {-1})), shape_);
      case 9:
        return x - row(x);
      case 10:
        return x * row(x);
      case 11:
        return where(logical_and(lt(x, 0.5), logical_not(le(y, x))), x, full(x, {}, 0.125, dtype_));
      default:
        return minimum(add_n({x, x, expand(y, shape_)}), y);
    }
  }

  std::mt19937_64& random_;
  Shape shape_;
  DType dtype_ = DType::f32;
  std::vector<Tensor> values_, rows_;  // those of rows have one element for each
};

std::string chains_of(const Traced& traced) {
  const auto made = compiler();
  test::run_graph(traced.builder.graph, traced.inputs, open_device("standin"), made);
  return join(made->texts(), "\n");
}

TEST(Chains, RandomOpsHaveTheBitsOfSingleOnes) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  std::size_t ops = 0;
  const c10::Device standin = open_device("standin");
  const auto made = compiler();
  const int rounds = test::is_soak() ? 1000 : 16;  // the host's compiler takes most of each
  for (int round = 0; round < rounds; ++round) {
    RandomOps drawn(random);
    const Graph& graph = drawn.traced.builder.graph;
    const Tensors expected = test::run_graph(graph, drawn.traced.inputs, standin),
                  found = test::run_graph(graph, drawn.traced.inputs, standin, made);
    ops += graph.ops.size();
    for (std::size_t o = 0; o < expected.size(); ++o)
      ASSERT_TRUE(at::equal(found[o], expected[o])) << "round " << round << ", output " << o << "\n"
                                                    << print(graph) << chains_of(drawn.traced);
  }
  const std::size_t chains = made->texts().size();
  EXPECT_GE(ops, 8 * chains);
  EXPECT_GE(3 * chains, 2 * static_cast<std::size_t>(rounds));
}

TEST(Chains, NormsByHandAreOneKernel) {
  std::mt19937_64 random(1);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Shape& shape : {Shape{3, 4, 36}, Shape{5, 7}, Shape{1, 2500}}) {
      const auto traced = [&](auto compose) {
        Traced out;
        const Tensor x = out.input(random, dtype, shape, -2, 2), w = out.input(random, dtype, {shape.back()}, 0.5, 2);
        out.output(compose(x, w));
        expect_alike(out, 1, dtype == DType::f32 ? 3 : 6);
      };
      const auto centred = [](Tensor x) { return x - mean(x, {-1}, true); };
      traced([](Tensor x, Tensor) {
        const Tensor e = exp(x - amax(x, {-1}, true));
        return e / sum(e, {-1}, true);
      });
      traced([&](Tensor x, Tensor w) {
        const Tensor c = centred(x);
        return c * rsqrt(mean(c * c, {-1}, true) + 1e-5) * w + 0.1;
      });
      traced([](Tensor x, Tensor w) { return x * rsqrt(mean(x * x, {-1}, true) + 1e-5) * w; });
      traced([&](Tensor x, Tensor) { return mean(pow(centred(x), 2), {-1}, false); });
      traced([](Tensor x, Tensor w) {
        const Tensor top = amax(x * w, {-1}, true);
        return log(sum(exp(x * w - top), {-1}, true)) + top;
      });
    }
}

// A row is what the last two dims have, and the rows' values are of fewer dims.
TEST(Chains, RowsOfSeveralDims) {
  std::mt19937_64 random(1);
  Traced traced;
  const Tensor x = traced.input(random, DType::f32, {3, 4, 5}), y = traced.input(random, DType::f32, {3});
  const Tensor sums = sum(x * x, {1, 2}, false) + y;
  traced.output(x / reshape(sums + 5, {3, 1, 1}));
  traced.output(sums);
  expect_alike(traced, 1, 3);
}

// The last value takes the place of the first, which is dead then, but which other threads read in another order.
TEST(Chains, WhatOthersReadIsNotWrittenOver) {
  std::mt19937_64 random(1);
  for (const bool turned : {false, true}) {
    Traced traced;
    const Tensor x = traced.input(random, DType::f32, {64, 64}), first = mm(x, x), second = mm(x, first);
    const Tensor sum = (turned ? transpose(first, 0, 1) : first) + second, twice = sum * 2;
    traced.output(mm(sum, twice));
    SCOPED_TRACE(print(traced.builder.graph));
    const c10::Device standin = open_device("standin");
    const Tensors expected = test::run_graph(traced.builder.graph, traced.inputs, standin),
                  found = test::run_graph(traced.builder.graph, traced.inputs, standin, compiler());
    EXPECT_TRUE(at::equal(found[0], expected[0]));
  }
}

// The memory plan puts what follows a sum over what was summed, so that the chain is cut behind the sum. What is left has no rows.
TEST(Chains, WhatFollowsASumThatIsCutOffIsWritten) {
  std::mt19937_64 random(3);
  Traced traced;
  const Tensor x = traced.input(random, DType::f32, {4, 8}), w = traced.input(random, DType::f32, {8, 16}),
               k = traced.input(random, DType::f32, {1, 5});
  const Tensor summed = sum(matmul(x, w), {-1}, true), low = exp(summed * 0.1), mixed = low - summed;
  for (const Tensor& row : {summed, low, mixed}) traced.output(matmul(row, k));
  expect_alike(traced, 1, 1);
}

TEST(Chains, KernelsAreKeptAndDamagedOnesMadeAnew) {
  const test::TemporaryFolder temporary;
  const std::string folder = temporary.file("kept");
  setenv("PENSTOCK_CACHE", folder.c_str(), 1);
  std::mt19937_64 random(1);
  Traced traced;
  const Tensor x = traced.input(random, DType::f32, {7});
  traced.output(exp(x * 2));
  const auto files = [&] {
    std::vector<std::filesystem::path> out;
    for (const auto& file : std::filesystem::directory_iterator(folder)) out.push_back(file.path());
    return out;
  };
  expect_alike(traced, 1, 1);
  ASSERT_EQ(files().size(), 1u);
  const std::string path = files()[0].string(), kept = read_file(path);
  const auto written = [&] { return std::filesystem::last_write_time(path); };
  const auto before = written();
  expect_alike(traced, 1, 1);
  EXPECT_EQ(written(), before);
  for (const std::size_t at : {std::size_t{3}, kept.size() / 2, kept.size() - 1}) {
    std::string damaged = kept;
    damaged[at] ^= 1;
    write_file(path, damaged);
    expect_alike(traced, 1, 1);
    EXPECT_EQ(read_file(path).size(), kept.size());
  }
  write_file(path, kept.substr(0, kept.size() / 3));
  expect_alike(traced, 1, 1);
  std::filesystem::permissions(folder, std::filesystem::perms::all);
  EXPECT_EQ(test::message_of([] { compiler(); }),
            concat("cannot keep kernels in ", folder,
                   "\n  other users may write to it\n  hint: PENSTOCK_CACHE names a folder of the user's "
                   "that can be made and written to by nobody else: chmod go-w"));
  setenv("PENSTOCK_CACHE", "off", 1);
  expect_alike(traced, 1, 1);
  EXPECT_FALSE(std::filesystem::exists("off"));
  unsetenv("PENSTOCK_CACHE");
}

TEST(Chains, WithoutACompilerOpsStaySingle) {
  setenv("PENSTOCK_STANDIN_CXX", "/nowhere/c++", 1);
  std::mt19937_64 random(1);
  Traced traced;
  traced.output(exp(traced.input(random, DType::f32, {7}) * 2));
  testing::internal::CaptureStderr();
  expect_alike(traced, 0, 0);
  expect_alike(traced, 0, 0);
  const std::string said = testing::internal::GetCapturedStderr();
  unsetenv("PENSTOCK_STANDIN_CXX");
  const std::size_t first = said.find("run.fuse: chains of ops stay single ops: the compiler of kernels does not run: ");
  EXPECT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("run.fuse", first + 1), std::string::npos) << said;
}

}  // namespace
}  // namespace penstock
