// SPDX-License-Identifier: Apache-2.0
// A language model that sees images, as LLaVA's (Liu et al., 2304.08485): an encoder of patches (Dosovitskiy et al., 2010.11929) makes a
// few tokens of each image, which stand in front of the text that follows on them.
//
//   patches of the images -> vision.layer.0 -> ... -> a few means per image -> vision.out --+
//                                                                                          v
//   places of image tokens, and the text's bytes ----------------------------> embedding -> + -> text.layer.0 -> ... -> head
//
// Samples have different numbers of images. All images of a micro-batch lie one after the other, and the encoder works on one part of them
// after the other, each part in stages of its own: "vision.PART.NUMBER", with the same parameters. Without images there are no such stages.
#include <numeric>
#include <optional>

#include "base/text.h"
#include "base/words.h"
#include "models/registry.h"
#include "models/transformer_layer.h"
#include "penstock/error.h"

namespace penstock {
namespace {

struct Config {
  std::int64_t layers, width, heads, context, vocabulary;
  std::int64_t images, size, patch, image_tokens, vision_layers;
  std::int64_t vision_stages, text_stages;  // no vision stages: the encoder is in the text's first
  DType compute, master;
  std::int64_t side() const { return size / patch; }
  std::int64_t patches() const { return side() * side(); }
  std::int64_t channels() const { return kColours * patch * patch; }
};

void check_images(const Config& c) {
  if (c.size % c.patch != 0)
    throw Error(concat("images of ", c.size, " x ", c.size, " are not cut evenly into patches of ", c.patch, " x ", c.patch), {},
                concat("use an image_size of ", (c.side() + 1) * c.patch));
  if (c.patches() % c.image_tokens != 0)
    throw Error(concat("the ", c.patches(), " patches of an image do not make ", c.image_tokens, " tokens of equally many patches"), {},
                "use a number of image_tokens that divides the number of patches");
  if (c.images * c.image_tokens >= c.context)
    throw Error(concat("context ", c.context, " has no room for a text behind ", c.images, " images of ", c.image_tokens, " tokens"), {},
                concat("use a context above ", c.images * c.image_tokens));
}

Config read(const ModelOptions& options) {
  Config c{options.size("layers"),
           options.size("width"),
           options.size("heads"),
           options.size("context"),
           options.size("vocabulary"),
           options.size("images"),
           options.size("image_size"),
           options.size("patch"),
           options.size("image_tokens"),
           options.size("vision_layers"),
           static_cast<std::int64_t>(options.number("vision_stages")),
           0,
           options.compute,
           options.master()};
  check_heads(c.width, c.heads);
  check_images(c);
  if (c.vision_stages == 0) c.vision_stages = options.stages / 2;
  c.text_stages = options.stages - c.vision_stages;
  if (c.text_stages < 1 || c.text_stages > c.layers || c.vision_stages > c.vision_layers)
    throw Error(concat("model \"multimodal\" with ", counted(c.vision_layers, "layer"), " of vision and ", c.layers,
                       " of text cannot be cut into ", c.vision_stages, " and ", c.text_stages, " stages"),
                {}, "a stage has a layer at least; vision_stages says how many of all stages (actors times chunks) are the encoder's");
  return c;
}

class VisionEncoder {
 public:
  VisionEncoder(ParameterList& specs, const Config& c)
      : patch_(dense(specs, "vision.patch", {c.channels(), c.width, {{}, {"embed"}}})),
        position_(specs, "vision.position", {c.patches(), c.width, {"position"}, {"embed"}}, 0.1),
        norm_(specs, "vision.norm", c.width, 1e-5, {"embed"}),
        out_(dense(specs, "vision.out", {c.width, c.width, {{"embed"}, {}}})) {
    for (std::int64_t i = 0; i < c.vision_layers; ++i) layers_.emplace_back(specs, concat("vision.layer.", i), c.width, c.heads);
  }

  // images [count, patches, channels] -> [count * image_tokens, width].
  Tensor operator()(const Config& c, const Parameters& p, Tensor images, std::size_t part) const {
    Tensor x;
    for (std::int64_t i = 0; i < c.vision_layers; ++i) {
      const Stage stage(stage_of(c, part, i));
      if (i == 0) x = residual(patch_(p, images) + to(p[position_.at("weight")], c.compute), false);
      x = residual(layers_[i](p, x, false), false);
    }
    const Stage stage(stage_of(c, part, c.vision_layers - 1));
    const std::int64_t tokens = images.size(0) * c.image_tokens;
    return out_(p, mean(reshape(norm_(p, x), {tokens, c.patches() / c.image_tokens, c.width}), {1}));
  }

