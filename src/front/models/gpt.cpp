// SPDX-License-Identifier: Apache-2.0
// GPT-2 over bytes. Parameter names and layouts are those of the published GPT-2 checkpoints (Radford et al. 2019).
#include "models/gpt.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "models/layers.h"
#include "models/registry.h"
#include "penstock/error.h"

namespace penstock {

namespace {

// Applies dropout. `op` numbers the places of dropout, so that each draws its own mask.
Tensor drop(const GptConfig& c, Tensor x, const Model::Batch& batch, std::int64_t op) {
  if (c.dropout == 0 || !batch.training) return x;
  const Tensor key = random_key(batch.seed, batch.step, op);
  if (!batch.positions) return dropout(x, c.dropout, key, batch.rows);
  const Tensor tokens = reshape(x, {-1, c.width});
  return reshape(dropout(tokens, c.dropout, key, reshape(batch.rows, {-1}), reshape(batch.positions, {-1})), x.shape());
}

nn::LayerNorm norm(ParameterList& specs, std::string path, const GptConfig& c) {
  return {specs, std::move(path), c.width, 1e-5, {"embed"}};
}

class GptMlp : public FeedForward {
 public:
  GptMlp(ParameterList& specs, const std::string& path, const GptConfig& c)
      : gelu_(c.gelu),
        c_fc_(specs, path + ".c_fc", {c.width, 4 * c.width, {{"embed"}, {"mlp"}}}, c.deviation, c.lora.of_mlp()),
        c_proj_(specs, path + ".c_proj", {4 * c.width, c.width, {{"mlp"}, {"embed"}}}, c.last_deviation(), c.lora.of_mlp()) {}

  Fed operator()(const Parameters& p, Tensor x, Purpose) const override { return {c_proj_(p, gelu(c_fc_(p, x), gelu_)), {}}; }

 private:
  std::string gelu_;
  AdaptedConv1D c_fc_, c_proj_;
};

AttentionStages stages_of_layer(const GptConfig& c, std::int64_t i) {
  return c.attentions().of(i, spread(i, c.layers, c.stages));
}

class GptLayer {
 public:
  GptLayer(ParameterList& specs, std::int64_t number, const GptConfig& c, const MakeFeedForward& make)
      : path_(concat("h.", number)),
        number_(number),
        ln_1_(norm(specs, path_ + ".ln_1", c)),
        c_attn_(specs, path_ + ".attn.c_attn", {c.width, 3 * c.width, {{"embed"}, {"heads", 3, c.heads}}}, c.deviation,
                c.lora.of_attention()),
        attn_c_proj_(specs, path_ + ".attn.c_proj", {c.width, c.width, {{"heads", 1, c.heads}, {"embed"}}}, c.last_deviation(),
                     c.lora.of_attention()),
        ln_2_(norm(specs, path_ + ".ln_2", c)),
        mlp_(make(specs, path_ + ".mlp", number)) {}

  Fed operator()(const GptConfig& c, const Parameters& p, Tensor x, const Model::Batch& batch, Purpose purpose) const {
    const AttentionStages stages = stages_of_layer(c, number_);
    const Origin origin(path_);
    const Tensor normed = in_stage(stages.before, [&] { return ln_1_(p, x); });
    const std::vector<Tensor> qkv = in_stage(stages.product, [&] { return queries_keys_values(c, p, normed, batch); });
    const Tensor mixed = in_stage(stages.attention, [&] { return attention(c, qkv, batch); });
    const Stage stage(stages.behind);
    x = residual(x + drop(c, attn_c_proj_(p, join_heads(mixed)), batch, 2 * number_ + 1));
    const Fed fed = (*mlp_)(p, ln_2_(p, x), purpose);
    return {residual(x + drop(c, fed.y, batch, 2 * number_ + 2)), fed.penalty};
  }

  // Whether a token's result depends on no token but those that it attends to.
  bool is_by_token() const { return mlp_->is_by_token(); }

 private:
  std::vector<Tensor> queries_keys_values(const GptConfig& c, const Parameters& p, Tensor x, const Model::Batch& batch) const {
    std::vector<Tensor> out = split_qkv(c_attn_(p, x), c.heads);
    for (std::size_t i = 0; i < 2 && c.rotary; ++i) out[i] = rotary(out[i], batch.positions);
    return out;
  }

  static Tensor attention(const GptConfig& c, const std::vector<Tensor>& qkv, const Model::Batch& batch) {
    if (!batch.ranges) return scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], true);
    return attention_in_ranges(qkv[0], qkv[1], qkv[2], batch.ranges, {.reach = std::min(c.context, qkv[0].size(2)), .is_causal = true});
  }

  std::string path_;
  std::int64_t number_;
  nn::LayerNorm ln_1_;
  AdaptedConv1D c_attn_, attn_c_proj_;
  nn::LayerNorm ln_2_;
  std::unique_ptr<FeedForward> mlp_;
};

