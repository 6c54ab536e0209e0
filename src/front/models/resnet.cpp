// SPDX-License-Identifier: Apache-2.0
// ResNet of bottleneck blocks (He et al. 2016, with the stride in the 3x3 convolution). Parameter names are torchvision's. A batch norm
// takes its statistics from the micro-batch.
#include <algorithm>
#include <cmath>
#include <optional>

#include "base/text.h"
#include "models/layers.h"
#include "models/registry.h"
#include "penstock/error.h"

namespace penstock {

namespace {

constexpr std::int64_t kExpansion = 4;  // a block's output channels over its inner ones

struct Config {
  std::vector<std::int64_t> blocks;  // number of blocks in each group
  std::int64_t width, image, classes, stages;
  DType compute, master;

  std::int64_t all() const {
    std::int64_t sum = 0;
    for (std::int64_t n : blocks) sum += n;
    return sum;
  }
};

// Reads "3,4,6,3".
std::vector<std::int64_t> blocks_of(const std::string& text) {
  std::vector<std::int64_t> blocks = {0};
  for (const char c : text) {
    if (c == ',') {
      blocks.push_back(0);
    } else if (c >= '0' && c <= '9' && blocks.back() < 1000) {
      blocks.back() = 10 * blocks.back() + (c - '0');
    } else {
      blocks.back() = 0;
      break;
    }
  }
  if (std::ranges::count(blocks, 0) == 0) return blocks;
  throw Error(concat("model option \"blocks\" is ", quote(text)), {}, "give the blocks of each group, as in 3,4,6,3 (ResNet-50)");
}

Config read(const ModelOptions& options) {
  const Config c{blocks_of(options.word("blocks")),
                 options.size("width"),
                 options.size("image"),
                 options.size("classes"),
                 options.stages,
                 options.compute,
                 options.master()};
  check_stages("resnet", options, c.all(), concat(c.all(), c.all() == 1 ? " block" : " blocks"));
  return c;
}

// A convolution followed by its batch norm.
class Normed {
 public:
  Normed(ParameterList& specs, std::string convolution, std::string norm, const nn::Conv2dShape& shape)
      : convolution_(specs, std::move(convolution), shape, std::sqrt(2 / static_cast<double>(shape.out * shape.kernel * shape.kernel))),
        norm_(specs, std::move(norm), shape.out) {}

  Tensor operator()(const Parameters& p, Tensor x) const { return norm_(p, convolution_(p, x)); }

 private:
  nn::Conv2d convolution_;
  nn::BatchNorm2d norm_;
};

class Bottleneck {
 public:
  Bottleneck(ParameterList& specs, std::string path, std::int64_t in, std::int64_t width, std::int64_t stride)
      : path_(std::move(path)),
        reduce_(specs, path_ + ".conv1", path_ + ".bn1", {.in = in, .out = width, .kernel = 1, .bias = false}),
        look_(specs, path_ + ".conv2", path_ + ".bn2",
              {.in = width, .out = width, .kernel = 3, .stride = stride, .padding = 1, .bias = false}),
        widen_(specs, path_ + ".conv3", path_ + ".bn3", {.in = width, .out = kExpansion * width, .kernel = 1, .bias = false}) {
    if (stride != 1 || in != kExpansion * width)
      shortcut_.emplace(specs, path_ + ".downsample.0", path_ + ".downsample.1",
                        nn::Conv2dShape{.in = in, .out = kExpansion * width, .kernel = 1, .stride = stride, .bias = false});
  }

  Tensor operator()(const Parameters& p, Tensor x) const {
    const Origin origin(path_);
    const Tensor y = widen_(p, relu(look_(p, relu(reduce_(p, x)))));
    return relu(y + (shortcut_ ? (*shortcut_)(p, x) : x));
  }

 private:
  std::string path_;
  Normed reduce_, look_, widen_;
  std::optional<Normed> shortcut_;
};

class Resnet : public Model {
 public:
  explicit Resnet(const ModelOptions& options)
      : specs_(options.master()),
        c_(read(options)),
        stem_(specs_, "conv1", "bn1", {.in = kColours, .out = c_.width, .kernel = 7, .stride = 2, .padding = 3, .bias = false}) {
    std::int64_t in = c_.width, width = c_.width;
    for (std::size_t group = 0; group < c_.blocks.size(); ++group, width *= 2) {
      for (std::int64_t i = 0; i < c_.blocks[group]; ++i) {
        blocks_.emplace_back(specs_, concat("layer", group + 1, ".", i), in, width, i == 0 && group > 0 ? 2 : 1);
        in = kExpansion * width;
      }
    }
    head_.emplace(specs_, "fc", nn::LinearShape{in, c_.classes}, 1 / std::sqrt(3.0 * static_cast<double>(in)));
  }

  std::vector<ParameterSpec> parameters() const override { return specs_.list; }
  std::vector<DataPort> data(std::int64_t) const override { return image_ports(c_.image, c_.classes, c_.master); }
  bool equal_batches() const override { return true; }

  Tensor loss(const Parameters& p, const Batch& batch) const override {
    Tensor x;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const Stage stage(stage_name(spread(static_cast<std::int64_t>(i), std::ssize(blocks_), c_.stages)));
      if (i == 0) x = enter(p, to(batch["image"], c_.compute));
      x = blocks_[i](p, x);
    }
    const Stage stage(stage_name(c_.stages - 1));
    const Origin origin("fc");
    return token_loss((*head_)(p, mean(x, {2, 3})), batch["label"]);
  }

 private:
  Tensor enter(const Parameters& p, Tensor image) const {
    const Origin origin("conv1");
    return max_pool2d(relu(stem_(p, image)), 3, 2, 1);
  }

  ParameterList specs_;
  Config c_;
  Normed stem_;
  std::vector<Bottleneck> blocks_;
  std::optional<nn::Linear> head_;
};

}  // namespace

ModelEntry resnet_model() {
  return {.summary = "ResNet of bottlenecks on synthetic images; blocks 3,4,6,3, width 64, image 224 and 1000 classes are ResNet-50",
          .numbers = {{"width", 8}, {"image", 64}, {"classes", 10}},
          .words = {{"blocks", "1,1,1,1"}},
          .make = [](const ModelOptions& options) { return std::make_unique<Resnet>(options); }};
}

}  // namespace penstock
