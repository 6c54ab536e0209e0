// SPDX-License-Identifier: Apache-2.0
// T5 (Raffel et al. 2020): the encoder reads an input, the decoder predicts each token of a target from those before it. Of pairs these are
// an input and a target with lengths of their own, and the decoder begins with token 0 (batch.tokens); of a text they are its two halves,
// and the decoder begins with the second one's first token. Parameter names, layouts and initial deviations are those of the published
// checkpoints.
//
//   input  -> encoder.block.0 -> encoder.block.1 -> ... -+-----------------+
//                                                        v                 v
//   target ---------------------------------> decoder.block.0 -> decoder.block.1 -> ... -> head
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "models/layers.h"
#include "models/lora.h"
#include "models/registry.h"
#include "penstock/error.h"

namespace penstock {

namespace {

struct Config {
  std::int64_t encoder_layers, decoder_layers, width, heads, buckets, distance, context, vocabulary, stages;
  bool qkv_in_attention;
  DType compute, master;
  LoraConfig lora;

  std::int64_t layers() const { return encoder_layers + decoder_layers; }
  // A decoder's layer has two, one within itself and one to the encoder's result.
  AttentionCut attentions() const { return {encoder_layers + 2 * decoder_layers, stages, qkv_in_attention}; }
  // The stages of the layer's first or second attention. The encoder's layers are in front of the decoder's.
  AttentionStages stages_of(bool is_decoder, std::int64_t layer, std::int64_t attention) const {
    if (!is_decoder) return attentions().of(layer, spread(layer, layers(), stages));
    return attentions().of(encoder_layers + 2 * layer + attention, spread(encoder_layers + layer, layers(), stages));
  }
};

Config read(const ModelOptions& options) {
  const auto decoder_layers = static_cast<std::int64_t>(options.number("decoder_layers"));
  const Config c{options.size("layers"),  decoder_layers == 0 ? options.size("layers") : options.size("decoder_layers"),
                 options.size("width"),   options.size("heads"),
                 options.size("buckets"), options.size("distance"),
                 options.size("context"), options.size("vocabulary"),
                 options.stages,          options.number("qkv_in_attention") != 0,
                 options.compute,         options.master(),
                 lora_config(options)};
  check_heads(c.width, c.heads);
  if (c.context % 2 != 0) throw Error(concat("context ", c.context, " has no two halves"), {}, concat("use a context of ", c.context + 1));
  if (c.buckets % 4 != 0 || c.distance <= c.buckets / 2)
    throw Error(concat(c.buckets, " buckets for distances up to ", c.distance), {},
                "use a number of buckets divisible by 4, and a distance of more than half of it");
  check_stages("t5", options, c.layers(), concat(c.encoder_layers, " encoder and ", c.decoder_layers, " decoder layers"), c.attentions());
  return c;
}

double root(std::int64_t size) {
  return 1 / std::sqrt(static_cast<double>(size));
}

nn::RMSNorm norm(ParameterList& specs, std::string path, const Config& c) {
  return {specs, std::move(path), c.width, 1e-6, {"embed"}};
}

// The bucket of the distance from each of `length` queries to each key, i64 [length, length]. Near distances have a bucket each, farther
// ones share buckets on a logarithmic scale up to `distance`; with both directions half of the buckets are for keys after the query.
Tensor relative_buckets(Tensor offsets, const Config& c, bool both_ways) {
  const double all = static_cast<double>(both_ways ? c.buckets / 2 : c.buckets), exact = all / 2;
  const Tensor away = both_ways ? abs(offsets) : neg(minimum(offsets, full_like(offsets, 0)));
  const double scale = (all - exact) / std::log(static_cast<double>(c.distance) / exact);
  // The small addend keeps a logarithm that is a whole number from being rounded below it.
  const Tensor far = log(maximum(away, full_like(away, 1)) * (1 / exact)) * scale + (exact + 1e-6);
  Tensor bucket = to(where(lt(away, exact), away, minimum(far, full_like(far, all - 1))), DType::i64);
  if (both_ways) bucket = bucket + to(gt(offsets, 0), DType::i64) * all;
  return bucket;
}

// The table of position biases that all layers of a stack share; published files keep it with layer 0.
class RelativeBias : public nn::Module {
 public:
  RelativeBias(ParameterList& specs, const std::string& stack, const Config& c)
      : Module(stack + ".block.0.layer.0.SelfAttention.relative_attention_bias"), both_ways_(stack == "encoder") {
    const TensorType type{c.master, {c.buckets, c.heads}};
    specs.list.push_back({at("weight"), type, {Initialiser::Kind::normal, root(c.width)}, true, {{"buckets"}, {"heads", 1, c.heads}}});
  }