 private:
  static std::string stage_of(const Config& c, std::size_t part, std::int64_t layer) {
    if (c.vision_stages == 0) return "text.0";
    return concat("vision.", part, ".", spread(layer, c.vision_layers, c.vision_stages));
  }

  nn::Linear patch_;
  nn::Embedding position_;
  std::vector<TransformerLayer> layers_;
  nn::LayerNorm norm_;
  nn::Linear out_;
};

class VisionLanguage : public Model {
 public:
  explicit VisionLanguage(const ModelOptions& options)
      : specs_(options.master()),
        c_(read(options)),
        vision_(specs_, c_),
        embedding_(specs_, "text.embedding", {c_.vocabulary, c_.width, {"vocab"}, {"embed"}}, 1),
        position_(specs_, "text.position", {c_.context, c_.width, {"position"}, {"embed"}}, 0.1) {
    for (std::int64_t i = 0; i < c_.layers; ++i) layers_.emplace_back(specs_, concat("text.layer.", i), c_.width, c_.heads);
    norm_.emplace(specs_, "text.norm", c_.width, 1e-5, DimName{"embed"});
    head_.emplace(dense(specs_, "text.head", {c_.width, c_.vocabulary, {{"embed"}, {"vocab"}}}));
  }

  std::vector<ParameterSpec> parameters() const override { return specs_.list; }
  bool reads(const TextRows& rows) const override { return !rows.several && rows.inputs == 0; }
  bool generates() const override { return false; }

  std::vector<DataPort> data(std::int64_t context) const override {
    std::vector<DataPort> ports = {{.name = "images",
                                    .type = {c_.compute, {c_.patches(), c_.channels()}},
                                    .kind = DataPort::Kind::normal,
                                    .below = 0,
                                    .of = {},
                                    .entries = c_.images}};
    for (DataPort& port : text_ports(context)) ports.push_back(std::move(port));
    ports.push_back(
        {.name = "slots", .type = {DType::i64, {context}}, .kind = DataPort::Kind::slots, .below = c_.image_tokens, .of = {"images"}});
    return ports;
  }

  Tensor loss(const Parameters& p, const Batch& batch) const override {
    const std::vector<Tensor> seen = see(p, batch);
    Tensor x;
    for (std::int64_t i = 0; i < c_.layers; ++i) {
      const Stage stage(text_stage(i));
      if (i == 0) x = residual(embed(p, batch, seen));
      x = residual(layers_[i](p, x, true));
    }
    const Stage stage(text_stage(c_.layers - 1));
    return token_loss((*head_)(p, (*norm_)(p, x)), batch.targets);
  }

 private:
  std::string text_stage(std::int64_t layer) const { return concat("text.", spread(layer, c_.layers, c_.text_stages)); }

  // The tokens of each part's images.
  std::vector<Tensor> see(const Parameters& p, const Batch& batch) const {
    const Tensor images = batch["images"];
    std::vector<std::int64_t> parts = batch.parts;
    if (parts.empty() && images.size(0) > 0) parts = {images.size(0)};
    std::vector<Tensor> out;
    std::int64_t begin = 0;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      out.push_back(vision_(c_, p, slice(images, 0, begin, begin + parts[part]), part));
      begin += parts[part];
    }
    return out;
  }

  Tensor embed(const Parameters& p, const Batch& batch, std::vector<Tensor> seen) const {
    const std::int64_t length = batch.tokens.size(1);
    const Tensor x = to(embedding_(p, batch.tokens) + slice(p[position_.at("weight")], 0, 0, length), c_.compute);
    if (seen.empty()) return x;
    seen.insert(seen.begin(), full(x, {1, c_.width}, 0, c_.compute));
    return x + embedding(cat(seen, 0), batch["slots"]);
  }

  ParameterList specs_;
  Config c_;
  VisionEncoder vision_;
  nn::Embedding embedding_, position_;
  std::vector<TransformerLayer> layers_;
  std::optional<nn::LayerNorm> norm_;
  std::optional<nn::Linear> head_;
};

}  // namespace

std::unique_ptr<Model> vision_language_model(const ModelOptions& options) {
  return std::make_unique<VisionLanguage>(options);
}

}  // namespace penstock
