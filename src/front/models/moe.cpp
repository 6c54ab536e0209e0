// SPDX-License-Identifier: Apache-2.0
// A GPT whose every second MLP is a mixture of experts: each token is computed by two of several MLPs, by one-hot products with tensors of
// static shapes (GShard, Lepikhin et al. 2020, 2006.16668, algorithm 1).
//
// The tokens of each sample are cut into `groups` equal groups, and a group routes by itself: of its t tokens an expert takes at most
// ceil(capacity_factor * 2 * t / experts), first the first choices of all tokens in their order, then the second choices; a token over that
// is not computed by the expert, and the residual passes it on. What is added to the summed loss is, for each group and mixture,
//
//   balance * t * experts * sum over experts e of (share of tokens whose first choice is e) * (mean probability of e)
//
// (Fedus et al. 2021), which is balance for each token where the experts are chosen equally, whether or not its target counts. So a
// sample's loss depends on no other sample, and not on how a batch is cut into micro-batches or over devices; but as an expert's second
// choices come after all first choices, whether a token is dropped depends on later tokens of its group. Where an expert has room for all
// of a group none is dropped, and each expert computes all tokens: that is as many rows as it has places, and no token depends on another.
// Evaluation leaves the balance out; generation drops nothing, so that what comes next depends on what was before alone.
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "models/gpt.h"
#include "models/layers.h"
#include "models/registry.h"
#include "penstock/error.h"

namespace penstock {

namespace {

struct MixtureConfig {
  std::int64_t experts, every, groups;
  double capacity_factor, balance;
};

MixtureConfig read_mixture(const ModelOptions& options) {
  const MixtureConfig m{options.size("experts"), options.size("every"), options.size("groups"), options.number("capacity_factor"),
                        options.number("balance")};
  if (m.experts < 2) throw Error("a mixture of 1 expert", {"each token goes to two experts"}, "use 2 experts or more, or model \"gpt\"");
  if (!(m.capacity_factor > 0))
    throw Error(concat("capacity_factor is ", number(m.capacity_factor)), {"1.0 is room for all tokens if they spread equally"},
                "give a number above 0");
  if (!(m.balance >= 0)) throw Error(concat("balance is ", number(m.balance)), {}, "give a number from 0 on");
  return m;
}

// The first place along the last dim at which `x` is largest, as a bool of x's shape.
Tensor first_largest(Tensor x) {
  const Tensor largest = eq(x, amax(x, {-1}, true));
  return logical_and(largest, eq(cumsum(largest, -1), 1));
}

// The choice of each token: all [..., tokens, experts].
struct Choices {
  Tensor first, second;  // bool
  Tensor gates;          // the share of each of the two experts, 0 for the others
};

Choices choose(Tensor probabilities) {
  const Tensor zero = full(probabilities, {}, 0, probabilities.dtype());
  const Tensor first = first_largest(probabilities);
  const Tensor second = first_largest(where(first, zero - 1, probabilities));
  const Tensor chosen = where(logical_or(first, second), probabilities, zero);
  return {first, second, chosen / sum(chosen, {-1}, true)};
}

// A token's place at an expert, i64 from 1 on, which may be beyond its capacity; 0 where it does not go. The choices are of groups,
// [batch, groups, tokens, experts].
Tensor places_of(const Choices& choices) {
  const auto [first, second, gates] = choices;
  return cumsum(first, 2) * to(first, DType::i64) + (cumsum(second, 2) + sum(first, {2}, true)) * to(second, DType::i64);
}

// `rows`: tokens of a group.
Tensor penalty_of(const MixtureConfig& m, Tensor first, Tensor probabilities, std::int64_t rows) {
  const auto of_groups = [&](Tensor x) { return sum(reshape(x, {x.size(0), -1, rows, m.experts}), {2}); };
  const Tensor chosen = to(of_groups(first), probabilities.dtype());
  return sum(chosen * of_groups(probabilities)) * (m.balance * static_cast<double>(m.experts) / static_cast<double>(rows));
}

class Mixture : public FeedForward {
 public:
  Mixture(ParameterList& specs, const std::string& path, const MixtureConfig& m, const GptConfig& c)
      : m_(m),
        gelu_(c.gelu),
        master_(c.master),
        gate_(specs, path + ".gate", {c.width, m.experts, {{"embed"}, {}}, false}, c.deviation),
        c_fc_(specs, path + ".experts.c_fc", {m.experts, c.width, 4 * c.width, {"experts"}, {{"embed"}, {"mlp"}}}, c.deviation),
        c_proj_(specs, path + ".experts.c_proj", {m.experts, 4 * c.width, c.width, {"experts"}, {{"mlp"}, {"embed"}}}, c.last_deviation()) {
  }

