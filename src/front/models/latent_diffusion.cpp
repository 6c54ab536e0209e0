// SPDX-License-Identifier: Apache-2.0
// A latent diffusion model (Rombach et al., 2112.10752) with a diffusion transformer (Peebles & Xie, 2212.09748). Both encoders are frozen:
// they are drawn once and stay as they are, and what they give depends on the batch alone.
//
//   caption of the class -> text.layer.0 -> ... -> mean over its words ----------+-> condition --+--------------+
//   timestep --------------------------------------------------------------------+               v              v
//   image -> means -> patches -> reflections -> latents, made noisy -> in + positions ------> layer.0 -> ... -> out -> noise
//
// With two backbones (Ho et al., 2106.15282) the first one learns the latents of the image at half its size, and the second those of the
// image beside what the first one's give, enlarged. In training these are the image's own, so neither backbone feeds the other, and their
// stages may go down and up the actors.
//
// With self-conditioning (Chen et al., 2208.04202) a backbone also reads an estimate of the clean latents: nothing at first, then what came
// of that, for some of the samples. The first way has stages of its own and no gradient:
//
//   noisy, 0 --> layer.0 -> ... -> out -> clean latents --+
//   noisy -----> layer.0 -> ... -> out -> noise           |
//     ^---------------------------------------------------+
//
// The image encoder is an orthogonal map of patches, a product of reflections, so the same reflections in reverse order decode.
#include <cmath>
#include <numbers>
#include <optional>

#include "base/text.h"
#include "base/words.h"
#include "models/layers.h"
#include "models/registry.h"
#include "models/transformer_layer.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr std::int64_t kPool = 2;  // pixels, in both directions, of which the encoder takes the mean
constexpr double kMostLatent = 4;  // latents are about standard normal; a sample's are kept within this
// Where all would be noise, what is guessed of the latents would be divided by nothing.
constexpr double kMostNoise = 0.95;     // of a right angle
constexpr double kLongestPeriod = 1e4;  // of the waves of a timestep's embedding, over the shortest
constexpr double kTimes = 1000;         // to which timesteps are stretched for it
constexpr std::int64_t kModulations = 6;

struct Config {
  std::int64_t classes, image, patch, caption;
  std::int64_t text_layers, text_width, image_layers;
  std::int64_t backbones, layers, width, heads, levels;
  double condition_dropout, self_conditioning;
  std::int64_t frozen_stages, stages;        // of all stages, the first ones are the encoders'
  std::vector<std::int64_t> stage_of_layer;  // of the first way; the second one's are as many behind
  DType compute, master;
  std::int64_t side(std::int64_t backbone) const { return image / patch / (backbones - backbone); }
  std::int64_t patches(std::int64_t backbone) const { return side(backbone) * side(backbone); }
  // Where a backbone's patches begin among those of all.
  std::int64_t begin(std::int64_t backbone) const { return backbone == 0 ? 0 : begin(backbone - 1) + patches(backbone - 1); }
  std::int64_t places() const { return patch / kPool; }
  std::int64_t channels() const { return kColours * places() * places(); }
  std::string text_stage(std::int64_t layer) const {
    return stage_name(frozen_stages < 2 ? 0 : spread(layer, text_layers, frozen_stages - 1));
  }
  std::string image_stage() const { return stage_name(frozen_stages < 2 ? 0 : frozen_stages - 1); }
  // How often something goes through all layers: once through each backbone, or twice through one that reads what it gave.
  std::int64_t ways() const { return self_conditioning > 0 ? 2 : backbones; }
  // The number of stages of a way. Where one stage is not frozen, it has all of both.
  std::int64_t trained() const { return stages - frozen_stages == 1 ? 1 : (stages - frozen_stages) / ways(); }
  std::string layer_stage(std::int64_t way, std::int64_t layer) const {
    const bool is_apart = stages - frozen_stages > 1;
    return stage_name(stage_of_layer[static_cast<std::size_t>(layer)] + (is_apart ? way * trained() : 0));
  }
  std::string last_stage(std::int64_t way) const { return layer_stage(way, layers - 1); }
};

