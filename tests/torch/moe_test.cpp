// SPDX-License-Identifier: Apache-2.0
// The mixture of experts against plain loops: who computes which token, who is dropped, and what is added to the loss.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/text.h"
#include "models/registry.h"
#include "penstock/step.h"
#include "support/seed.h"
#include "torch/run_graph.h"

namespace penstock {
namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;
using Tensors = std::map<std::string, at::Tensor>;

constexpr std::int64_t kBatch = 3, kLength = 12, kWidth = 6, kVocabulary = 9;

struct Sizes {
  std::int64_t experts = 4, groups = 1;
  double capacity_factor = 1.25, balance = 0.01;
};

// One layer, whose attention gives nothing as long as its last projection is zero.
std::unique_ptr<Model> small_model(const Sizes& s) {
  return make_model(builtin_models(), "moe",
                    {.numbers = {{"layers", 1},
                                 {"every", 1},
                                 {"width", kWidth},
                                 {"heads", 2},
                                 {"context", kLength},
                                 {"vocabulary", kVocabulary},
                                 {"experts", double(s.experts)},
                                 {"groups", double(s.groups)},
                                 {"capacity_factor", s.capacity_factor},
                                 {"balance", s.balance}},
                     .words = {},
                     .stages = 1,
                     .compute = DType::f64});
}

Tensors draw_parameters(const Model& model, std::mt19937_64& random) {
  Tensors out;
  for (const ParameterSpec& spec : model.parameters()) {
    out[spec.name] = test::random_tensor(random, spec.type);
    if (spec.name.find("attn.c_proj") != std::string::npos) out[spec.name].zero_();
  }
  return out;
}

at::Tensor run_model(const Model& model, const Tensors& parameters, const at::Tensor& tokens, const at::Tensor& targets, bool training,
                     bool wants_logits) {
  std::vector<std::pair<std::string, TensorType>> inputs;
  std::vector<at::Tensor> values;
  for (const ParameterSpec& spec : model.parameters()) {
    inputs.emplace_back(spec.name, spec.type);
    values.push_back(parameters.at(spec.name));
  }
  for (const char* name : {"tokens", "targets"}) inputs.emplace_back(name, TensorType{DType::i64, tokens.sizes().vec()});
  values.insert(values.end(), {tokens, targets});
  const Graph graph = trace("model", inputs, [&](const std::vector<Tensor>& x) {
    Parameters p;
    for (std::size_t i = 0; i + 2 < x.size(); ++i) p.set(inputs[i].first, x[i]);
    Model::Batch batch;
    batch.tokens = x[x.size() - 2];
    batch.targets = x[x.size() - 1];
    batch.training = training;
    return std::vector<Tensor>{wants_logits ? model.logits(p, batch) : model.loss(p, batch)};
  });
  return test::run_graph(graph, values)[0];
}

// --- plain loops

struct Plain {
  const Tensors& parameters;
  const Sizes& sizes;
  std::int64_t dropped = 0;

