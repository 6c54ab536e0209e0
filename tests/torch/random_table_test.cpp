// Random valid tables over random stage DAGs always finish with the sequential result: replicas, weights' gradients on other actors, and
// backward split, forwards recomputed and residuals offloaded for some micro-batches only included.
#include <gtest/gtest.h>

#include "base/text.h"
#include "lower/lower.h"
#include "runtime/check.h"
#include "runtime/thread_cluster.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "torch/executor.h"
#include "trace/step.h"

namespace penstock {
namespace {

constexpr std::int64_t kWidth = 8, kVocabulary = 12;
constexpr int kContext = 4;

// Every stage is a layer over the sum of what its predecessors give; the last one is the head.
class DagModel : public Model {
 public:
  DagModel(StageShape shape, bool marked) : shape_(std::move(shape)), marked_(marked) {
    const auto f64 = DType::f64;
    embedding_.emplace(specs_, "embedding", kVocabulary, kWidth, 0.5, f64);
    for (std::size_t s = 0; s < shape_.predecessors.size(); ++s)
      layers_.emplace_back(specs_, concat("layer.", s), kWidth, kWidth, 0.5, true, f64);
    head_.emplace(specs_, "head", kWidth, kVocabulary, 0.5, true, f64);
  }

  std::vector<ParameterSpec> parameters() const override { return specs_; }

  Tensor loss(const Parameters& p, const Batch& batch) const override {
    const Tensor flat = reshape(logits(p, batch), {-1, kVocabulary});
    const std::optional<Stage> mark = stage(layers_.size() - 1);
    return cross_entropy(flat, reshape(batch.targets, {-1}));
  }

  Tensor logits(const Parameters& p, const Batch& batch) const override {
    std::vector<Tensor> outputs;
    for (std::size_t s = 0; s < layers_.size(); ++s) {
      const std::optional<Stage> mark = stage(s);
      std::vector<Tensor> inputs;
      for (std::int32_t from : shape_.predecessors[s]) inputs.push_back(outputs[static_cast<std::size_t>(from)]);
      const Tensor x = inputs.empty() ? (*embedding_)(p, batch.tokens) : add_n(inputs);
      outputs.push_back(tanh(layers_[s](p, tanh(x))));  // what the inner one gives only the stage's own backward reads
    }
    const std::optional<Stage> mark = stage(layers_.size() - 1);
    return (*head_)(p, outputs.back());
  }

 private:
  std::optional<Stage> stage(std::size_t s) const {
    return marked_ ? std::optional<Stage>(std::in_place, std::to_string(s)) : std::nullopt;
  }

  StageShape shape_;
  bool marked_;
  std::vector<ParameterSpec> specs_;
  std::optional<nn::Embedding> embedding_;
  std::vector<nn::Linear> layers_;
  std::optional<nn::Linear> head_;
};

// The last stage reads what nobody else does, so that the loss depends on every stage.
StageShape with_one_end(StageShape shape) {
  const std::size_t last = shape.predecessors.size() - 1;
  std::vector<bool> read(last + 1);
  for (const auto& list : shape.predecessors)
    for (std::int32_t from : list) read[static_cast<std::size_t>(from)] = true;
  for (std::size_t s = 0; s < last; ++s)
    if (!read[s]) shape.predecessors[last].push_back(static_cast<std::int32_t>(s));
  std::sort(shape.predecessors[last].begin(), shape.predecessors[last].end());
  return shape;
}

StepGradients run(const Model& model, const Schedule& schedule, int microbatches, int batch, std::vector<std::string> recompute = {}) {
  LowerOptions options;
  options.recompute = std::move(recompute);
  const Program program = lower(gradient_step(model, batch, kContext, microbatches), schedule, options);
  const auto cluster = make_thread_cluster(static_cast<int>(program.devices.size()), torch_executor_factory(),
                                           std::make_shared<RandomBatch>(text_ports(kContext), kVocabulary));
  cluster->load(program);
  StateSource state;
  state.parameters = model.parameters();
  cluster->set_state(state);
  return step_gradients(program, *cluster, model.parameters(), 0);
}

TEST(RandomTables, FinishWithTheSequentialResult) {
  const std::uint64_t seed = 20240611;
  int offloaded = 0;
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(concat("seed ", seed, " round ", round));
    test::Random random(seed + static_cast<std::uint64_t>(round));
    const StageShape shape = with_one_end(test::random_shape(random));
    const int actors = test::draw(random, 1, 4), microbatches = test::draw(random, 1, 5);
    test::RandomScheduleOptions options;
    options.mixed_split = test::coin(random, 0.3);
    options.foreign_weight = test::coin(random, 0.5) ? 0.3 : 0;
    options.replica = test::coin(random, 0.5) ? 0.3 : 0;
    Schedule schedule = test::random_schedule(random, shape, actors, microbatches, options);

    std::vector<std::string> recompute;
    if (test::coin(random, 0.3)) {
      recompute = {"0"};
    } else if (test::coin(random, 0.5)) {
      schedule = test::with_recomputation(random, schedule, 0.5);
    }
    if (recompute.empty() && test::coin(random, 0.6)) {
      schedule = test::with_host_copies(random, schedule, 0.5);
      offloaded += print(schedule).find("OFFLOAD") != std::string::npos;
    }
    const StepGradients found = run(DagModel(shape, true), schedule, microbatches, 2 * microbatches, recompute);
    const StepGradients expected =
        run(DagModel(shape, false), make_schedule("sequential", {.actors = 1, .microbatches = 1}), 1, 2 * microbatches);
    const Comparison comparison = compare(found, expected);
    EXPECT_LE(comparison.loss_difference, 1e-10) << print(schedule);
    EXPECT_LE(comparison.gradient_difference, 1e-10) << comparison.worst << "\n" << print(schedule);
  }
  EXPECT_GE(offloaded, 5);
}

}  // namespace
}  // namespace penstock