void check_image(const Config& c) {
  if (c.patch % kPool != 0)
    throw Error(concat("patch is ", c.patch), {concat("the encoder takes the mean of ", kPool, " x ", kPool, " pixels")},
                concat("use a multiple of ", kPool));
  if (c.image % c.patch != 0)
    throw Error(concat("images of ", c.image, " x ", c.image, " are not cut evenly into patches of ", c.patch, " x ", c.patch), {},
                concat("use an image size of ", (c.image / c.patch + 1) * c.patch));
  if (c.backbones > 2) throw Error(concat("backbones is ", c.backbones), {}, "use 1, or 2: of the image at half its size and of the image");
  if (c.image / c.patch % c.backbones != 0)
    throw Error(concat("an image has ", c.image / c.patch, " x ", c.image / c.patch, " patches, and at half its size no whole number"), {},
                concat("use an image size of ", c.image + c.patch, ", or backbones = 1"));
}

// Returns how many of `layers` layers each stage has, from "1+3"; none for "even".
std::vector<std::int64_t> stage_layers_of(const std::string& text, std::int64_t layers) {
  std::vector<std::int64_t> out;
  if (text == "even") return out;
  std::int64_t sum = 0;
  for (const std::string& one : split(text, '+')) {
    const std::int64_t count = parse_number<std::int64_t>(one).value_or(0);
    if (count < 1 || count > layers)
      throw Error(concat("stage_layers is ", quote(text), ": ", quote(one), " is no number of layers from 1 to ", layers), {},
                  "say how many layers each trained stage has, as 1+3, or even");
    out.push_back(count);
    sum += count;
  }
  if (sum != layers)
    throw Error(concat("stage_layers is ", quote(text), ", which are ", counted(sum, "layer"), "; the model has ", layers), {},
                "say how many layers each trained stage has, as 1+3, or even");
  return out;
}

void place_layers(Config& c, const std::string& text) {
  const std::vector<std::int64_t> counts = stage_layers_of(text, c.layers);
  const std::int64_t trained = c.trained();
  for (std::int64_t i = 0; i < c.layers; ++i) c.stage_of_layer.push_back(spread(i, c.layers, trained, c.frozen_stages));
  if (counts.empty() || c.stages == 1) return;
  if (std::ssize(counts) != trained)
    throw Error(
        concat("stage_layers is ", quote(text), ", ", counted(std::ssize(counts), "stage"), "; there are ", trained, " that are trained"),
        {concat(counted(c.stages, "stage"), ", ", c.frozen_stages, " of them frozen")}, "give a number of layers for each, or even");
  c.stage_of_layer.clear();
  for (std::int64_t stage = 0; stage < trained; ++stage)
    c.stage_of_layer.insert(c.stage_of_layer.end(), static_cast<std::size_t>(counts[static_cast<std::size_t>(stage)]),
                            c.frozen_stages + stage);
}

// Each encoder has a stage where there are enough, so that no stage has both layers that are trained and layers that are not. One device
// alone has one stage, whatever the option says of several.
void settle_stages(Config& c, double frozen, std::int64_t stages) {
  if (!(frozen >= 0 && frozen == std::floor(frozen) && frozen <= static_cast<double>(c.text_layers + 1)))
    throw Error(concat("frozen_stages is ", short_decimal(frozen, 6)),
                {concat("the encoders have ", counted(c.text_layers, "layer"), " of text, and one stage of images")},
                concat("use 0 to ", c.text_layers + 1));
  c.stages = stages;
  c.frozen_stages = frozen > 0 && stages > 1 ? static_cast<std::int64_t>(frozen) : std::min<std::int64_t>(2, stages - 1);
  const std::int64_t trained = stages - c.frozen_stages;
  if (trained > 1 && trained % c.ways() != 0)
    throw Error(concat("model \"latent_diffusion\" with ", c.self_conditioning > 0 ? "self-conditioning" : "two backbones",
                       " cannot be cut into ", counted(stages, "stage"), ", ", c.frozen_stages, " of them frozen"),
                {},
                concat("both ", c.self_conditioning > 0 ? "ways" : "backbones",
                       " have as many stages: give an even number of trained ones, as two chunks for each actor"));
  if (trained >= 1 && c.trained() <= c.layers) return;
  throw Error(concat("model \"latent_diffusion\" with ", counted(c.layers, "layer"), " cannot be cut into ", counted(stages, "stage"), ", ",
                     c.frozen_stages, " of them frozen"),
              {}, "a stage has a layer at least; frozen_stages says how many of all stages (actors times chunks) are the encoders'");
}