  double at(const std::string& name, std::initializer_list<std::int64_t> place) const {
    at::Tensor x = parameters.at(name);
    for (const std::int64_t i : place) x = x[i];
    return x.item<double>();
  }
};

Row norm(const Plain& plain, const std::string& name, const Row& x) {
  double mean = 0, variance = 0;
  for (const double v : x) mean += v / kWidth;
  for (const double v : x) variance += (v - mean) * (v - mean) / kWidth;
  Row out;
  for (std::int64_t i = 0; i < kWidth; ++i)
    out.push_back((x[i] - mean) / std::sqrt(variance + 1e-5) * plain.at(name + ".weight", {i}) + plain.at(name + ".bias", {i}));
  return out;
}

Row through_expert(const Plain& plain, std::int64_t expert, const Row& x) {
  const std::string at = "h.0.mlp.experts.";
  Row out(kWidth);
  for (std::int64_t i = 0; i < kWidth; ++i) out[i] = plain.at(at + "c_proj.bias", {expert, i});
  for (std::int64_t h = 0; h < 4 * kWidth; ++h) {
    double v = plain.at(at + "c_fc.bias", {expert, h});
    for (std::int64_t i = 0; i < kWidth; ++i) v += x[i] * plain.at(at + "c_fc.weight", {expert, i, h});
    v *= 0.5 * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    for (std::int64_t i = 0; i < kWidth; ++i) out[i] += v * plain.at(at + "c_proj.weight", {expert, h, i});
  }
  return out;
}

Row probabilities_of(const Plain& plain, const Row& x) {
  Row out;
  double total = 0;
  for (std::int64_t e = 0; e < plain.sizes.experts; ++e) {
    double v = 0;
    for (std::int64_t i = 0; i < kWidth; ++i) v += x[i] * plain.at("h.0.mlp.gate.weight", {e, i});
    out.push_back(std::exp(v));
    total += out.back();
  }
  for (double& p : out) p /= total;
  return out;
}

// Adds to each row of a group what its experts make of it, as long as they have room; returns the group's part of the loss.
double mix(Plain& plain, std::span<Row> group, std::int64_t capacity) {
  const std::size_t experts = plain.sizes.experts;
  Rows normed, probabilities, gates(group.size(), Row(experts));
  std::vector<std::pair<std::size_t, std::size_t>> choices;
  Row first_choices(experts), mean(experts);
  for (const Row& x : group) {
    normed.push_back(norm(plain, "h.0.ln_2", x));
    Row p = probabilities.emplace_back(probabilities_of(plain, normed.back()));
    const std::size_t first = std::max_element(p.begin(), p.end()) - p.begin();
    p[first] = -1;
    choices.emplace_back(first, std::max_element(p.begin(), p.end()) - p.begin());
    first_choices[first] += 1;
    for (std::size_t e = 0; e < experts; ++e) mean[e] += probabilities.back()[e] / static_cast<double>(group.size());
  }
  std::vector<std::int64_t> used(experts);
  const auto send = [&](std::size_t token, std::size_t expert) {
    const Row& p = probabilities[token];
    if (++used[expert] > capacity)
      ++plain.dropped;
    else
      gates[token][expert] = p[expert] / (p[choices[token].first] + p[choices[token].second]);
  };
  for (std::size_t t = 0; t < group.size(); ++t) send(t, choices[t].first);
  for (std::size_t t = 0; t < group.size(); ++t) send(t, choices[t].second);
  for (std::size_t t = 0; t < group.size(); ++t)
    for (std::size_t e = 0; e < experts; ++e)
      if (gates[t][e] > 0) {
        const Row y = through_expert(plain, static_cast<std::int64_t>(e), normed[t]);
        for (std::int64_t i = 0; i < kWidth; ++i) group[t][i] += gates[t][e] * y[i];
      }
  double penalty = 0;
  for (std::size_t e = 0; e < experts; ++e) penalty += first_choices[e] * mean[e] * static_cast<double>(experts);
  return plain.sizes.balance * penalty;
}

Row logits_of(const Plain& plain, const Row& x) {
  const Row normed = norm(plain, "ln_f", x);
  Row out(kVocabulary);
  for (std::int64_t v = 0; v < kVocabulary; ++v)
    for (std::int64_t i = 0; i < kWidth; ++i) out[v] += normed[i] * plain.at("wte.weight", {v, i});
  return out;
}

// The logits of one sample's tokens and, added to `loss`, the mixture's part of the loss.
Rows forward(Plain& plain, const at::Tensor& tokens, std::int64_t groups, std::int64_t capacity, double& loss) {
  Rows x(kLength, Row(kWidth)), out;
  for (std::int64_t t = 0; t < kLength; ++t)
    for (std::int64_t i = 0; i < kWidth; ++i)
      x[t][i] = plain.at("wte.weight", {tokens[t].item<std::int64_t>(), i}) + plain.at("wpe.weight", {t, i});
  const std::int64_t rows = kLength / groups;
  for (std::int64_t g = 0; g < groups; ++g) loss += mix(plain, std::span(x).subspan(g * rows, rows), capacity);
  for (const Row& row : x) out.push_back(logits_of(plain, row));
  return out;
}

double cross_entropy_of(const Row& logits, std::int64_t target) {
  double total = 0;
  for (const double v : logits) total += std::exp(v);
  return std::log(total) - logits[target];
}

class MixtureOfExperts : public testing::Test {
 protected:
  void TearDown() override {
    if (HasFailure()) ADD_FAILURE() << "seed " << seed;
  }
  at::Tensor draw_tokens() { return test::random_tensor(random, {DType::i64, {kBatch, kLength}}, 0, kVocabulary); }

