// SPDX-License-Identifier: Apache-2.0
// DLRM (Naumov et al. 2019) in the shape of GraphPipe's evaluation (Jeon et al., ASPLOS 2025, appendix A.2): dense branches and as many
// embedding branches, whose bags are concatenated, then a perceptron whose output says whether the user clicks. All data is synthetic.
//
//   dense.0  -> bot_l.0.0 -> bot_l.0.1 -> ... -+
//   sparse.0 -> emb_l.0 ----------------------+-> top_l.0 -> top_l.1 -> ... -> click
//   ...                                       -+
#include "base/text.h"
#include "models/layers.h"
#include "models/registry.h"

namespace penstock {

namespace {

struct Config {
  std::int64_t width, rows, embedding, bag, post;
  DType compute, master;
};

Config read(const ModelOptions& options) {
  return {options.size("width"), options.size("rows"), options.size("embedding"), options.size("bag"),
          options.size("post"),  options.compute,      options.master()};
}

class Dlrm : public Model {
 public:
  explicit Dlrm(const ModelOptions& options)
      : specs_(options.master()), c_(read(options)), stages_{options.size("branches"), options.size("layers"), options.stages} {
    check_stages("dlrm", options, stages_.most(), concat(stages_.branches, " dense branches of ", stages_.layers, " layers"));
    for (std::int64_t branch = 0; branch < stages_.branches; ++branch) {
      tables_.emplace_back(specs_, concat("emb_l.", branch), nn::EmbeddingShape{c_.rows, c_.embedding, {"rows"}, {"columns"}}, 1);
      dense_.emplace_back(specs_, concat("bot_l.", branch, "."), stages_.layers, c_.width);
    }
    std::int64_t in = stages_.branches * (c_.bag * c_.embedding + c_.width);
    // What the first of the last layers reads is put together of parts that differ, so this dim has no name.
    for (std::int64_t layer = 0; layer < c_.post; ++layer, in = c_.width) {
      nn::LayerDims dims = layer_dims(layer, c_.post);
      if (layer == 0) dims.in = {};
      post_.push_back(relu_layer(specs_, concat("top_l.", layer), {in, c_.width, dims}));
    }
    post_.push_back(last_layer(specs_, concat("top_l.", c_.post), {in, 1, {{"embed"}, {}}}));
  }

  std::vector<ParameterSpec> parameters() const override { return specs_.list; }

  std::vector<DataPort> data(std::int64_t) const override {
    DataPort click{"click", {c_.master, {1}}, DataPort::Kind::labels, 2, {}};
    std::vector<DataPort> ports;
    for (std::int64_t branch = 0; branch < stages_.branches; ++branch) {
      ports.push_back({concat("dense.", branch), {c_.master, {c_.width}}, DataPort::Kind::normal, 0, {}});
      ports.push_back({concat("sparse.", branch), {DType::i64, {c_.bag}}, DataPort::Kind::indices, c_.rows, {}});
    }
    for (const DataPort& port : ports) click.of.push_back(port.name);
    ports.push_back(click);
    return ports;
  }

  Tensor loss(const Parameters& p, const Batch& batch) const override {
    std::vector<Tensor> ends;
    for (std::int64_t branch = 0; branch < stages_.branches; ++branch) {
      ends.push_back(look_up(p, batch, branch));
      ends.push_back(dense_[static_cast<std::size_t>(branch)](p, batch[concat("dense.", branch)], c_.compute, stages_, branch));
    }
    const Stage stage(stages_.join());
    Tensor x = cat(ends, 1);
    for (const nn::Linear& layer : post_) {
      const Origin origin(layer.path());
      x = layer(p, &layer == &post_.front() ? x : relu(x));
    }
    const Origin origin("loss");
    return binary_cross_entropy_with_logits(to(x, c_.master), batch["click"]);
  }

 private:
  // The rows that a bag names, concatenated.
  Tensor look_up(const Parameters& p, const Batch& batch, std::int64_t branch) const {
    const Stage stage(stages_.of(branch, 0));
    const nn::Embedding& table = tables_[branch];
    const Origin origin(table.path());
    const Tensor rows = to(table(p, batch[concat("sparse.", branch)]), c_.compute);
    return reshape(rows, {rows.size(0), c_.bag * c_.embedding});
  }

  ParameterList specs_;
  Config c_;
  BranchStages stages_;  // an embedding branch has the stage of the first layer of the dense branch of its number
  std::vector<nn::Embedding> tables_;
  std::vector<DenseBranch> dense_;
  std::vector<nn::Linear> post_;
};

}  // namespace

ModelEntry dlrm_model() {
  return {.summary = "DLRM: dense branches and embedding bags joined by a perceptron, on synthetic data",
          .numbers = {{"branches", 7}, {"layers", 4}, {"width", 32}, {"rows", 100}, {"embedding", 8}, {"bag", 4}, {"post", 4}},
          .make = [](const ModelOptions& options) { return std::make_unique<Dlrm>(options); }};
}

}  // namespace penstock