Config read(const ModelOptions& options) {
  Config c{options.size("classes"),
           options.size("image"),
           options.size("patch"),
           options.size("caption"),
           options.size("text_layers"),
           options.size("text_width"),
           options.size("image_layers"),
           options.size("backbones"),
           options.size("layers"),
           options.size("width"),
           options.size("heads"),
           options.size("noise_levels"),
           options.number("condition_dropout"),
           options.number("self_conditioning"),
           0,
           1,
           {},
           options.compute,
           options.master()};
  check_heads(c.width, c.heads);
  check_heads(c.text_width, c.heads);
  check_image(c);
  if (c.width % 2 != 0)
    throw Error(concat("width is ", c.width), {"a timestep's embedding has as many sines as cosines"}, "use an even one");
  if (!(c.condition_dropout >= 0 && c.condition_dropout < 1))
    throw Error(concat("condition_dropout is ", number(c.condition_dropout)), {}, "give a probability from 0 to below 1");
  if (!(c.self_conditioning >= 0 && c.self_conditioning <= 1))
    throw Error(concat("self_conditioning is ", number(c.self_conditioning)), {}, "give the share of the samples, from 0 to 1");
  if (c.self_conditioning > 0 && c.backbones > 1)
    throw Error(concat("self_conditioning is ", number(c.self_conditioning), ", and backbones ", c.backbones),
                {"one backbone reads what it gave itself"}, "set backbones to 1, or self_conditioning to 0");
  settle_stages(c, options.number("frozen_stages"), options.stages);
  place_layers(c, options.word("stage_layers"));
  return c;
}

// The shares of latents and of noise at each level are cosine and sine of an angle; level -1 has no noise.
struct Shares {
  Tensor latents, noise;  // [batch, 1, 1]
};
Shares shares_of(const Config& c, Tensor level) {
  const Tensor part = (to(level, c.master) + 1.0) * (kMostNoise * std::numbers::pi / 2 / static_cast<double>(c.levels));
  const Tensor angle = reshape(part, {-1, 1, 1});
  return {cos(angle), sin(angle)};
}

class TextEncoder {
 public:
  TextEncoder(ParameterList& specs, const Config& c)
      : embedding_(specs, "text.embedding", {(c.classes + 1) * c.caption, c.text_width, {}, {"embed"}}, 1) {
    for (std::int64_t i = 0; i < c.text_layers; ++i) layers_.emplace_back(specs, concat("text.layer.", i), c.text_width, c.heads);
    norm_.emplace(specs, "text.norm", c.text_width, 1e-5, DimName{"embed"});
  }

  // label i64 [batch] -> [batch, text_width]. Each class has words of its own, and behind the classes stands the caption that says nothing.
  Tensor operator()(const Config& c, const Parameters& p, const std::function<Tensor()>& label) const {
    Tensor x;
    for (std::int64_t i = 0; i < c.text_layers; ++i) {
      const Stage stage(c.text_stage(i));
      if (i == 0) x = to(embedding_(p, caption_of(c, label())), c.compute);
      x = layers_[static_cast<std::size_t>(i)](p, x, false);
    }
    const Stage stage(c.text_stage(c.text_layers - 1));
    return mean((*norm_)(p, x), {1});
  }

