// SPDX-License-Identifier: Apache-2.0
// Models with collectives of their own: every member of the axis against one device that does what all of them do, and each collective
// against its result computed directly.
#include <gtest/gtest.h>

#include <cstring>

#include "base/text.h"
#include "config/compile.h"
#include "driver/check.h"
#include "driver/thread_cluster.h"
#include "penstock/compile.h"
#include "penstock/session.h"
#include "penstock/step.h"
#include "support/collective_result.h"
#include "support/errors.h"
#include "support/exchange_model.h"
#include "torch/executor.h"
#include "torch/run_step.h"
#include "transform/collectives.h"

namespace penstock {
namespace {

using test::exchange_models;
using test::message_of;

using Numbers = std::vector<double>;

Config config_for(const std::string& mesh, const std::vector<std::string>& settings) {
  std::vector<Override> overrides;
  for (const char* setting : {"model.name=exchange", "batch=24", "microbatches=4", "dtype=f64"})
    overrides.push_back(parse_override(setting));
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  for (Override& axis : parse_mesh(mesh)) overrides.push_back(std::move(axis));
  return load_config("", overrides, exchange_models());
}

StepGradients gradients_of(const Config& config, const Prepared& prepared) {
  return test::step_of(config, prepared, compile_gradients(config, prepared));
}

void expect_sequential_meaning(const Config& config) {
  const StepGradients found = gradients_of(config, prepare(config, exchange_models()));
  const StepGradients expected = gradients_of(config, prepare_sequential(config, exchange_models()));
  const Comparison comparison = compare(found, expected);
  EXPECT_LE(comparison.loss_difference, 1e-10);
  EXPECT_LE(comparison.gradient_difference, 1e-10) << comparison.worst;
}

TEST(OwnCollectives, MembersTogetherDoWhatOneDeviceDoesForAll) {
  for (const std::string mesh : {"tensor=2", "pipe=2,tensor=2", "pipe=2,data=2,tensor=2"})
    for (const std::string schedule : {"1f1b", "zb-h1", "gpipe"}) {
      SCOPED_TRACE(concat(mesh, " ", schedule));
      expect_sequential_meaning(config_for(mesh, {"schedule=" + schedule}));
    }
}

TEST(OwnCollectives, OfThreeMembersAlongAnotherAxis) {
  expect_sequential_meaning(config_for("pipe=2,context=3", {"members=3", "axis=context"}));
}

TEST(OwnCollectives, WithSharesAndRecomputation) {
  for (const char* zero : {"zero=1", "zero=2", "zero=3"}) {
    SCOPED_TRACE(zero);
    expect_sequential_meaning(config_for("pipe=2,data=2,tensor=2", {zero}));
  }
  expect_sequential_meaning(config_for("pipe=2,tensor=2", {"recompute=inputs"}));
}

// --- training

struct Trained {
  std::vector<double> losses;
  std::map<std::string, Numbers> state;
};

Trained trained(const Program& program, const Model& model) {
  Session session(static_cast<int>(program.devices.size()));
  session.load("train", program);
  session.initialise(model.parameters(), 7);
  std::vector<std::int64_t> tokens, targets;
  for (std::int64_t i = 0; i < 8 * 12; ++i) {
    tokens.push_back(i * i % 29);
    targets.push_back(i * 5 % 31);
  }
  const HostTensors data = {{"tokens", host_tensor<std::int64_t>({8, 12}, tokens)},
                            {"targets", host_tensor<std::int64_t>({8, 12}, targets)},
                            {"rows", host_tensor<std::int64_t>({8}, {0, 1, 2, 3, 4, 5, 6, 7})},
                            {"seed", host_tensor<std::int64_t>({}, {3})}};
  Trained out;
  for (int i = 0; i < 4; ++i) out.losses.push_back(values<double>(session.step("train", data).outputs.at("loss"))[0]);
  for (const ParameterSpec& spec : model.parameters()) out.state[spec.name] = values<double>(session.state(spec.name));
  return out;
}

// Beside an axis of the model's own one over which layouts split its weights, inside of it or outside.
TEST(OwnCollectives, TrainBesideAnAxisOfLayouts) {
  const ModelEntry entry = exchange_models().at("exchange");
  const auto made = [&](int stages) {
    return entry.make({.numbers = entry.numbers, .words = entry.words, .stages = stages, .compute = DType::f64});
  };
  const auto model = made(2), uncut = made(1);
  const Graph step = training_step(*model, {8, 12, 4}, {});
  const Schedule schedule = make_schedule("1f1b", {.actors = 2, .microbatches = 4});
  const std::map<std::string, std::vector<DimName>> dims = {
      {"first.weight", {{"mlp"}, {}}}, {"first.bias", {{"mlp"}}}, {"head.weight", {{}, {"mlp"}}}};
  const Trained alone =
      trained(compile(of_all_members(training_step(*uncut, {8, 12, 4}, {})), make_schedule("sequential", {.actors = 1, .microbatches = 4})),
              *uncut);
  const LayoutAxis own{"tensor", 2, {}}, split{"context", 2, {"mlp"}};
  for (const std::vector<LayoutAxis>& axes : {std::vector{own}, {own, split}, {split, own}}) {
    SCOPED_TRACE(join(axes, ", ", [](const LayoutAxis& axis) { return axis.name; }));
    const Trained together = trained(compile(step, schedule, {.axes = axes, .dims = dims}), *model);
    for (std::size_t i = 0; i < alone.losses.size(); ++i) EXPECT_NEAR(together.losses[i], alone.losses[i], 1e-9);
    for (const auto& [name, state] : alone.state)
      for (std::size_t i = 0; i < state.size(); ++i) ASSERT_NEAR(together.state.at(name)[i], state[i], 1e-9) << name << " " << i;
  }
}

// --- one collective at a time

constexpr std::int64_t kRows = 6, kColumns = 6;

// Member m has x * (m + 1).
Tensor own_values(Tensor x, const MeshAxis& axis) {
  std::vector<Tensor> parts;
  for (std::int64_t m = 0; m < axis.size; ++m) parts.push_back(keep_member(x * static_cast<double>(m + 1), m, axis));
  return add_n(parts);
}

struct Case {
  Opcode opcode;
  int dim;
};

Tensor collective(const Case& c, Tensor x, const MeshAxis& axis) {
  switch (c.opcode) {
    case Opcode::all_reduce:
      return all_reduce(x, axis);
    case Opcode::all_gather:
      return all_gather(x, c.dim, axis);
    case Opcode::reduce_scatter:
      return reduce_scatter(x, c.dim, axis);
    case Opcode::broadcast:
      return broadcast(x, axis.size - 1, axis);
    default:
      return all_to_all(x, c.dim, axis);
  }
}

// Output m is what member m has, summed over two micro-batches.
Graph step_of(const Case& c, const MeshAxis& axis) {
  Graph step = trace("step", {{"x", {DType::f64, {2 * kRows, kColumns}}}}, [&](const std::vector<Tensor>& x) {
    return accumulate({x[0]}, 2, [&](const std::vector<Tensor>& part) {
      const Tensor y = collective(c, own_values(part[0], axis), axis);
      std::vector<Tensor> shown;
      for (std::int64_t m = 0; m < axis.size; ++m) shown.push_back(all_reduce(keep_member(y, m, axis), axis));
      return shown;
    });
  });
  for (std::int64_t m = 0; m < axis.size; ++m) step.output_names.push_back(concat("member", m));
  return step;
}

Numbers transposed(const Numbers& x, std::size_t rows) {
  Numbers out(x.size());
  const std::size_t columns = x.size() / rows;
  for (std::size_t i = 0; i < x.size(); ++i) out[i % columns * rows + i / columns] = x[i];
  return out;
}

// The result of a member on a part of the batch, along the case's dim.
Numbers expected(const Case& c, const Numbers& part, std::size_t member, std::size_t members) {
  std::vector<std::vector<std::byte>> given;
  for (std::size_t m = 0; m < members; ++m) {
    Numbers own = c.dim == 1 ? transposed(part, kRows) : part;
    for (double& x : own) x *= static_cast<double>(m + 1);
    const auto* bytes = reinterpret_cast<const std::byte*>(own.data());
    given.emplace_back(bytes, bytes + own.size() * sizeof(double));
  }
  const std::vector<std::byte> bytes =
      c.opcode == Opcode::broadcast ? given.back() : test::collective_result(c.opcode, DType::f64, members - 1, member, given);
  Numbers out(bytes.size() / sizeof(double));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return c.dim == 1 ? transposed(out, out.size() / kRows) : out;
}

TEST(OwnCollectives, EachGivesItsResultAlongEachDim) {
  Numbers x;
  for (std::int64_t i = 0; i < 2 * kRows * kColumns; ++i) x.push_back(static_cast<double>(i * i % 97));
  const auto middle = x.begin() + kRows * kColumns;
  const Numbers parts[] = {{x.begin(), middle}, {middle, x.end()}};
  const Case cases[] = {{Opcode::all_reduce, 0},     {Opcode::all_gather, 0}, {Opcode::all_gather, 1}, {Opcode::reduce_scatter, 0},
                        {Opcode::reduce_scatter, 1}, {Opcode::broadcast, 0},  {Opcode::all_to_all, 0}, {Opcode::all_to_all, 1}};
  for (const int members : {2, 3})
    for (const Case& c : cases) {
      SCOPED_TRACE(concat(name(c.opcode), " along dim ", c.dim, " of ", members));
      const Graph step = step_of(c, {"tensor", members});
      const Schedule schedule = make_schedule("sequential", {.actors = 1, .microbatches = 2});
      Session session(members);
      session.load("step", compile(step, schedule, {.axes = {{"tensor", members, {}}}}));
      session.load("alone", compile(of_all_members(step), schedule));
      const HostTensors data = {{"x", host_tensor<double>({2 * kRows, kColumns}, x)}};
      const HostTensors found = session.step("step", data).outputs, alone = session.step("alone", data).outputs;
      for (int m = 0; m < members; ++m) {
        const auto member = static_cast<std::size_t>(m), count = static_cast<std::size_t>(members);
        Numbers wanted = expected(c, parts[0], member, count);
        const Numbers more = expected(c, parts[1], member, count);
        for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += more[i];
        EXPECT_EQ(values<double>(found.at(concat("member", m))), wanted) << "member " << m;
        EXPECT_EQ(values<double>(alone.at(concat("member", m))), wanted) << "member " << m << " of one device";
      }
    }
}

// --- errors

std::string refusal(const std::string& mesh, const std::vector<std::string>& settings) {
  return message_of([&] {
    const Config config = config_for(mesh, settings);
    compile_training(config, prepare(config, exchange_models()));
  });
}

TEST(OwnCollectives, TheMeshMustHaveTheirAxis) {
  EXPECT_EQ(refusal("data=2", {}),
            "graph @body: reduce_gradient is along axis \"tensor\" of 2 members, which the mesh does not have\n"
            "  the mesh has no axes inside an actor\n"
            "  hint: --mesh tensor=2");
  EXPECT_EQ(refusal("tensor=3", {}),
            "graph @body: reduce_gradient is along axis \"tensor\" of 2 members, the mesh's has 3\n"
            "  hint: --mesh tensor=2, or make the model for 3");
}

TEST(OwnCollectives, ParametersMustStayTheSameOnAllMembers) {
  EXPECT_EQ(refusal("tensor=2", {"reduces=0"}),
            "state \"embedding.weight\" does not stay the same on the 2 members of axis \"tensor\"\n"
            "  its next value is made of what differs between them since keep_member, made in second\n"
            "  hint: reduce its gradient along the axis: read it as reduce_gradient(x, {\"tensor\", 2})");
}

TEST(OwnCollectives, AnAxisIsForThemAlone) {
  const Graph step = step_of({Opcode::all_reduce, 0}, {"tensor", 2});
  const Schedule schedule = make_schedule("sequential", {.actors = 1, .microbatches = 2});
  EXPECT_EQ(message_of([&] { compile(step, schedule, {.axes = {{"tensor", 2, {"mlp"}}}}); }),
            "graph @body: keep_member is along axis \"tensor\" of 2 members, over which dims are split too\n"
            "  the dims: mlp\n"
            "  hint: along an axis either the model or [layout] says what members do: --set layout.mlp=");
}

TEST(OwnCollectives, AnAxisHasOneSizeAndStandsInTheLoop) {
  const auto compiled = [](const std::function<Tensor(Tensor)>& outside, const std::function<Tensor(Tensor)>& inside) {
    const Graph step = trace("step", {{"x", {DType::f64, {4, 4}}}}, [&](const std::vector<Tensor>& x) {
      const Tensor y = outside(x[0]);
      return accumulate({x[0]}, 2, [&](const std::vector<Tensor>& part) { return std::vector{inside(sum(part[0]) + sum(y))}; });
    });
    compile(step, make_schedule("sequential", {.actors = 1, .microbatches = 2}), {.axes = {{"tensor", 2, {}}}});
  };
  const auto same = [](Tensor x) { return x; };
  EXPECT_EQ(message_of([&] { compiled(same, [](Tensor x) { return all_reduce(all_reduce(x, {"tensor", 2}), {"tensor", 4}); }); }),
            "graph @body: all_reduce is along axis \"tensor\" of 4 members, another op along it has 2\n"
            "  hint: give all ops along an axis the same MeshAxis");
  EXPECT_EQ(message_of([&] { compiled([](Tensor x) { return all_reduce(x, {"tensor", 2}); }, same); }),
            "graph @step: all_reduce stands outside of the loop and depends on nothing that the loop makes\n"
            "  hint: write it in the loop, where its result is used");
}

}  // namespace
}  // namespace penstock
