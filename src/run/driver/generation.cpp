// SPDX-License-Identifier: Apache-2.0
#include "driver/generation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/invariant.h"
#include "base/text.h"
#include "config/compile.h"
#include "data/permutation.h"
#include "data/tokenizer.h"
#include "driver/outputs.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// One row of tokens that the loop changes between steps, while no device reads it.
class TokenRow : public DataSource {
 public:
  explicit TokenRow(std::int64_t context) : tokens(static_cast<std::size_t>(context), 0) {}

  void fill(const Port& port, const StepInput&, std::int64_t, std::int64_t, std::span<std::byte> out) const override {
    std::fill(out.begin(), out.end(), std::byte{0});
    if (port.name != "tokens") return;
    invariant(out.size() == tokens.size() * sizeof(std::int64_t), "generation reads one sequence");
    std::memcpy(out.data(), tokens.data(), out.size());
  }

  std::vector<std::int64_t> tokens;
};

// A draw in [0, 1), a function of seed and index.
double uniform(std::int64_t seed, std::int64_t index) {
  constexpr double kScale = 0x1p-53;
  return static_cast<double>(mix_key(static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(index)) >> 11) * kScale;
}

// An empty prompt stands for a new line, or for the begin of a document where the tokenizer has no new line.
std::vector<std::int32_t> tokens_of_prompt(const Tokenizer& tokenizer, std::string_view prompt) {
  std::vector<std::int32_t> out = tokenizer.encode(prompt.empty() ? "\n" : prompt);
  if (out.empty() && tokenizer.end_of_text()) out.push_back(*tokenizer.end_of_text());
  if (out.empty()) throw Error(concat("the prompt ", quote(prompt), " has no tokens"), {}, "write some text behind --prompt");
  return out;
}

}  // namespace

std::size_t sample(const std::vector<double>& logits, const GenerationOptions& options, double draw) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  if (options.temperature <= 0) return order.front();
  if (options.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(options.top_k)));
  std::vector<double> weights;
  for (std::size_t i : order) weights.push_back(std::exp((logits[i] - logits[order.front()]) / options.temperature));
  double left = draw * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t i = 0; i < order.size(); ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order.back();
}

std::string generate(const Config& config, const ModelRegistry& models, const StateSource& state, const GenerationOptions& options,
                     const OneDevice& one_device) {
  const Prepared prepared = prepare_sequential(config, models);
  const Program program = compile_generation(config, prepared);
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(config.data.tokenizer);
  const std::int64_t context = context_of(config), vocabulary = vocabulary_of(config);
  const auto row = std::make_shared<TokenRow>(context);
  const std::unique_ptr<Cluster> cluster = one_device(row);
  const std::uint64_t hash = cluster->load(program);
  cluster->set_state(state);

  std::vector<std::int32_t> tokens = tokens_of_prompt(*tokenizer, options.prompt);
  const std::size_t before = tokenizer->decode(tokens).size();
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    if (options.seconds > 0 && std::chrono::steady_clock::now() - start > std::chrono::duration<double>(options.seconds)) break;
    const std::int64_t seen = std::min(std::ssize(tokens), context);
    std::copy(tokens.end() - seen, tokens.end(), row->tokens.begin());
    const std::vector<double> logits = output_values(program, cluster->step(hash, {.step = i + 1}), "logits");
    const auto last = logits.begin() + (seen - 1) * vocabulary;
    // Only what the tokenizer has is drawn: a larger vocabulary has entries that are no text.
    const std::vector<double> next(last, last + std::min(vocabulary, tokenizer->size()));
    tokens.push_back(static_cast<std::int32_t>(sample(next, options, uniform(options.seed, i))));
  }
  // All of it is decoded, as a token may read otherwise where it is the first.
  const std::string text = tokenizer->decode(tokens);
  return text.substr(std::min(before, text.size()));
}

}  // namespace penstock