  Fed operator()(const Parameters& p, Tensor x, Purpose purpose) const override {
    const std::int64_t length = x.size(1), groups = purpose == Purpose::generation ? 1 : m_.groups;
    if (length % groups != 0)
      throw Error(concat(length, " tokens are not divisible by ", groups, " groups"), {"each group of a sample's tokens routes by itself"},
                  "use a number of groups that divides the context");
    const std::int64_t rows = length / groups, room = purpose == Purpose::generation ? rows : room_for(rows);
    const bool drops = room < rows;
    const Tensor tokens = drops ? reshape(x, {x.size(0), groups, rows, x.size(2)}) : x;
    const Tensor probabilities = softmax(gate_(p, to(tokens, master_)), -1);
    const Choices choices = choose(probabilities);
    const Tensor y = drops ? reshape(by_places(p, tokens, choices, room), x.shape()) : by_all(p, x, choices.gates);
    if (purpose != Purpose::training || m_.balance == 0) return {y, {}};
    return {y, penalty_of(m_, choices.first, probabilities, rows)};
  }

  bool is_by_token() const override { return false; }

 private:
  // No expert gets a token twice, so all have room for the tokens that there are.
  std::int64_t room_for(std::int64_t tokens) const {
    const double mean = 2 * static_cast<double>(tokens) / static_cast<double>(m_.experts);
    return static_cast<std::int64_t>(std::min(std::ceil(m_.capacity_factor * mean), static_cast<double>(tokens)));
  }

  // Each expert has `room` places for the tokens of a group.
  Tensor by_places(const Parameters& p, Tensor tokens, const Choices& choices, std::int64_t room) const {
    const std::int64_t batch = tokens.size(0), groups = tokens.size(1), rows = tokens.size(2), width = tokens.size(3);
    const std::int64_t places = m_.experts * room;
    const Tensor sent = eq(unsqueeze(places_of(choices), -1), arange(tokens, room, DType::i64) + 1);
    const Tensor dispatch = to(sent, tokens.dtype());
    const Tensor combine = dispatch * unsqueeze(to(choices.gates, tokens.dtype()), -1);
    const Shape one_hot = {batch, groups, rows, places};
    const Tensor received =
        reshape(matmul(transpose(reshape(dispatch, one_hot), -2, -1), tokens), {batch, groups, m_.experts, room, width});
    const Tensor answers =
        permute(answered(p, permute(received, {2, 0, 1, 3, 4}), {"experts", "", "routed", "", "embed"}), {1, 2, 0, 3, 4});
    return matmul(reshape(combine, one_hot), reshape(answers, {batch, groups, places, width}));
  }

  // Each expert computes all tokens, and counts where it is chosen.
  Tensor by_all(const Parameters& p, Tensor x, Tensor gates) const {
    const Tensor sent = expand(unsqueeze(x, 0), {m_.experts, x.size(0), x.size(1), x.size(2)});
    const Tensor answers = answered(p, sent, {"experts", "", "routed", "embed"});
    return sum(answers * unsqueeze(permute(to(gates, x.dtype()), {2, 0, 1}), -1), {0});
  }

  // From [experts, ..., width] to the same. The experts are in front where they lie split; "routed" are the tokens, or groups of these.
  Tensor answered(const Parameters& p, Tensor received, const std::vector<std::string>& names) const {
    const Tensor x = constrain(received, names);
    const Tensor hidden = gelu(c_fc_(p, reshape(x, {m_.experts, -1, x.size(-1)})), gelu_);
    return constrain(reshape(c_proj_(p, hidden), x.shape()), names);
  }

  MixtureConfig m_;
  std::string gelu_;
  DType master_;
  nn::Linear gate_;
  nn::BatchedLinear c_fc_, c_proj_;
};

std::map<std::string, double> mixture_numbers() {
  std::map<std::string, double> numbers = gpt_numbers();
  numbers.insert({{"experts", 4}, {"every", 2}, {"groups", 1}, {"capacity_factor", 1.25}, {"balance", 0.01}});
  return numbers;
}

}  // namespace

ModelEntry moe_model() {
  return {.summary = "GPT-2 with a mixture of experts in place of every second MLP",
          .numbers = mixture_numbers(),
          .words = gpt_words(),
          .make = [](const ModelOptions& options) {
            const GptConfig config = gpt_config("moe", options);
            const MixtureConfig mixture = read_mixture(options);
            return make_gpt(config, [&](auto& specs, const std::string& path, std::int64_t layer) -> std::unique_ptr<FeedForward> {
              if ((layer + 1) % mixture.every != 0) return gpt_mlp(specs, path, config);
              return std::make_unique<Mixture>(specs, path, mixture, config);
            });
          }};
}

}  // namespace penstock