 private:
  static Tensor caption_of(const Config& c, Tensor label) {
    const Shape all = {label.size(0), c.caption};
    const Tensor first = expand(reshape(label * static_cast<double>(c.caption), {-1, 1}), all);
    return first + expand(reshape(arange(label, c.caption, DType::i64), {1, -1}), all);
  }

  nn::Embedding embedding_;
  std::vector<TransformerLayer> layers_;
  std::optional<nn::LayerNorm> norm_;
};

// A reflection keeps lengths and is its own inverse. The parameter is the normal of the plane.
class ImageEncoder {
 public:
  ImageEncoder(ParameterList& specs, const Config& c) {
    for (std::int64_t i = 0; i < c.image_layers; ++i)
      specs.list.push_back({name_of(i), {c.master, {c.channels()}}, {Initialiser::Kind::normal, 1}, false});
  }

  // image [batch, colours, size, size] -> latents [batch, patches, channels] that the backbone learns
  Tensor encode(const Config& c, const Parameters& p, Tensor image, std::int64_t backbone) const {
    const std::int64_t pool = kPool * (c.backbones - backbone), side = c.side(backbone);
    const Tensor means = avg_pool2d(image, pool, pool);
    const Tensor cut = reshape(means, {image.size(0), kColours, side, c.places(), side, c.places()});
    Tensor x = reshape(permute(cut, {0, 2, 4, 1, 3, 5}), {image.size(0), c.patches(backbone), c.channels()});
    for (std::int64_t i = 0; i < c.image_layers; ++i) x = reflect(p, x, i);
    return x;
  }

  // The last backbone's latents.
  Tensor decode(const Config& c, const Parameters& p, Tensor x) const {
    for (std::int64_t i = c.image_layers; i-- > 0;) x = reflect(p, x, i);
    const std::int64_t side = c.side(c.backbones - 1);
    const Tensor cut = reshape(x, {x.size(0), side, side, kColours, c.places(), c.places()});
    const Tensor means = reshape(permute(cut, {0, 3, 1, 4, 2, 5}), {x.size(0), kColours, c.image / kPool, c.image / kPool});
    return interpolate(means, {c.image, c.image});
  }

 private:
  static std::string name_of(std::int64_t i) { return concat("image.reflection.", i); }

  static Tensor reflect(const Parameters& p, Tensor x, std::int64_t i) {
    const Origin origin(name_of(i));
    const Tensor normal = p[name_of(i)];
    const Tensor along = sum(x * normal, {2}, true) * 2.0 / sum(normal * normal);
    return x - along * normal;
  }
};

// A transformer's layer whose norms are shifted and scaled, and whose results are scaled, as the condition says.
class DiffusionLayer {
 public:
  DiffusionLayer(ParameterList& specs, std::string path, const Config& c)
      : path_(std::move(path)),
        modulation_(specs, path_ + ".modulation", {c.width, kModulations * c.width, {{"embed"}, {}}}, 0.02),
        qkv_(dense(specs, path_ + ".attn.qkv", {c.width, 3 * c.width, {{"embed"}, {"heads", 3, c.heads}}})),
        out_(dense(specs, path_ + ".attn.out", {c.width, c.width, {{"heads", 1, c.heads}, {"embed"}}})),
        up_(dense(specs, path_ + ".up", {c.width, 4 * c.width, {{"embed"}, {"mlp"}}})),
        down_(dense(specs, path_ + ".down", {4 * c.width, c.width, {{"mlp"}, {"embed"}}})) {}

  // x [batch, patches, width], condition [batch, width]
  Tensor operator()(const Config& c, const Parameters& p, Tensor x, Tensor condition) const {
    const Origin origin(path_);
    const std::vector<Tensor> m = split(unsqueeze(modulation_(p, condition), 1), c.width, 2);
    const Tensor mixed = out_(p, self_attention(qkv_(p, normed(x, m[0], m[1])), c.heads, false));
    x = x + (m[2] + 1.0) * mixed;
    return x + (m[5] + 1.0) * down_(p, gelu(up_(p, normed(x, m[3], m[4]))));
  }

