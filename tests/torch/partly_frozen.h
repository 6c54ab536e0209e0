// SPDX-License-Identifier: Apache-2.0
// A model of a chain of stages of which the first may be frozen, trained for six steps by a table.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "base/text.h"
#include "penstock/compile.h"
#include "penstock/session.h"
#include "penstock/step.h"

namespace penstock::test {

// Stages 0 .. frozen-1 are layers that are not trained, one behind the other; those behind them are trained. All are h <- tanh(h W).
// `tied`: the last stage multiplies by the first trained W once more.
class PartlyFrozen : public Model {
 public:
  PartlyFrozen(int frozen, int trained, bool tied = false) : frozen_(frozen), trained_(trained), tied_(tied) {}

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
      if (tied_) h = matmul(h, p[concat("w", frozen_)]);
      const Tensor off = h - batch["y"];
      return sum(off * off, {0, 1});
    }
    return h;
  }

  static constexpr std::int64_t kWidth = 3;

 private:
  int frozen_, trained_;
  bool tied_;
};

inline double number_of(std::size_t of, std::size_t i) {
  return static_cast<double>((7 * i + 3 * of + of * i) % 11) / 11 - 0.5;
}

inline HostTensor numbers(const Shape& shape, std::size_t of) {
  std::vector<double> values(static_cast<std::size_t>(shape[0] * shape[1]));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = number_of(of, i);
  return host_tensor<double>(shape, values);
}

// All ports of the program; numbers go on from `first`, whatever the steps of the program.
inline HostTensors batch_of(const Program& program, std::int64_t first) {
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

struct TrainOptions {
  const char* optimiser = "adamw";
  double clip = 0;
  bool tied = false, validated = false;
  int devices = 1;  // of each actor
  int zero = 0;
};

inline Program program_of(int frozen, int trained, const Schedule& table, const TrainOptions& o) {
  OptimiserOptions options;
  options.name = o.optimiser;
  options.clip = o.clip;
  options.validated = o.validated;
  options.steps = 6;
  const int microbatches = table.step_microbatches() * o.devices;
  CompileOptions compiling;
  compiling.devices.assign(table.actors.size(), o.devices);
  compiling.zero = o.zero;
  return compile(training_step(PartlyFrozen(frozen, trained, o.tied), {4 * table.step_microbatches(), 0, microbatches}, options), table,
                 compiling);
}

// Six steps of the model by the table, whose steps have four samples for each of its micro-batches.
inline Trained run(int frozen, int trained, const Schedule& table, const TrainOptions& o = {}) {
  const PartlyFrozen model(frozen, trained, o.tied);
  const int batch = 4 * table.step_microbatches();
  Session session(static_cast<int>(table.actors.size()) * o.devices);
  const Program program = program_of(frozen, trained, table, o);
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

inline void expect_near(const Trained& got, const Trained& expected, const std::string& what) {
  for (std::size_t s = 0; s < got.weights.size(); ++s)
    for (std::size_t i = 0; i < got.weights[s].size(); ++i)
      EXPECT_NEAR(got.weights[s][i], expected.weights[s][i], 1e-10) << what << ", w" << s;
  for (std::size_t k = 0; k < got.losses.size(); ++k) EXPECT_NEAR(got.losses[k], expected.losses[k], 1e-10) << what << ", step " << k;
}

inline Schedule one_actor(int trained, int microbatches, const std::vector<double>& frozen) {
  return make_schedule("sequential", {.actors = 1, .microbatches = microbatches, .chunks = trained, .frozen = frozen});
}

}  // namespace penstock::test