// The final norm and the vocabulary, which may be in parts: so many rows of one matrix, or matrices. What a part makes of every token is
// small, its logsumexp and the target's logit; of these the last stage makes the loss (SlimPipe, 2504.14519).
class Head {
 public:
  Head(ParameterList& specs, const GptConfig& c) : c_(c), ln_f_(norm(specs, "ln_f", c)) {
    for (std::int64_t k = 0; k < c.head_shards && !c.tied; ++k)
      matrices_.emplace_back(specs, c.head_shards == 1 ? "lm_head" : concat("lm_head.", k),
                             nn::LinearShape{c.width, begin(k + 1) - begin(k), {{"embed"}, {"vocab"}}, false}, c.deviation);
  }

  // `embedding`: the rows of the whole vocabulary, which a tied model's logits are made with.
  Tensor loss(const Parameters& p, Tensor embedding, Tensor x, Tensor targets) const {
    const std::vector<Tensor> parts = in_parts(p, embedding, x, [&](Tensor logits, std::int64_t k) {
      return c_.head_shards == 1 ? token_loss(logits, targets) : part_of_token_loss(logits, targets, begin(k));
    });
    if (parts.size() == 1) return parts[0];
    const Stage stage(c_.head_stage(c_.head_shards));
    return cross_entropy_join(cat(parts, 0), reshape(targets, {-1}), c_.vocabulary);
  }

  Tensor logits(const Parameters& p, Tensor embedding, Tensor x) const {
    const std::vector<Tensor> parts = in_parts(p, embedding, x, [](Tensor logits, std::int64_t) { return logits; });
    if (parts.size() == 1) return parts[0];
    const Stage stage(c_.head_stage(c_.head_shards));
    return cat(parts, 2);
  }

 private:
  // The first class of part k.
  std::int64_t begin(std::int64_t k) const { return k * c_.vocabulary / c_.head_shards; }

  // make(logits, k) of each part k, in its stage.
  template <class Make>
  std::vector<Tensor> in_parts(const Parameters& p, Tensor embedding, Tensor x, Make&& make) const {
    x = in_stage(stage_name(c_.stages - 1), [&] { return ln_f_(p, x); });
    std::vector<Tensor> out;
    for (std::int64_t k = 0; k < c_.head_shards; ++k)
      out.push_back(in_stage(c_.head_stage(k), [&] { return make(logits_of(p, embedding, x, k), k); }));
    return out;
  }

  Tensor logits_of(const Parameters& p, Tensor embedding, Tensor x, std::int64_t k) const {
    if (!c_.tied) return matrices_[static_cast<std::size_t>(k)](p, x);
    const Origin origin("lm_head");
    const Tensor rows = c_.head_shards == 1 ? embedding : slice(embedding, 0, begin(k), begin(k + 1));
    return linear(x, to(rows, x.dtype()));
  }

  GptConfig c_;
  nn::LayerNorm ln_f_;
  std::vector<nn::Linear> matrices_;  // of the parts; none where the embedding's is the head's
};

class Gpt : public Model {
 public:
  Gpt(const GptConfig& config, const MakeFeedForward& make)
      : specs_(config.master), c_(config), wte_(specs_, "wte", {c_.vocabulary, c_.width, {"vocab"}, {"embed"}}, c_.deviation) {
    if (!c_.rotary) wpe_.emplace(specs_, "wpe", nn::EmbeddingShape{c_.context, c_.width, {"position"}, {"embed"}}, c_.deviation);
    for (std::int64_t i = 0; i < c_.layers; ++i) layers_.emplace_back(specs_, i, c_, make);
    head_.emplace(specs_, c_);
    freeze_base(specs_, c_.lora);
  }

  std::vector<ParameterSpec> parameters() const override { return specs_.list; }

  bool reads(const TextRows& rows) const override {
    return rows.inputs == 0 && ((!rows.several && !rows.shorter) || std::ranges::all_of(layers_, &GptLayer::is_by_token));
  }

  Tensor loss(const Parameters& p, const Batch& batch) const override {
    const Fed fed = trunk(p, batch, batch.training ? Purpose::training : Purpose::evaluation);
    const Tensor loss = head_->loss(p, p[wte_.at("weight")], fed.y, batch.targets);
    const Stage stage(c_.head_stage(c_.head_shards));
    return fed.penalty ? loss + fed.penalty : loss;
  }

  Tensor logits(const Parameters& p, const Batch& batch) const override {
    return head_->logits(p, p[wte_.at("weight")], trunk(p, batch, Purpose::generation).y);
  }

 private:
  // The penalties of all layers are summed from stage to stage.
  Fed trunk(const Parameters& p, const Batch& batch, Purpose purpose) const {
    Tensor x = embed(p, batch), penalty;
    for (std::int64_t i = 0; i < c_.layers; ++i) {
      const Fed fed = layers_[i](c_, p, x, batch, purpose);
      x = fed.y;
      if (!fed.penalty) continue;
      const Stage stage(stages_of_layer(c_, i).behind);
      penalty = penalty ? penalty + fed.penalty : fed.penalty;
    }
    return {x, penalty};
  }