 private:
  static Tensor normed(Tensor x, Tensor shift, Tensor scale) { return layer_norm(x, {}, {}) * (scale + 1.0) + shift; }

  std::string path_;
  nn::Linear modulation_, qkv_, out_, up_, down_;
};

// Predicts the noise in latents, of the noise's level and what the text encoder gives. It is a share of the latents, and what the layers
// add to that: so they need not carry through all that they read, whose size the norms take away (v of Salimans & Ho, 2202.00512).
class Backbone {
 public:
  Backbone(ParameterList& specs, const Config& c, std::int64_t number)
      : number_(number),
        in_(dense(specs, path("in"), {(c.self_conditioning > 0 ? 2 : number + 1) * c.channels(), c.width, {{}, {"embed"}}})),
        position_(specs, path("position"), {c.patches(number), c.width, {"position"}, {"embed"}}, 0.1),
        time_(dense(specs, path("time.in"), {c.width, c.width})),
        time_out_(dense(specs, path("time.out"), {c.width, c.width})),
        text_(dense(specs, path("condition"), {c.text_width, c.width})) {
    for (std::int64_t i = 0; i < c.layers; ++i) layers_.emplace_back(specs, path(concat("layer.", i)), c);
    norm_.emplace(specs, path("norm"), c.width, 1e-5, DimName{"embed"});
    out_.emplace(dense(specs, path("out"), {c.width, c.channels(), {{"embed"}, {}}}));
  }

  // `read`: the noisy latents and behind them, along the channels, the first backbone's enlarged, of the second, or the estimate.
  Tensor operator()(const Config& c, const Parameters& p, std::int64_t way, Tensor noisy, Tensor read, Tensor level, Tensor text) const {
    Tensor x, condition;
    for (std::int64_t i = 0; i < c.layers; ++i) {
      const Stage stage(c.layer_stage(way, i));
      if (i == 0) {
        x = in_(p, to(read, c.compute)) + to(p[position_.at("weight")], c.compute);
        condition = silu(time_out_(p, silu(time_(p, waves(c, level)))) + text_(p, text));
      }
      x = layers_[static_cast<std::size_t>(i)](c, p, x, condition);
    }
    const Stage stage(c.last_stage(way));
    const Shares shares = shares_of(c, level);
    return shares.noise * noisy + shares.latents * to((*out_)(p, (*norm_)(p, x)), c.master);
  }

 private:
  // level i64 [batch] -> sines and cosines [batch, width]
  static Tensor waves(const Config& c, Tensor level) {
    const std::int64_t half = c.width / 2;
    const Tensor rates = exp(arange(level, half, c.master) * (-std::log(kLongestPeriod) / static_cast<double>(half)));
    const Tensor time = reshape(to(level, c.master) * (kTimes / static_cast<double>(c.levels)), {-1, 1});
    const Tensor angles = time * reshape(rates, {1, -1});
    return to(cat({sin(angles), cos(angles)}, 1), c.compute);
  }

  std::string path(const std::string& name) const { return number_ == 0 ? name : "fine." + name; }

  std::int64_t number_;  // of the backbone
  nn::Linear in_;
  nn::Embedding position_;
  nn::Linear time_, time_out_, text_;
  std::vector<DiffusionLayer> layers_;
  std::optional<nn::LayerNorm> norm_;
  std::optional<nn::Linear> out_;
};

class LatentDiffusion : public Model {
 public:
  explicit LatentDiffusion(const ModelOptions& options)
      : specs_(options.master()), c_(read(options)), text_(specs_, c_), image_(specs_, c_) {
    for (ParameterSpec& spec : specs_.list) spec.trained = false;
    for (std::int64_t b = 0; b < c_.backbones; ++b) backbones_.emplace_back(specs_, c_, b);
  }

  std::vector<ParameterSpec> parameters() const override { return specs_.list; }