  bool is_causal() const { return !both_ways_; }

  // The bias of all places of x [batch, heads, length, size] to each other, [1, heads, length, length].
  Tensor operator()(const Config& c, const Parameters& p, Tensor x) const {
    const std::int64_t length = x.size(2);
    const Tensor places = arange(x, length, DType::f64), offsets = unsqueeze(places, 0) - unsqueeze(places, 1);
    const Tensor bias = permute(embedding(p[at("weight")], relative_buckets(offsets, c, both_ways_)), {2, 0, 1});
    return to(unsqueeze(bias, 0), x.dtype());
  }

  // The bias of distances below `reach`, as attention_in_ranges takes it: [heads, 2*reach - 1].
  Tensor of_distances(const Config& c, const Parameters& p, Tensor x, std::int64_t reach) const {
    const Tensor offsets = arange(x, 2 * reach - 1, DType::f64) - static_cast<double>(reach - 1);
    return to(transpose(embedding(p[at("weight")], relative_buckets(offsets, c, both_ways_)), 0, 1), x.dtype());
  }

 private:
  bool both_ways_;
};

// The tokens that those of a stack attend to where rows hold pairs (Model::Batch): those of their own row, and those of the encoder's.
// None: whole rows.
struct StackRanges {
  Tensor own, memory;
};

// The tokens up to each one of x [batch, heads, length, size], i64 [batch, length, 2].
Tensor up_to_each(Tensor x) {
  const Tensor places = arange(x, x.size(2), DType::i64);
  return expand(unsqueeze(stack({full_like(places, 0), places + 1}, 1), 0), {x.size(0), x.size(2), 2});
}

// Queries, keys and values in heads.
struct Heads {
  Tensor q, k, v;
};

// Attention within a stack, of biased scores. Scores are not scaled, as the queries start small. Biases are made here, of the one parameter
// that attention reads: where it is apart each of its actors has a copy of the table, some hundred elements that are sent once a step. The
// biases of all places are as many as scores, and would be sent for each micro-batch.
Tensor attend_to_own(const Config& c, const Parameters& p, const Heads& x, const RelativeBias& bias, Tensor ranges) {
  if (!ranges && !bias.is_causal()) {
    const Tensor shifts = bias(c, p, x.q);
    return matmul(softmax(matmul(x.q, transpose(x.k, 2, 3)) + shifts, 3), x.v);
  }
  const std::int64_t reach = std::min(c.context, x.q.size(2));
  const Tensor seen = ranges ? ranges : up_to_each(x.q), distances = bias.of_distances(c, p, x.q, reach);
  return attention_in_ranges(x.q, x.k, x.v, seen, {reach, distances, 1.0, bias.is_causal()});
}

// Attention to the encoder's result.
Tensor attend_to_memory(const Config& c, const Heads& x, Tensor ranges) {
  if (!ranges) return scaled_dot_product_attention(x.q, x.k, x.v, false, 1.0);
  return attention_in_ranges(x.q, x.k, x.v, ranges, {.reach = std::min(c.context, x.k.size(2)), .scale = 1.0});
}

// A layer's attention reads its queries from x and adds to it; keys and values come from `memory`, or from x where there is none.
struct AttentionInput {
  Tensor x, memory;
  bool is_causal;
  AttentionStages stages;
};

class Attention {
 public:
  Attention(ParameterList& specs, const std::string& path, const Config& c)
      : heads_(c.heads),
        q_(projection(specs, path + ".q", c, root(c.width * (c.width / c.heads)), {{"embed"}, {"heads", 1, c.heads}})),
        k_(projection(specs, path + ".k", c, root(c.width), {{"embed"}, {"heads", 1, c.heads}})),
        v_(projection(specs, path + ".v", c, root(c.width), {{"embed"}, {"heads", 1, c.heads}})),
        o_(projection(specs, path + ".o", c, root(c.width), {{"heads", 1, c.heads}, {"embed"}})) {}