  Tensor embed(const Parameters& p, const Batch& batch) const {
    const Stage stage(stage_name(0));
    const std::int64_t length = batch.tokens.size(1);
    if (length > c_.context && !batch.positions)
      throw Error(concat(c_.model, " has ", c_.context, " positions, but the batch is ", length, " tokens long"), {},
                  "raise the model's context, or shorten the sequences");
    Tensor x = wte_(p, batch.tokens);
    if (wpe_) x = x + (batch.positions ? (*wpe_)(p, batch.positions) : slice(p[wpe_->at("weight")], 0, 0, length));
    return residual(drop(c_, to(x, c_.compute), batch, 0));
  }

  ParameterList specs_;
  GptConfig c_;
  nn::Embedding wte_;
  std::optional<nn::Embedding> wpe_;
  std::vector<GptLayer> layers_;
  std::optional<Head> head_;
};

}  // namespace

double GptConfig::last_deviation() const {
  return deviation / std::sqrt(2.0 * static_cast<double>(layers));
}

std::string GptConfig::head_stage(std::int64_t part) const {
  return stage_name(has_head_stages ? stages + part : stages - 1);
}

namespace {

// Throws Error unless there are as many parts of the vocabulary as it can have, and either one stage in all or at least one before theirs.
void check_head(const std::string& model, std::int64_t stages, std::int64_t shards, std::int64_t vocabulary) {
  if (shards > vocabulary)
    throw Error(concat("head_shards is ", shards, " for a vocabulary of ", vocabulary), {}, concat("use 1 to ", vocabulary));
  if (shards == 1 || stages == 1 || stages > shards + 1) return;
  throw Error(concat("model ", quote(model), " with head_shards = ", shards, " cannot be cut into ", stages, " stages"),
              {concat("the last ", shards + 1, " are the parts of its vocabulary and what joins them")},
              concat("use 1 stage, or ", shards + 2, " and more: --schedule slimpipe has them for any number of actors, a table may"));
}

// The stages of the layers, of all that there are.
ModelOptions before_head(const ModelOptions& options, std::int64_t shards) {
  ModelOptions out = options;
  if (shards > 1 && options.stages > 1) out.stages -= static_cast<int>(shards) + 1;
  return out;
}

}  // namespace

GptConfig gpt_config(const std::string& model, const ModelOptions& given) {
  const std::int64_t shards = given.size("head_shards");
  check_head(model, given.stages, shards, given.size("vocabulary"));
  const ModelOptions options = before_head(given, shards);
  const GptConfig c{model,
                    options.size("layers"),
                    options.size("width"),
                    options.size("heads"),
                    options.size("context"),
                    options.size("vocabulary"),
                    options.stages,
                    shards,
                    options.stages < given.stages,
                    options.number("dropout"),
                    options.number("tied") != 0,
                    options.number("qkv_in_attention") != 0,
                    options.word("gelu"),
                    options.word("positions") == "rotary",
                    lora_config(options),
                    options.compute,
                    options.master()};
  check_heads(c.width, c.heads);
  check_stages(model, options, c.layers, concat(c.layers, c.layers == 1 ? " layer" : " layers"), c.attentions());
  check_word("gelu", c.gelu, {"tanh", "none"});
  check_word("positions", options.word("positions"), {"learned", "rotary"});
  if (c.rotary && c.width / c.heads % 2 != 0)
    throw Error(concat("heads of ", c.width / c.heads, " cannot be turned in pairs (positions = \"rotary\")"), {},
                concat("give a width that is a multiple of ", 2 * c.heads));
  if (!(c.dropout >= 0 && c.dropout < 1)) throw Error(concat("dropout is ", number(c.dropout)), {}, "give a probability from 0 to below 1");
  return c;
}

std::map<std::string, double> gpt_numbers() {
  std::map<std::string, double> numbers = {{"layers", 4},       {"width", 128}, {"heads", 4},       {"context", 128},       {"dropout", 0},
                                           {"vocabulary", 256}, {"tied", 1},    {"head_shards", 1}, {"qkv_in_attention", 0}};
  numbers.merge(lora_numbers());
  return numbers;
}
std::map<std::string, std::string> gpt_words() {
  std::map<std::string, std::string> words = {{"gelu", "tanh"}, {"positions", "learned"}};
  words.merge(lora_words());
  return words;
}

std::unique_ptr<FeedForward> gpt_mlp(ParameterList& specs, const std::string& path, const GptConfig& config) {
  return std::make_unique<GptMlp>(specs, path, config);
}

std::unique_ptr<Model> make_gpt(const GptConfig& config, const MakeFeedForward& make) {
  return std::make_unique<Gpt>(config, make);
}

ModelEntry gpt_model() {
  return {.summary = "GPT-2 over bytes, with the published checkpoints' parameter names",
          .numbers = gpt_numbers(),
          .words = gpt_words(),
          .make = [](const ModelOptions& options) {
            const GptConfig config = gpt_config("gpt", options);
            return make_gpt(config, [&](auto& specs, const std::string& path, std::int64_t) { return gpt_mlp(specs, path, config); });
          }};
}

}  // namespace penstock