  // The level of the noise and the noise are drawn for each sample, and so are whether its caption says nothing and whether the backbone
  // reads its own estimate.
  std::vector<DataPort> data(std::int64_t) const override {
    std::vector<DataPort> ports = image_ports(c_.image, c_.classes, c_.master);
    ports.push_back({.name = "level", .type = {DType::i64, {}}, .kind = DataPort::Kind::indices, .below = c_.levels, .of = {}});
    ports.push_back({.name = "noise", .type = latents(), .kind = DataPort::Kind::normal, .below = 0, .of = {}});
    const auto add_share = [&](const char* name) {
      ports.push_back({.name = name, .type = {c_.master, {}}, .kind = DataPort::Kind::uniform, .below = 0, .of = {}});
    };
    add_share("keep");
    if (c_.self_conditioning > 0) add_share("self");
    return ports;
  }

  Tensor loss(const Parameters& p, const Batch& batch) const override {
    const Tensor text = text_(c_, p, [&] { return kept_label(batch); });
    const Tensor level = batch["level"];
    std::vector<Tensor> clean, losses;
    for (std::int64_t b = 0; b < c_.backbones; ++b) {
      const std::int64_t way = c_.ways() - c_.backbones + b;
      const Tensor noise = part(batch["noise"], b, c_.last_stage(way));
      Tensor noisy, read;
      {
        const Stage stage(c_.image_stage());
        const Shares shares = shares_of(c_, level);
        clean.push_back(image_.encode(c_, p, batch["image"], b));
        noisy = shares.latents * clean.back() + shares.noise * part(batch["noise"], b, c_.image_stage());
        read = b == 0 ? noisy : cat({noisy, enlarged(clean[0], c_.side(0))}, 2);
      }
      if (c_.self_conditioning > 0) read = read_twice(p, batch, noisy, text);
      const Tensor found = backbones_[static_cast<std::size_t>(b)](c_, p, way, noisy, read, level, text);
      const Stage stage(c_.last_stage(way));
      losses.push_back(mse_loss(found, noise) / static_cast<double>(c_.patches(b) * c_.channels()));
    }
    // A sum of terms of two stages, which each add up their own (stage/cut.h).
    const Stage stage(c_.last_stage(c_.ways() - 1));
    return add_n(losses);
  }

  std::optional<PictureSteps> picture_steps() const override {
    return PictureSteps{.latents = latents(), .classes = c_.classes, .levels = c_.levels, .size = c_.image};
  }

  // A step of DDIM (Song et al., 2010.02502) with classifier-free guidance (Ho & Salimans, 2207.12598): the noise is guessed with the
  // caption and with the one that says nothing, and the difference is followed further.
  Tensor next_latents(const Parameters& p, const Batch& batch) const override {
    const Tensor x = batch["latents"], label = batch["label"], level = batch["level"];
    const auto labels = [&] { return cat({label, full_like(label, static_cast<double>(c_.classes))}, 0); };
    const Tensor text = text_(c_, p, labels);
    const Stage stage(c_.image_stage());
    const Shares now = shares_of(c_, level), then = shares_of(c_, batch["next"]);
    Tensor clean;
    std::vector<Tensor> next;
    for (std::int64_t b = 0; b < c_.backbones; ++b) {
      const Tensor own = part(x, b, c_.image_stage()), twice = cat({own, own}, 0);
      const Tensor first = b == 0 ? Tensor() : enlarged(clean, c_.side(0));
      const Tensor read = b == 0 ? twice : cat({twice, cat({first, first}, 0)}, 2);
      const auto noise_of = [&](std::int64_t way, Tensor all) {
        const Tensor found = backbones_[static_cast<std::size_t>(b)](c_, p, way, twice, all, cat({level, level}, 0), text);
        const Tensor with = slice(found, 0, 0, 1), without = slice(found, 0, 1, 2);
        return without + (with - without) * reshape(batch["guidance"], {1, 1, 1});
      };
      if (c_.self_conditioning == 0) {
        clean = clean_of(own, noise_of(b, read), now);
      } else {
        const Tensor first_guess = clean_of(own, noise_of(0, cat({twice, full_like(twice, 0)}, 2)), now);
        clean = clean_of(own, noise_of(1, cat({twice, cat({first_guess, first_guess}, 0)}, 2)), now);
      }
      next.push_back(then.latents * clean + then.noise * ((own - now.latents * clean) / now.noise));
    }
    return next.size() == 1 ? next[0] : cat(next, 1);
  }

