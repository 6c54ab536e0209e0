// SPDX-License-Identifier: Apache-2.0
// CANDLE-Uno in the shape of GraphPipe's evaluation (Jeon et al., ASPLOS 2025, appendix A.2): dense branches over features of their own,
// concatenated, and one output, the response of a cell line to a drug. The features and the response are synthetic.
//
//   input.0 -> branch.0.layer.0 -> branch.0.layer.1 -> ... -+
//   input.1 -> branch.1.layer.0 -> branch.1.layer.1 -> ... -+-> head -> response
//   ...                                                    -+
#include "base/text.h"
#include "models/layers.h"
#include "models/registry.h"

namespace penstock {

namespace {

class CandleUno : public Model {
 public:
  explicit CandleUno(const ModelOptions& options)
      : specs_(options.master()),
        width_(options.size("width")),
        compute_(options.compute),
        master_(options.master()),
        stages_{options.size("branches"), options.size("layers"), options.stages} {
    check_stages("candle-uno", options, stages_.most(), concat(stages_.branches, " branches of ", stages_.layers, " layers"));
    for (std::int64_t branch = 0; branch < stages_.branches; ++branch)
      branches_.emplace_back(specs_, concat("branch.", branch, ".layer."), stages_.layers, width_);
    head_.emplace(last_layer(specs_, "head", {stages_.branches * width_, 1, {{"embed", stages_.branches}, {}}}));
  }

  std::vector<ParameterSpec> parameters() const override { return specs_.list; }

  std::vector<DataPort> data(std::int64_t) const override {
    DataPort target{"target", {master_, {1}}, DataPort::Kind::response, 0, {}};
    std::vector<DataPort> ports;
    for (std::int64_t branch = 0; branch < stages_.branches; ++branch) {
      target.of.push_back(input(branch));
      ports.push_back({input(branch), {master_, {width_}}, DataPort::Kind::normal, 0, {}});
    }
    ports.push_back(target);
    return ports;
  }

  Tensor loss(const Parameters& p, const Batch& batch) const override {
    std::vector<Tensor> ends;
    for (std::int64_t branch = 0; branch < stages_.branches; ++branch)
      ends.push_back(branches_[static_cast<std::size_t>(branch)](p, batch[input(branch)], compute_, stages_, branch));
    const Stage stage(stages_.join());
    const Origin origin("head");
    const Tensor error = to((*head_)(p, cat(ends, 1)), master_) - batch["target"];
    return sum(error * error);
  }

 private:
  static std::string input(std::int64_t branch) { return concat("input.", branch); }

  ParameterList specs_;
  std::int64_t width_;
  DType compute_, master_;
  BranchStages stages_;
  std::vector<DenseBranch> branches_;
  std::optional<nn::Linear> head_;
};

}  // namespace

ModelEntry candle_uno_model() {
  return {.summary = "CANDLE-Uno: parallel dense branches joined by one output, on synthetic data",
          .numbers = {{"branches", 7}, {"layers", 4}, {"width", 32}},
          .make = [](const ModelOptions& options) { return std::make_unique<CandleUno>(options); }};
}

}  // namespace penstock