  // The losses in training and in evaluation, and how many choices were dropped.
  std::int64_t expect_equal(const Sizes& sizes, std::int64_t capacity, bool is_even = false) {
    const auto model = small_model(sizes);
    Tensors parameters = draw_parameters(*model, random);
    if (is_even) parameters["h.0.mlp.gate.weight"].zero_();
    const at::Tensor tokens = draw_tokens(), targets = draw_tokens();
    Plain plain{parameters, sizes};
    double loss = 0, penalty = 0;
    for (std::int64_t b = 0; b < kBatch; ++b) {
      const Rows logits = forward(plain, tokens[b], sizes.groups, capacity, penalty);
      for (std::int64_t t = 0; t < kLength; ++t) loss += cross_entropy_of(logits[t], targets[b][t].item<std::int64_t>());
    }
    EXPECT_NEAR(run_model(*model, parameters, tokens, targets, false, false).item<double>(), loss, 1e-10 * loss);
    EXPECT_NEAR(run_model(*model, parameters, tokens, targets, true, false).item<double>(), loss + penalty, 1e-10 * loss);
    return plain.dropped;
  }

  const std::uint64_t seed = test::drawn_seed();
  std::mt19937_64 random{seed};
};

// Capacities by hand: ceil(factor * 2 * tokens of a group / experts), of 12 tokens in one group, 6 in one of two, 4 in one of three.
TEST_F(MixtureOfExperts, EqualsPlainLoops) {
  EXPECT_EQ(expect_equal({.experts = 4, .groups = 1, .capacity_factor = 2}, 12), 0);
  expect_equal({.experts = 4, .groups = 1, .capacity_factor = 1.25, .balance = 0.5}, 8);
  expect_equal({.experts = 5, .groups = 2, .capacity_factor = 1, .balance = 0.5}, 3);
  expect_equal({.experts = 3, .groups = 3, .capacity_factor = 1.25, .balance = 0}, 4);
  expect_equal({.experts = 2, .groups = 2, .capacity_factor = 8}, 6);
  // Half of the 24 choices of each sample have no room at least.
  EXPECT_GE(expect_equal({.experts = 4, .groups = 1, .capacity_factor = 0.5, .balance = 0.5}, 3), 12 * kBatch);
}

// The lower of experts with equal probabilities are taken: all tokens choose expert 0 first and expert 1 second.
TEST_F(MixtureOfExperts, BreaksTiesByTheLowerExpert) {
  EXPECT_EQ(expect_equal({.experts = 4, .groups = 1, .capacity_factor = 1.25}, 8, true), 2 * (kLength - 8) * kBatch);
}

TEST_F(MixtureOfExperts, GeneratesFromWhatIsBefore) {
  const Sizes sizes{.experts = 4, .groups = 2, .capacity_factor = 0.25};
  const auto model = small_model(sizes);
  const Tensors parameters = draw_parameters(*model, random);
  const at::Tensor tokens = draw_tokens(), targets = draw_tokens(), logits = run_model(*model, parameters, tokens, targets, false, true);
  Plain plain{parameters, sizes};
  double penalty = 0;
  for (std::int64_t b = 0; b < kBatch; ++b) {
    const Rows expected = forward(plain, tokens[b], 1, kLength, penalty);
    for (std::int64_t t = 0; t < kLength; ++t)
      for (std::int64_t v = 0; v < kVocabulary; ++v) EXPECT_NEAR(logits[b][t][v].item<double>(), expected[t][v], 1e-10);
  }
  EXPECT_EQ(plain.dropped, 0);
  at::Tensor others = tokens.clone();
  others.narrow(1, 7, kLength - 7).copy_(targets.narrow(1, 7, kLength - 7));
  const at::Tensor again = run_model(*model, parameters, others, targets, false, true);
  EXPECT_LT(test::relative_difference(again.narrow(1, 0, 7), logits.narrow(1, 0, 7)), 1e-12);
}

}  // namespace
}  // namespace penstock
