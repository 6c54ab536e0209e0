// SPDX-License-Identifier: Apache-2.0
// Penstock as a library: an op, a planner, a table and a model of one's own, compiled, predicted and run without a command line.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>

#include "penstock/compile.h"
#include "penstock/error.h"
#include "penstock/op.h"
#include "penstock/plan_step.h"
#include "penstock/predict.h"
#include "penstock/race.h"
#include "penstock/session.h"

using namespace penstock;

// x * sigmoid(x), with its gradient made of Penstock's ops and its values computed here.
const OpDefinition kSwish{
    .name = "mine::swish",
    .infer = [](const Op&, std::span<const TensorType> operands) { return std::vector{operands[0]}; },
    .vjp =
        [](const VjpArguments& a) {
          const Tensor x = a.operands[0], s = sigmoid(x);
          return std::vector{a.cotangents[0] * (s + x * (s - s * s))};
        },
    .flops = [](const Op&, std::span<const TensorType> operands,
                std::span<const TensorType>) { return 4.0 * static_cast<double>(operands[0].elements()); },
    .elementwise = true,
    .compute =
        [](const Op&, std::span<const TensorMemory> operands, std::span<const TensorMemory> results) {
          const float* x = operands[0].as<float>();
          for (std::int64_t i = 0; i < operands[0].type.elements(); ++i) results[0].as<float>()[i] = x[i] / (1 + std::exp(-x[i]));
        },
};
constexpr int kMicrobatches = 4;

// One step of gradient descent on two layers, 16 samples in four micro-batches.
Graph two_layers() {
  const std::vector<std::pair<std::string, TensorType>> inputs = {
      {"first", {DType::f32, {16, 8}}}, {"second", {DType::f32, {4, 16}}}, {"x", {DType::f32, {16, 8}}}, {"y", {DType::f32, {16, 4}}}};
  Graph step = trace("two_layers", inputs, [](const std::vector<Tensor>& in) {
    const std::vector<Tensor> sums = accumulate({in[2], in[3]}, kMicrobatches, [&](const std::vector<Tensor>& part) {
      Parameters weights;
      weights.set("first", in[0]);
      weights.set("second", in[1]);
      const auto [loss, gradient] = value_and_grad(captured(weights), [&](const Parameters& p) {
        Tensor hidden;
        {
          const Origin first("first");
          hidden = own_op("mine::swish", {linear(part[0], p["first"])})[0];
        }
        const Origin second("second");
        return mse_loss(linear(hidden, p["second"]), part[1]);
      });
      return std::vector{loss, gradient["first"], gradient["second"]};
    });
    return std::vector{in[0] - 0.01 * sums[1], in[1] - 0.01 * sums[2], sums[0]};
  });
  step.state = 2;
  step.output_names = {"loss"};
  return step;
}

// A planner: as many nodes on each device.
Plan plan_evenly(const PlanProblem& problem, const PlanOptions&) {
  const int nodes = static_cast<int>(problem.graph.nodes.size()), devices = static_cast<int>(problem.cluster.devices.size());
  Plan plan;
  for (int node = 0; node < nodes; ++node) {
    const int device = node * devices / nodes;
    if (static_cast<int>(plan.stages.size()) == device) plan.stages.push_back({.devices = {device}});
    plan.stages.back().nodes.push_back(node);
  }
  return plan;
}

HostTensor drawn(const Shape& shape, double scale) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  std::vector<float> numbers;
  for (std::int64_t i = 0; i < count; ++i) numbers.push_back(static_cast<float>(scale * std::sin(1.7 * static_cast<double>(i) + 0.3)));
  return host_tensor<float>(shape, numbers);
}

// The losses of ten steps.
std::vector<float> train(const Program& program, const HostTensors& state, const HostTensors& data) {
  Session session(static_cast<int>(program.devices.size()));
  session.load("train", program);
  session.set_state(state);
  std::vector<float> losses;
  for (int step = 0; step < 10; ++step) losses.push_back(values<float>(session.step("train", data).outputs.at("loss"))[0]);
  return losses;
}

// An op of libtorch's that Penstock does not know, with its gradient.
Tensor asinh(Tensor x) {
  const Vjp vjp = [](const VjpArguments& a) { return std::vector{a.cotangents[0] * rsqrt(a.operands[0] * a.operands[0] + 1)}; };
  return call("aten::asinh", {x}, {x.type()}, {}, vjp)[0];
}

// A model's programs on two actors of two devices each, with sharded optimiser state.
class Line : public Model {
 public:
  Line() : layer_(specs_, "layer", {8, 1}, 0.1) {}
  std::vector<ParameterSpec> parameters() const override { return specs_.list; }
  std::vector<DataPort> data(std::int64_t) const override {
    return {{"x", {DType::f32, {8}}, DataPort::Kind::normal, 0, {}}, {"y", {DType::f32, {1}}, DataPort::Kind::response, 0, {"x"}}};
  }
  Tensor loss(const Parameters& p, const Batch& batch) const override {
    return mse_loss(asinh(stage_boundary(layer_(p, batch["x"]))), batch["y"]);
  }