  // x with what attention makes of it: attend(heads), [batch, heads, length, size].
  template <class Attend>
  Tensor operator()(const Parameters& p, const nn::RMSNorm& norm, const AttentionInput& in, Attend&& attend) const {
    const Tensor normed = in_stage(in.stages.before, [&] { return norm(p, in.x); });
    const Heads heads = in_stage(in.stages.product, [&] { return heads_of(p, normed, in.memory ? in.memory : normed); });
    const Tensor mixed = in_stage(in.stages.attention, [&] { return attend(heads); });
    return in_stage(in.stages.behind, [&] { return residual(in.x + o_(p, join_heads(mixed)), in.is_causal); });
  }

 private:
  static AdaptedLinear projection(ParameterList& specs, const std::string& path, const Config& c, double deviation,
                                  const nn::LayerDims& dims) {
    return {specs, path, {c.width, c.width, dims}, deviation, c.lora.of_attention()};
  }

  Heads heads_of(const Parameters& p, Tensor x, Tensor memory) const {
    return {split_heads(q_(p, x), heads_), split_heads(k_(p, memory), heads_), split_heads(v_(p, memory), heads_)};
  }

  std::int64_t heads_;
  AdaptedLinear q_, k_, v_, o_;
};

class T5Layer {
 public:
  T5Layer(ParameterList& specs, const std::string& stack, std::int64_t number, const Config& c)
      : path_(concat(stack, ".block.", number)), number_(number), self_(specs, path_ + ".layer.0.SelfAttention", c) {
    // The bias belongs to the stack; its parameter stands after those of the first layer's attention.
    if (number == 0) bias_.emplace(specs, stack, c);
    self_norm_.emplace(norm(specs, path_ + ".layer.0.layer_norm", c));
    const bool is_decoder = stack == "decoder";
    if (is_decoder) {
      cross_.emplace(specs, path_ + ".layer.1.EncDecAttention", c);
      cross_norm_.emplace(norm(specs, path_ + ".layer.1.layer_norm", c));
    }
    const nn::LayerDims up{{"embed"}, {"mlp"}}, down{{"mlp"}, {"embed"}};
    const std::string last = concat(path_, ".layer.", is_decoder ? 2 : 1);
    wi_.emplace(specs, last + ".DenseReluDense.wi", nn::LinearShape{c.width, 4 * c.width, up}, root(c.width), c.lora.of_mlp());
    wo_.emplace(specs, last + ".DenseReluDense.wo", nn::LinearShape{4 * c.width, c.width, down}, root(4 * c.width), c.lora.of_mlp());
    dense_norm_.emplace(norm(specs, last + ".layer_norm", c));
  }

  const RelativeBias& bias() const { return *bias_; }  // only layer 0 has it

  // `memory` is the encoder's result, for a decoder.
  Tensor operator()(const Config& c, const Parameters& p, Tensor x, const RelativeBias& bias, Tensor memory,
                    const StackRanges& ranges) const {
    const Origin origin(path_);
    const bool is_causal = bias.is_causal();
    AttentionStages stages = stages_of(c, 0);
    x = self_(p, *self_norm_, {x, {}, is_causal, stages}, [&](const Heads& heads) { return attend_to_own(c, p, heads, bias, ranges.own); });
    if (cross_) {
      stages = stages_of(c, 1);
      x = (*cross_)(p, *cross_norm_, {x, memory, is_causal, stages},
                    [&](const Heads& heads) { return attend_to_memory(c, heads, ranges.memory); });
    }
    const Stage stage(stages.behind);
    return residual(x + (*wo_)(p, relu((*wi_)(p, (*dense_norm_)(p, x)))), is_causal);
  }

  // The stages of its first or second attention.
  AttentionStages stages_of(const Config& c, std::int64_t attention) const { return c.stages_of(cross_.has_value(), number_, attention); }

