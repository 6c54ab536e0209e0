#include "driver/generation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/invariant.h"
#include "config/compile.h"
#include "data/permutation.h"
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

std::string generate(const Config& config, const ModelRegistry& models, const StateSource& state, std::string_view prompt,
                     const GenerationOptions& options, const OneDevice& one_device) {
  const Prepared prepared = prepare_sequential(config, models);
  const Program program = compile_generation(config, prepared);
  const std::int64_t context = context_of(config), vocabulary = vocabulary_of(config);
  const auto row = std::make_shared<TokenRow>(context);
  const std::unique_ptr<Cluster> cluster = one_device(row);
  const std::uint64_t hash = cluster->load(program);
  cluster->set_state(state);

  std::string text = prompt.empty() ? "\n" : std::string(prompt);
  const std::size_t begin = text.size();
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    if (options.seconds > 0 && std::chrono::steady_clock::now() - start > std::chrono::duration<double>(options.seconds)) break;
    const std::size_t seen = std::min(text.size(), static_cast<std::size_t>(context));
    std::transform(text.end() - static_cast<std::ptrdiff_t>(seen), text.end(), row->tokens.begin(),
                   [](char c) { return static_cast<unsigned char>(c); });
    StepInput input;
    input.step = i + 1;
    const std::vector<double> logits = output_values(program, cluster->step(hash, input), "logits");
    const auto last = logits.begin() + static_cast<std::ptrdiff_t>(seen - 1) * vocabulary;
    // Only bytes are drawn: a larger vocabulary has entries that are no text here.
    const std::vector<double> next(last, last + std::min<std::int64_t>(vocabulary, 256));
    text += static_cast<char>(sample(next, options, uniform(options.seed, i)));
  }
  return text.substr(begin);
}

}  // namespace penstock