 private:
  ParameterList specs_{DType::f32};
  nn::Linear layer_;
};

// Searches for tables whose two stages take twice as long to go back as forth; the best of them and the best published ones race in steps
// of `step`.
void search_and_race(const Graph& step, const HostTensors& state, const HostTensors& data) {
  Session session(2);
  int loaded = 0;
  const auto problem = [](int chunks) {
    return SearchProblem{.shape = chain(2 * chunks), .actors = 2, .microbatches = kMicrobatches, .costs = uniform_costs(2 * chunks)};
  };
  const auto prepare = [&](const Schedule& table) -> TimedStep {
    const std::string name = std::to_string(loaded++);
    session.load(name, compile(step, table));
    session.set_state(state);
    return [&session, &data, name] { return session.step(name, data).seconds; };
  };
  const RacedSearch found =
      raced_search(problem, prepare, {.chunks = {1}, .search = {.moves = 500}, .candidates = 2, .race = {.rounds = 2, .steps = 4}});
  std::printf("%zu tables raced, %s first: predicted %.1f, at least %.1f\n", found.racers.size(), found.result.found_by.c_str(),
              found.result.time.makespan, found.result.lower_bound);
}

// A hundred layers on 16 devices: how many stages, replicas and shards.
void plan_groups() {
  PlanProblem problem{.cluster = uniform_cluster(16, 1e10), .samples = 64};
  for (int i = 0; i < 100; ++i) {
    problem.graph.nodes.push_back(
        {.name = "layer " + std::to_string(i), .costs = {{.forward = 1e-3, .backward = 2e-3, .parameter_bytes = 4e6}}});
    problem.graph.nodes.back().output_bytes = 1e5;
    if (i > 0) problem.graph.edges.push_back({i - 1, i, 1e5});
  }
  const Plan plan = make_plan("degrees", problem);
  std::printf("equal groups: %s, %.1f ms\n", text(plan.degrees->results[0].degrees).c_str(), 1e3 * plan.predicted_time);
}

int run_all() {
  register_op(kSwish);
  const HostTensors state = {{"first", drawn({16, 8}, 0.3)}, {"second", drawn({4, 16}, 0.3)}};
  const HostTensors data = {{"x", drawn({16, 8}, 1)}, {"y", drawn({16, 4}, 1)}};

  const PlannedStep planned = plan_step(two_layers(), uniform_cluster(2, 1e10), {"evenly", "as many nodes on each device", plan_evenly});
  const Schedule mine = parse_schedule("0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n", "mine.csv");
  const Program one = compile(two_layers(), make_schedule("sequential", {.actors = 1, .microbatches = kMicrobatches}));
  const Program two = compile(planned.step, mine);
  const Prediction prediction = predict(two, "v100", "nvlink2");
  std::printf("planned %.1f us, predicted %.1f us, bubble %.0f %%\n", 1e6 * planned.plan.predicted_time, 1e6 * prediction.seconds,
              100 * prediction.bubble);
  search_and_race(planned.step, state, data);
  plan_groups();
  const std::vector<float> alone = train(one, state, data), together = train(two, state, data);
  std::printf("loss %.6f to %.6f on one device, %.6f on two\n", alone.front(), alone.back(), together.back());

  const Schedule table = make_schedule("1f1b", {.actors = 2, .microbatches = 2});
  const ModelPrograms line = compile(Line(), {.batch = 8}, {}, table, {.devices = {2, 2}, .zero = 1});
  Session session(4);
  session.load("train", line.training);
  session.load("evaluate", line.evaluation);
  session.initialise(Line().parameters());
  const HostTensors batch = {{"x", drawn({8, 8}, 1)},
                             {"y", drawn({8, 1}, 1)},
                             {"rows", host_tensor<std::int64_t>({8}, {0, 1, 2, 3, 4, 5, 6, 7})},
                             {"seed", host_tensor<std::int64_t>({}, {1})}};
  const StepReport report = session.step("train", batch, /*record=*/true);
  std::printf("a model on 4 devices: loss %.4f; %zu pieces of state; %zu activities in %.0f us\n",
              values<float>(report.outputs.at("loss"))[0], session.pieces().size(), report.timeline.activities.size(),
              1e6 * report.seconds);
  return std::abs(alone.back() - together.back()) < 1e-5f * std::abs(alone.back()) && alone.back() < alone.front() ? 0 : 1;
}

int main() {
  try {
    return run_all();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
