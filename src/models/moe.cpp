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
// choices come after all first choices, whether a token is dropped depends on later tokens of its group. Evaluation leaves the balance out;
// generation drops nothing, so that what comes next depends on what was before alone.
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

// Where the tokens of groups go: all [batch, groups, tokens, experts].
struct Routes {
  Tensor gates;  // the share of each of a token's two experts, 0 for the others
  Tensor slots;  // i64, from 1 on: the token's place at an expert, which may be beyond its capacity; 0 where it does not go
  Tensor first;  // bool: the first choice
};

Routes route(Tensor probabilities) {
  const Tensor zero = full(probabilities, {}, 0, probabilities.dtype());
  const Tensor first = first_largest(probabilities);
  const Tensor second = first_largest(where(first, zero - 1, probabilities));
  const Tensor chosen = where(logical_or(first, second), probabilities, zero);
  const Tensor slots = cumsum(first, 2) * to(first, DType::i64) + (cumsum(second, 2) + sum(first, {2}, true)) * to(second, DType::i64);
  return {chosen / sum(chosen, {-1}, true), slots, first};
}

Tensor penalty_of(const MixtureConfig& m, const Routes& routes, Tensor probabilities) {
  const double tokens = static_cast<double>(probabilities.size(2));
  const Tensor chosen = to(sum(routes.first, {2}), probabilities.dtype());
  return sum(chosen * sum(probabilities, {2})) * (m.balance * static_cast<double>(m.experts) / tokens);
}

class Mixture : public FeedForward {
 public:
  Mixture(std::vector<ParameterSpec>& specs, const std::string& path, const MixtureConfig& m, const GptConfig& c)
      : m_(m),
        gelu_(c.gelu),
        master_(c.master),
        gate_(specs, path + ".gate", c.width, m.experts, c.deviation, false, c.master, DimName{"embed"}),
        c_fc_(specs, path + ".experts.c_fc", m.experts, c.width, 4 * c.width, c.deviation, c.master, {"experts"}, {"embed"}, {"mlp"}),
        c_proj_(specs, path + ".experts.c_proj", m.experts, 4 * c.width, c.width, c.last_deviation(), c.master, {"experts"}, {"mlp"},
                {"embed"}) {}

  Fed operator()(const Parameters& p, Tensor x, Purpose purpose) const override {
    const std::int64_t length = x.size(1), groups = purpose == Purpose::generation ? 1 : m_.groups;
    if (length % groups != 0)
      throw Error(concat(length, " tokens are not divisible by ", groups, " groups"), {"each group of a sample's tokens routes by itself"},
                  "use a number of groups that divides the context");
    const Tensor tokens = reshape(x, {x.size(0), groups, length / groups, x.size(2)});
    const Tensor probabilities = softmax(gate_(p, to(tokens, master_)), -1);
    const Routes routes = route(probabilities);
    const Tensor y = reshape(computed(p, tokens, routes, purpose), x.shape());
    if (purpose != Purpose::training || m_.balance == 0) return {y, {}};
    return {y, penalty_of(m_, routes, probabilities)};
  }

  bool is_by_token() const override { return false; }

 private:
  // No expert gets a token twice, so all have room for the tokens that there are.
  std::int64_t capacity(std::int64_t tokens, Purpose purpose) const {
    if (purpose == Purpose::generation) return tokens;
    const double mean = 2 * static_cast<double>(tokens) / static_cast<double>(m_.experts);
    return static_cast<std::int64_t>(std::min(std::ceil(m_.capacity_factor * mean), static_cast<double>(tokens)));
  }

  Tensor computed(const Parameters& p, Tensor tokens, const Routes& routes, Purpose purpose) const {
    const std::int64_t batch = tokens.size(0), groups = tokens.size(1), rows = tokens.size(2), width = tokens.size(3);
    const std::int64_t room = capacity(rows, purpose), places = m_.experts * room;
    const Tensor sent = eq(unsqueeze(routes.slots, -1), arange(tokens, room, DType::i64) + 1);
    const Tensor dispatch = to(sent, tokens.dtype());
    const Tensor combine = dispatch * unsqueeze(to(routes.gates, tokens.dtype()), -1);
    const Shape one_hot = {batch, groups, rows, places};
    const Tensor received = matmul(transpose(reshape(dispatch, one_hot), -2, -1), tokens);
    const Tensor answers = answered(p, reshape(received, {batch, groups, m_.experts, room, width}));
    return matmul(reshape(combine, one_hot), reshape(answers, {batch, groups, places, width}));
  }

  // From [batch, groups, experts, room, width] to the same. The experts are in front where they lie split.
  Tensor answered(const Parameters& p, Tensor received) const {
    const std::vector<std::string> names = {"experts", "", "", "", "embed"};
    const Tensor x = constrain(permute(received, {2, 0, 1, 3, 4}), names);
    const Tensor hidden = gelu(c_fc_(p, reshape(x, {m_.experts, -1, x.size(-1)})), gelu_);
    return permute(constrain(reshape(c_proj_(p, hidden), x.shape()), names), {1, 2, 0, 3, 4});
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