  Tensor picture(const Parameters& p, Tensor latents) const override {
    const Stage stage(c_.image_stage());
    return clamp(image_.decode(c_, p, part(latents, c_.backbones - 1, c_.image_stage())) / kImageSpread + 0.5, 0, 1);
  }

 private:
  // The latents that are left of noisy ones without this noise.
  static Tensor clean_of(Tensor noisy, Tensor noise, const Shares& shares) {
    return clamp((noisy - shares.noise * noise) / shares.latents, -kMostLatent, kMostLatent);
  }

  // The noisy latents, and behind them what the backbone makes of these alone: in training nothing of some samples.
  Tensor read_twice(const Parameters& p, const Batch& batch, Tensor noisy, Tensor text) const {
    Tensor alone, none;
    {
      const Stage stage(c_.image_stage());
      none = full_like(noisy, 0);
      alone = cat({noisy, none}, 2);
    }
    const Tensor found = backbones_[0](c_, p, 0, noisy, alone, batch["level"], text);
    Tensor estimate;
    {
      const Stage stage(c_.last_stage(0));
      estimate = detach(clean_of(noisy, found, shares_of(c_, batch["level"])));
    }
    const Stage stage(c_.layer_stage(1, 0));
    if (batch.training && c_.self_conditioning < 1)
      estimate = where(lt(reshape(batch["self"], {-1, 1, 1}), c_.self_conditioning), estimate, none);
    return cat({noisy, estimate}, 2);
  }

  // All backbones', one behind the other.
  TensorType latents() const { return {c_.master, {c_.begin(c_.backbones), c_.channels()}}; }

  // A backbone's part of all latents.
  Tensor part(Tensor all, std::int64_t backbone, const std::string& at) const {
    if (c_.backbones == 1) return all;
    const Stage stage(at);
    return slice(all, 1, c_.begin(backbone), c_.begin(backbone + 1));
  }

  // Each of side x side patches four times, in twice as many rows and columns.
  static Tensor enlarged(Tensor x, std::int64_t side) {
    const std::int64_t batch = x.size(0), channels = x.size(2);
    const Tensor apart = expand(reshape(x, {batch, side, 1, side, 1, channels}), {batch, side, 2, side, 2, channels});
    return reshape(apart, {batch, 4 * side * side, channels});
  }

  Tensor kept_label(const Batch& batch) const {
    const Tensor label = batch["label"];
    if (!batch.training) return label;
    return where(lt(batch["keep"], c_.condition_dropout), full_like(label, static_cast<double>(c_.classes)), label);
  }

  ParameterList specs_;
  Config c_;
  TextEncoder text_;
  ImageEncoder image_;
  std::vector<Backbone> backbones_;
};

}  // namespace

ModelEntry latent_diffusion_model() {
  return {.summary = "a diffusion transformer over latents of images, with frozen encoders of images and captions",
          .numbers = {{"classes", 4},
                      {"image", 32},
                      {"patch", 8},
                      {"caption", 4},
                      {"text_layers", 2},
                      {"text_width", 32},
                      {"image_layers", 4},
                      {"backbones", 1},
                      {"layers", 4},
                      {"width", 64},
                      {"heads", 4},
                      {"noise_levels", 100},
                      {"condition_dropout", 0.1},
                      {"self_conditioning", 0},
                      {"frozen_stages", 0}},
          .words = {{"stage_layers", "even"}},
          .make = [](const ModelOptions& options) { return std::make_unique<LatentDiffusion>(options); }};
}

}  // namespace penstock
