// SPDX-License-Identifier: Apache-2.0
// VGG (Simonyan & Zisserman 2015) without dropout. Parameter names are those of torchvision's vgg11, 13 and 16.
#include <cmath>
#include <optional>

#include "base/text.h"
#include "models/layers.h"
#include "models/registry.h"
#include "penstock/error.h"

namespace penstock {

namespace {

struct Config {
  std::vector<std::int64_t> convolutions;  // number of convolutions in each group; a pooling ends a group
  std::int64_t width, image, classes, stages;
  DType compute, master;

  std::int64_t depth() const {
    std::int64_t layers = 3;  // the three fully connected ones
    for (std::int64_t n : convolutions) layers += n;
    return layers;
  }
  std::int64_t channels(std::size_t group) const { return width * std::min<std::int64_t>(8, std::int64_t{1} << group); }
};

std::vector<std::int64_t> groups_of(std::int64_t depth) {
  if (depth == 11) return {1, 1, 2, 2, 2};
  if (depth == 13) return {2, 2, 2, 2, 2};
  if (depth == 16) return {2, 2, 3, 3, 3};
  throw Error(concat("model option \"depth\" is ", depth), {}, "use 11, 13 or 16");
}

Config read(const ModelOptions& options) {
  const Config c{groups_of(options.size("depth")),
                 options.size("width"),
                 options.size("image"),
                 options.size("classes"),
                 options.stages,
                 options.compute,
                 options.master()};
  if (c.image % 32 != 0) throw Error(concat("image size ", c.image, " is not divisible by 32"), {}, "five poolings halve it");
  check_stages("vgg", options, c.depth(), concat(c.depth(), " layers"));
  return c;
}

// A 3x3 convolution, a relu and, at the end of a group, a pooling. `number` is the convolution's place in torchvision's list of all these
// layers.
class Feature {
 public:
  Feature(ParameterList& specs, std::int64_t number, std::int64_t in, std::int64_t out, bool pooled)
      : path_(concat("features.", number)),
        convolution_(specs, path_, {.in = in, .out = out, .kernel = 3, .padding = 1}, std::sqrt(2 / (9.0 * static_cast<double>(out)))),
        pooled_(pooled) {}

  Tensor operator()(const Parameters& p, Tensor x) const {
    const Origin origin(path_);
    x = relu(convolution_(p, x));
    return pooled_ ? max_pool2d(x, 2, 2) : x;
  }

 private:
  std::string path_;
  nn::Conv2d convolution_;
  bool pooled_;
};

// Initialised after He et al.: torchvision's deviation of 0.01 suits the 4096 inputs of full size only.
nn::Linear classifier_layer(ParameterList& specs, std::int64_t number, const nn::LinearShape& shape) {
  return {specs, concat("classifier.", number), shape, std::sqrt(2 / static_cast<double>(shape.in))};
}

class Vgg : public Model {
 public:
  explicit Vgg(const ModelOptions& options) : specs_(options.master()), c_(read(options)) {
    std::int64_t number = 0, in = kColours;
    for (std::size_t group = 0; group < c_.convolutions.size(); ++group) {
      for (std::int64_t i = 0; i < c_.convolutions[group]; ++i) {
        features_.emplace_back(specs_, number, in, c_.channels(group), i + 1 == c_.convolutions[group]);
        in = c_.channels(group);
        number += 2;
      }
      ++number;
    }
    const std::int64_t left = c_.image / 32, hidden = 64 * c_.width;
    classifier_.emplace_back(classifier_layer(specs_, 0, {in * left * left, hidden, {{}, {"mlp"}}}));
    classifier_.emplace_back(classifier_layer(specs_, 3, {hidden, hidden, {{"mlp"}, {"embed"}}}));
    classifier_.emplace_back(classifier_layer(specs_, 6, {hidden, c_.classes, {{"embed"}, {}}}));
  }

  std::vector<ParameterSpec> parameters() const override { return specs_.list; }

  std::vector<DataPort> data(std::int64_t) const override { return image_ports(c_.image, c_.classes, c_.master); }

  Tensor loss(const Parameters& p, const Batch& batch) const override {
    const Tensor classes = classify(p, to(batch["image"], c_.compute));
    const Stage stage(stage_name(c_.stages - 1));
    return token_loss(classes, batch["label"]);
  }

 private:
  std::string stage_of(std::size_t layer) const { return stage_name(spread(static_cast<std::int64_t>(layer), c_.depth(), c_.stages)); }

  Tensor classify(const Parameters& p, Tensor x) const {
    for (std::size_t i = 0; i < features_.size(); ++i) {
      const Stage stage(stage_of(i));
      x = features_[i](p, x);
    }
    for (std::size_t i = 0; i < classifier_.size(); ++i) {
      const Stage stage(stage_of(features_.size() + i));
      const Origin origin(classifier_[i].path());
      x = classifier_[i](p, i == 0 ? reshape(x, {x.size(0), -1}) : relu(x));
    }
    return x;
  }

  ParameterList specs_;
  Config c_;
  std::vector<Feature> features_;
  std::vector<nn::Linear> classifier_;
};

}  // namespace

ModelEntry vgg_model() {
  return {.summary = "VGG of depth 11, 13 or 16 on synthetic images; 16, width 64, image 224 and 1000 classes are the paper's",
          .numbers = {{"depth", 11}, {"width", 8}, {"image", 32}, {"classes", 10}},
          .make = [](const ModelOptions& options) { return std::make_unique<Vgg>(options); }};
}

}  // namespace penstock
