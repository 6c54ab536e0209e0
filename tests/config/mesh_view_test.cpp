// SPDX-License-Identifier: Apache-2.0
// Who holds what of a value, and what the axes of a mesh send: pictures as text, and both against what the members' programs are.
#include "config/mesh_view.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

#include "base/text.h"
#include "lower/member_inputs.h"
#include "models/registry.h"
#include "report/layout_costs.h"
#include "report/mesh_picture.h"
#include "stage/loop.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/rounds.h"
#include "support/seed.h"

namespace penstock {
namespace {

using test::message_of;

Config config_of(const std::string& mesh, const std::vector<std::string>& more = {}) {
  std::vector<Override> overrides = parse_mesh(mesh);
  for (const char* setting :
       {"layers=2", "width=16", "heads=4", "context=8", "batch=8", "microbatches=2", "vocabulary=32", "schedule=gpipe"})
    overrides.push_back(parse_override(setting));
  for (const std::string& setting : more) overrides.push_back(parse_override(setting));
  return load_config("", overrides, builtin_models());
}

MeshPicture picture_of(const Config& config, const std::vector<std::string>& values, const ClusterSpec* cluster = nullptr) {
  const Prepared prepared = prepare(config, builtin_models());
  const Program program = compile_training(config, prepared);
  MeshPicture out{"a mesh", mesh_of(config, prepared), {}, {}, {}};
  out.cluster = cluster ? *cluster : uniform_cluster(static_cast<int>(out.mesh.devices.size()), ClusterLink().bandwidth);
  out.traffic = traffic_of(program, out.mesh, out.cluster);
  for (const std::string& value : values) out.values.push_back(held_value(config, prepared, program, value));
  return out;
}

ClusterSpec two_levels(int inner, int all) {
  ClusterSpec out = uniform_cluster(all, 25e9);
  out.name = "nodes";
  out.levels = {{inner, {0, 300e9}}, {all / inner, {0, 25e9}}};
  return out;
}

const std::vector<std::string> kValues = {"wte.weight", "h.0.attn.c_attn.weight", "h.0.attn", "h.1.mlp.c_proj", "ln_f.weight"};

TEST(MeshView, OfThreeAxes) {
  const ClusterSpec cluster = two_levels(4, 8);
  const MeshPicture picture = picture_of(config_of("pipe=2,data=2,tensor=2"), kValues, &cluster);
  test::expect_golden("report/mesh.txt", mesh_text(picture));
  test::expect_golden("report/mesh.svg", mesh_svg(picture));
}

TEST(MeshView, OfSharesAndASplitSequence) {
  const MeshPicture picture =
      picture_of(config_of("data=2,context=2,tensor=2", {"zero=3"}), {"h.0.mlp.c_fc.weight", "h.0.mlp.c_fc", "h.0.mlp.c_proj", "tokens"});
  test::expect_golden("report/mesh_shares.txt", mesh_text(picture));
}

TEST(MeshView, OfOneDevice) {
  const MeshPicture picture = picture_of(config_of("pipe=1", {"schedule=sequential"}), {"ln_f.weight", "h.0"});
  EXPECT_NE(mesh_text(picture).find("nothing is sent\n"), std::string::npos) << mesh_text(picture);
  EXPECT_NE(mesh_svg(picture).find(">device 0: pipe 0</title>"), std::string::npos);
}

std::int64_t elements_of(const std::vector<HeldBox>& boxes) {
  std::int64_t out = 0;
  for (const HeldBox& box : boxes) out += (box.row_end - box.row_begin) * (box.column_end - box.column_begin);
  return out;
}

// The elements of a state that each device has, by its slots; and that all of them together have each at least once.
TEST(MeshView, StatesAreWhatSlotsHold) {
  for (const auto& [mesh, zero] :
       {std::pair("pipe=2,tensor=2", "zero=0"), {"data=2,tensor=3", "zero=1"}, {"pipe=2,data=2,tensor=2", "zero=3"}}) {
    SCOPED_TRACE(concat(mesh, " ", zero));
    const Config config = config_of(mesh, {zero});
    const Prepared prepared = prepare(config, builtin_models());
    const Program program = compile_training(config, prepared);
    for (const ParameterSpec& spec : prepared.parameters) {
      const HeldValue value = held_state(program, spec.name, spec.type, spec.dims);
      std::map<std::int32_t, std::int64_t> shown, held;
      std::set<std::pair<std::int64_t, std::int64_t>> covered;
      for (const HeldPart& part : value.parts) {
        ASSERT_EQ(part.terms.size(), 1u);
        for (std::int32_t d : part.terms[0]) shown[d] += elements_of(part.boxes);
        for (const HeldBox& box : part.boxes)
          for (std::int64_t r = box.row_begin; r < box.row_end; ++r)
            for (std::int64_t c = box.column_begin; c < box.column_end; ++c) covered.emplace(r, c);
      }
      for (std::int32_t d = 0; d < std::ssize(program.devices); ++d)
        for (const Slot& slot : program.devices[d].slots)
          for (std::size_t p = 0; p < slot.names.size(); ++p)
            if (holds_state(slot.kind) && (slot.names[p] == spec.name || slot.names[p].starts_with(spec.name + "[")))
              held[d] += slot.parts[p].elements();
      EXPECT_EQ(shown, held) << spec.name;
      EXPECT_EQ(std::ssize(covered), spec.type.elements()) << spec.name;
    }
  }
}

// A value of the loop's body: what each device is shown to have is as large as what its member's step makes there.
TEST(MeshView, ActivationsAreWhatMembersMake) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  for (const char* mesh : {"tensor=2", "tensor=3", "context=2,tensor=2", "tensor=2,context=2"})
    for (const char* sequence : {"layout.sequence=context", "layout.sequence=tensor"}) {
      SCOPED_TRACE(concat(mesh, " ", sequence));
      const Config config = config_of(mesh, {sequence, "context=12"});
      if (std::string_view(mesh).find("context") != std::string_view::npos && std::string_view(sequence).ends_with("tensor")) continue;
      const Prepared prepared = prepare(config, builtin_models());
      const std::vector<AxisDecision> axes = training_layouts(config, prepared);
      const MeshShape shape = mesh_of(config, prepared);
      std::vector<std::int32_t> all(shape.devices.size());
      std::iota(all.begin(), all.end(), 0);
      const Graph& body = *axes[0].step.ops[loop_of(axes[0].step)].body;
      for (int trial = 0; trial < test::rounds(40); ++trial) {
        const ValueId value(static_cast<std::int64_t>(random() % body.values.size()));
        if (!producers(body)[value]) continue;
        const HeldValue seen = held_activation(axes[0].step, axes, value, shape, all);
        const std::int64_t left_out = body.type(value).elements() / (seen.rows * seen.columns);
        for (const HeldPart& part : seen.parts)
          for (const auto& devices : part.terms)
            for (std::int32_t d : devices) {
              TensorType type = body.type(value);
              ValueId here = value;
              std::size_t member = 0;
              for (const AxisDecision& axis : axes) {
                const std::int32_t place = shape.devices[d].place[shape.axis(axis.wishes.axis)];
                type = local_type(type, axis.layouts[member].body->values[here], axis.wishes.members, place);
                here = axis.values.body->values[here];
                member = member * axis.wishes.members + place;
              }
              EXPECT_EQ(elements_of(part.boxes) * left_out, type.elements()) << "%" << value.value << " on device " << d;
            }
      }
    }
}

// Layer 2 is on actor 0 of worker 0, device 0, and on actor 1 of worker 1, device 3.
TEST(MeshView, WorkersHaveValuesWhereTheirStagesLie) {
  const Config config = config_of("pipe=2,data=2", {"layers=4", "pipeline.workers=[[3, 1], [2, 2]]"});
  const Prepared prepared = prepare(config, builtin_models());
  const HeldValue seen = held_value(config, prepared, compile_training(config, prepared), "h.2.mlp");
  ASSERT_EQ(seen.parts.size(), 2u);
  EXPECT_EQ(devices_text(seen.parts[0]), "0");
  EXPECT_EQ(devices_text(seen.parts[1]), "3");
}

// What layouts say is what the program sends: where nothing is filled up, byte for byte.
TEST(MeshView, ConversionsAreWhatProgramsSend) {
  for (const char* sequence : {"layout.sequence=context", "layout.sequence=tensor"}) {
    const Config config = config_of("tensor=2", {sequence, "schedule=gpipe", "width=32", "vocabulary=64", "context=16"});
    const Prepared prepared = prepare(config, builtin_models());
    const std::vector<AxisConversions> costs = layout_costs(training_layouts(config, prepared));
    const MeshShape mesh = mesh_of(config, prepared);
    const std::vector<AxisTraffic> traffic = traffic_of(compile_training(config, prepared), mesh, uniform_cluster(2, 1e9));
    ASSERT_EQ(costs.size(), 1u);
    EXPECT_EQ(traffic[1].axis, "tensor");
    EXPECT_NEAR(traffic[1].levels[0].most, costs[0].bytes * 2 + costs[0].once.bytes, 0.02 * traffic[1].levels[0].most) << text_of(costs);
  }
}

TEST(MeshView, ExplainsEachConversion) {
  const Config config = config_of("pipe=2,tensor=2");
  test::expect_golden("report/layout_costs.txt", text_of(layout_costs(training_layouts(config, prepare(config, builtin_models())))));
}

TEST(MeshView, BadInput) {
  const Config config = config_of("pipe=2,tensor=2");
  const Prepared prepared = prepare(config, builtin_models());
  const Program program = compile_training(config, prepared);
  const auto failure = [&](const std::string& value) { return message_of([&] { held_value(config, prepared, program, value); }); };
  const std::string how = "\n  a value without a name is %N, as penstock compile --emit layouts numbers those of each micro-batch";
  EXPECT_EQ(failure("h.0.atn"),
            "--value h.0.atn: the step has no such parameter, module or value" + how + "\n  hint: did you mean \"h.0.attn\"?");
  for (const char* value : {"%100000", "%x", "%-1", "%", ""})
    EXPECT_EQ(failure(value).substr(0, failure(value).find("\n  hint")),
              concat("--value ", value, ": the step has no such parameter, module or value", how));
  const ClusterSpec cluster = two_levels(3, 6);
  EXPECT_EQ(
      message_of([&] { picture_of(config, {}, &cluster); }),
      "the mesh is of 4 devices, cluster \"nodes\" has 6\n  the mesh: pipe 2 x tensor 2\n  the cluster's levels: 3 devices, 6 devices\n"
      "  hint: the product of the mesh's axes must be the number of devices");
}

}  // namespace
}  // namespace penstock