 private:
  std::string path_;
  std::int64_t number_;
  Attention self_;
  std::optional<RelativeBias> bias_;
  std::optional<nn::RMSNorm> self_norm_;
  std::optional<Attention> cross_;
  std::optional<nn::RMSNorm> cross_norm_;
  std::optional<AdaptedLinear> wi_, wo_;
  std::optional<nn::RMSNorm> dense_norm_;
};

class T5 : public Model {
 public:
  explicit T5(const ModelOptions& options)
      : specs_(options.master()), c_(read(options)), shared_(specs_, "shared", {c_.vocabulary, c_.width, {"vocab"}, {"embed"}}, 1) {
    for (std::int64_t i = 0; i < c_.encoder_layers; ++i) encoder_.emplace_back(specs_, "encoder", i, c_);
    encoder_norm_.emplace(norm(specs_, "encoder.final_layer_norm", c_));
    for (std::int64_t i = 0; i < c_.decoder_layers; ++i) decoder_.emplace_back(specs_, "decoder", i, c_);
    decoder_norm_.emplace(norm(specs_, "decoder.final_layer_norm", c_));
    freeze_base(specs_, c_.lora);
  }

  std::vector<ParameterSpec> parameters() const override { return specs_.list; }
  bool generates() const override { return false; }
  // The halves of a text are those of its row.
  bool reads(const TextRows& rows) const override { return rows.inputs > 0 || (!rows.several && !rows.shorter); }
  Tensor count(const Batch& batch) const override { return count_targets(of_decoder(batch, batch.targets)); }

  Tensor loss(const Parameters& p, const Batch& batch) const override {
    const Tensor memory = encode(p, batch.inputs ? batch.inputs : first_half(batch.tokens), {batch.input_ranges, {}});
    const Tensor x = decode(p, of_decoder(batch, batch.tokens), memory, {batch.ranges, batch.memory_ranges});
    const Stage stage(stage_name(c_.stages - 1));
    const Tensor end = (*decoder_norm_)(p, x) * root(c_.width);
    const Origin origin("lm_head");
    return token_loss(linear(end, to(p[shared_.at("weight")], end.dtype())), of_decoder(batch, batch.targets));
  }

 private:
  static Tensor first_half(Tensor text) { return slice(text, 1, 0, text.size(1) / 2); }
  // The decoder's part of the tokens or targets: of pairs all of them.
  static Tensor of_decoder(const Batch& batch, Tensor text) { return batch.inputs ? text : slice(text, 1, text.size(1) / 2, text.size(1)); }

  Tensor encode(const Parameters& p, Tensor tokens, const StackRanges& ranges) const {
    Tensor x =
        in_stage(encoder_[0].stages_of(c_, 0).before, [&] { return residual(to(shared_(p, tokens), c_.compute), /*causal=*/false); });
    for (const T5Layer& layer : encoder_) x = layer(c_, p, x, encoder_[0].bias(), {}, ranges);
    return in_stage(encoder_.back().stages_of(c_, 0).behind, [&] { return (*encoder_norm_)(p, x); });
  }

  Tensor decode(const Parameters& p, Tensor tokens, Tensor memory, const StackRanges& ranges) const {
    Tensor x = in_stage(decoder_[0].stages_of(c_, 0).before, [&] { return residual(to(shared_(p, tokens), c_.compute)); });
    for (const T5Layer& layer : decoder_) x = layer(c_, p, x, decoder_[0].bias(), memory, ranges);
    return x;
  }

  ParameterList specs_;
  Config c_;
  nn::Embedding shared_;
  std::vector<T5Layer> encoder_, decoder_;
  std::optional<nn::RMSNorm> encoder_norm_, decoder_norm_;
};

}  // namespace

ModelEntry t5_model() {
  std::map<std::string, double> numbers = {{"layers", 2},    {"decoder_layers", 0}, {"width", 64},
                                           {"heads", 4},     {"buckets", 32},       {"distance", 128},
                                           {"context", 128}, {"vocabulary", 256},   {"qkv_in_attention", 0}};
  numbers.merge(lora_numbers());
  return {.summary =
              "T5 over bytes, with the published checkpoints' parameter names: reads half a sequence, predicts the other, or reads pairs",
          .numbers = std::move(numbers),
          .words = lora_words(),
          .make = [](const ModelOptions& options) { return std::make_unique<T5>(options); }};
}

}  // namespace penstock
