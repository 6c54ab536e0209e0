// Frozen stages in the idle time of the step before, run: the same training, whichever actor computes them.
#include <gtest/gtest.h>

#include <numeric>

#include "base/text.h"
#include "penstock/compile.h"
#include "penstock/session.h"
#include "penstock/step.h"
#include "support/random_schedule.h"

namespace penstock {
namespace {

using test::draw;
using test::Random;

// Stages 0 .. frozen-1 are layers that are not trained, one behind the other; those behind them are trained. All are h <- tanh(h W).
class PartlyFrozen : public Model {
 public:
  PartlyFrozen(int frozen, int trained) : frozen_(frozen), trained_(trained) {}

  std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> out;
    for (int s = 0; s < frozen_ + trained_; ++s) {
      ParameterSpec& spec = out.emplace_back();
      spec.name = concat("w", s);
      spec.type = {DType::f64, {kWidth, kWidth}};
      spec.trained = s >= frozen_;
    }
    return out;
  }
  std::vector<DataPort> data(std::int64_t) const override {
    return {{"x", {DType::f64, {kWidth}}, DataPort::Kind::given, 0, {}}, {"y", {DType::f64, {kWidth}}, DataPort::Kind::given, 0, {}}};
  }
  Tensor loss(const Parameters& p, const Batch& batch) const override {
    Tensor h = batch["x"];
    for (int s = 0; s < frozen_ + trained_; ++s) {
      const Stage stage(std::to_string(s));
      h = tanh(matmul(h, p[concat("w", s)]));
      if (s + 1 < frozen_ + trained_) continue;
      const Tensor off = h - batch["y"];
      return sum(off * off, {0, 1});
    }
    return h;
  }

  static constexpr std::int64_t kWidth = 3;

 private:
  int frozen_, trained_;
};

double number_of(std::size_t of, std::size_t i) {
  return static_cast<double>((7 * i + 3 * of + of * i) % 11) / 11 - 0.5;
}

HostTensor numbers(const Shape& shape, std::size_t of) {
  std::vector<double> values(static_cast<std::size_t>(shape[0] * shape[1]));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = number_of(of, i);
  return host_tensor<double>(shape, values);
}

// All ports of the program; numbers go on from `first`, whatever the steps of the program.
HostTensors batch_of(const Program& program, std::int64_t first) {
  HostTensors out;
  for (const Port& port : program.data) {
    const auto count =
        static_cast<std::size_t>(std::accumulate(port.type.shape.begin(), port.type.shape.end(), std::int64_t{1}, std::multiplies<>()));
    std::vector<double> values;
    for (std::size_t i = 0; i < count; ++i) values.push_back(number_of(port.name == "x" ? 1 : 2, static_cast<std::size_t>(first) + i));
    out[port.name] = port.type.dtype == DType::f64 ? host_tensor<double>(port.type.shape, values)
                                                   : host_tensor<std::int64_t>(port.type.shape, std::vector<std::int64_t>(count, 1));
  }
  return out;
}

struct Trained {
  std::vector<std::vector<double>> weights;
  std::vector<double> losses;
};

// Six steps of the model by the table, whose steps have two samples a micro-batch.
Trained run(int frozen, int trained, const Schedule& table, const char* optimiser = "adamw") {
  const PartlyFrozen model(frozen, trained);
  const int microbatches = table.step_microbatches(), batch = 2 * microbatches;
  OptimiserOptions options;
  options.name = optimiser;
  options.clip = 0;
  options.steps = 6;
  Session session(static_cast<int>(table.actors.size()));
  const Program program = compile(training_step(model, batch, 0, microbatches, options), table);
  session.load("train", program);
  HostTensors state;
  for (int s = 0; s < frozen + trained; ++s) state[concat("w", s)] = numbers({model.kWidth, model.kWidth}, s);
  session.set_state(state);
  Trained out;
  for (int step = 0; step < 6; step += table.steps) {
    const StepReport report = session.step("train", batch_of(program, step * batch * model.kWidth));
    for (int of = 0; of < table.steps; ++of)
      out.losses.push_back(values<double>(report.outputs.at(table.steps == 1 ? "loss" : concat("loss.", of)))[0]);
  }
  for (int s = 0; s < frozen + trained; ++s) out.weights.push_back(values<double>(session.state(concat("w", s))));
  return out;
}

void expect_near(const Trained& got, const Trained& expected, const std::string& what) {
  for (std::size_t s = 0; s < got.weights.size(); ++s)
    for (std::size_t i = 0; i < got.weights[s].size(); ++i)
      EXPECT_NEAR(got.weights[s][i], expected.weights[s][i], 1e-10) << what << ", w" << s;
  for (std::size_t k = 0; k < got.losses.size(); ++k) EXPECT_NEAR(got.losses[k], expected.losses[k], 1e-10) << what << ", step " << k;
}

Schedule one_actor(int trained, int microbatches, const std::vector<double>& frozen) {
  return make_schedule("sequential", {.actors = 1, .microbatches = microbatches, .chunks = trained, .frozen = frozen});
}

TEST(FrozenStages, TrainAsOnOneActor) {
  for (const char* schedule : {"1f1b", "zb-h1", "gpipe", "interleaved-1f1b"})
    for (const int actors : {1, 2, 3})
      for (const int window : {1, 2, 6}) {
        const int chunks = std::string(schedule) == "interleaved-1f1b" ? 2 : 1, trained = actors * chunks;
        const std::vector<double> frozen = {0.5, 1.25};
        const Schedule table =
            make_schedule(schedule, {.actors = actors, .microbatches = 6, .window = window, .chunks = chunks, .frozen = frozen});
        const Trained got = run(2, trained, table), expected = run(2, trained, one_actor(trained, 6, frozen));
        expect_near(got, expected, concat(schedule, ", ", actors, " actors, a window of ", window));
        for (int s = 0; s < 2; ++s) EXPECT_EQ(got.weights[s], values<double>(numbers({3, 3}, s))) << "w" << s;
        EXPECT_NE(got.weights[2], values<double>(numbers({3, 3}, 2)));
      }
}

// One micro-batch's frozen forwards may be anywhere.
TEST(FrozenStages, AnyActorMayComputeThem) {
  for (int seed = 1; seed <= 30; ++seed) {
    Random random(seed);
    std::vector<double> frozen(draw(random, 1, 3));
    for (double& time : frozen) time = draw(random, 1, 12) / 4.0;
    const int actors = draw(random, 1, 4), microbatches = draw(random, 1, 5), window = std::vector{1, 2, 3}[draw(random, 0, 2)];
    const Schedule table = make_schedule("1f1b", {.actors = actors, .microbatches = microbatches, .window = window, .frozen = frozen});
    const int f = static_cast<int>(frozen.size());
    expect_near(run(f, actors, table, "sgd"), run(f, actors, one_actor(actors, microbatches, frozen), "sgd"),
                concat("seed ", seed, ", ", print(table)));
  }
}

// A frozen parameter has a copy on each actor that computes with it, and nothing else: no moments, no gradients.
TEST(FrozenStages, HaveNoVersions) {
  const PartlyFrozen model(1, 2);
  const Schedule table = make_schedule("1f1b", {.actors = 2, .microbatches = 4, .window = 3, .frozen = {1}});
  const Program program = compile(training_step(model, 8, 0, 4, {.clip = 0}), table);
  EXPECT_EQ(print(program).find("w0@"), std::string::npos);
  EXPECT_EQ(print(program).find("first:w0"), std::string::npos);
}

}  // namespace
}  // namespace penstock
