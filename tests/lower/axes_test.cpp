// SPDX-License-Identifier: Apache-2.0
// Programs of actors whose tensors are split over axes: what moves, and what is kept, against the formulas of Megatron (1909.08053) and of
// its sequence parallelism (2205.05198).
#include <gtest/gtest.h>

#include <map>
#include <ostream>
#include <set>

#include "base/text.h"
#include "config/compile.h"
#include "config/mesh.h"
#include "models/support.h"
#include "penstock/compile.h"
#include "penstock/step.h"
#include "support/golden.h"

namespace penstock {
namespace {

struct Sizes {
  std::int64_t layers = 2, width = 16, heads = 4, length = 8, sequences = 2, microbatches = 2;  // sequences: of a micro-batch
};

Config gpt_config(const Sizes& s, const std::string& mesh, const std::vector<std::string>& more = {}) {
  std::vector<Override> overrides = parse_mesh(mesh);
  for (const std::string& setting :
       {concat("layers=", s.layers), concat("width=", s.width), concat("heads=", s.heads), concat("context=", s.length),
        concat("batch=", s.sequences * s.microbatches), concat("microbatches=", s.microbatches), std::string("vocabulary=32"),
        std::string("schedule=gpipe"), std::string("dtype=f32")})
    overrides.push_back(parse_override(setting));
  for (const std::string& setting : more) overrides.push_back(parse_override(setting));
  return load_config("", overrides, builtin_models());
}

Program training_of(const Config& config) {
  return compile_training(config, prepare(config, builtin_models()));
}

// The collectives of one layer and micro-batch.
struct LayerVolume {
  std::map<Opcode, std::int64_t> count;
  std::int64_t elements = 0;  // that a device sends in a ring
  bool operator==(const LayerVolume&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const LayerVolume& v) {
    return out << join(v.count, ", ", [](const auto& c) { return concat(c.second, " ", name(c.first)); }) << ": " << v.elements
               << " elements";
  }
};

// The bytes that the loop's collectives along the inner axis, of devices beside each other, move on device 0.
LayerVolume volume_of(const Program& program) {
  LayerVolume out;
  const DeviceProgram& d = program.devices[0];
  for (const Instruction& i : d.instructions) {
    if (!is_collective(i.opcode) || !i.action) continue;
    const Slot &from = d.slots[d.operands_of(i)[0].index()], &to = d.slots[d.results_of(i)[0].slot.index()];
    const std::vector<std::int32_t>& group = program.groups[static_cast<std::size_t>(i.group)];
    if (group[1] != 1) continue;
    const auto members = static_cast<std::int64_t>(group.size());
    const std::int64_t elements = std::max(from.parts[0].elements(), to.parts[0].elements());
    ++out.count[i.opcode];
    out.elements += (i.opcode == Opcode::all_reduce ? 2 : 1) * elements * (members - 1) / members;
  }
  return out;
}

// By the difference of two layers and one, which leaves out what embedding and loss need.
LayerVolume volume_of_layer(Sizes s, const std::string& mesh, const std::vector<std::string>& more = {}) {
  const LayerVolume two = volume_of(training_of(gpt_config(s, mesh, more)));
  --s.layers;
  const LayerVolume one = volume_of(training_of(gpt_config(s, mesh, more)));
  LayerVolume out;
  for (const auto& [opcode, count] : two.count) {
    const std::int64_t more_here = count - (one.count.contains(opcode) ? one.count.at(opcode) : 0);
    EXPECT_EQ(more_here % s.microbatches, 0);
    if (more_here != 0) out.count[opcode] = more_here / s.microbatches;
  }
  out.elements = (two.elements - one.elements) / s.microbatches;
  return out;
}

std::int64_t tokens_of(const Sizes& s) {
  return s.sequences * s.length;
}

TEST(Axes, TwoMembersOfAPerceptron) {
  const auto mlp = test::model("mlp", {{"width", 8}, {"layers", 2}, {"context", 4}, {"vocabulary", 16}});
  CompileOptions options{.axes = {{"tensor", 2, {"mlp", "vocab"}}}};
  for (const ParameterSpec& parameter : mlp->parameters()) options.dims[parameter.name] = parameter.dims;
  const Program program = compile(gradient_step(*mlp, {2, 4, 2}), make_schedule("zb-h1", {.actors = 1, .microbatches = 2}), options);
  test::expect_golden("lower/perceptron_axes.txt", print(program));
}

TEST(Axes, TensorMembersReduceFourTimesPerLayer) {
  for (const int members : {2, 4})
    for (const char* data : {"", ",data=2"}) {
      SCOPED_TRACE(concat(members, data));
      Sizes s;
      if (*data) s.sequences *= 2;
      const LayerVolume volume = volume_of_layer(s, concat("pipe=1", data, ",tensor=", members));
      const std::int64_t tokens = tokens_of(s) / (*data ? 2 : 1);
      EXPECT_EQ(volume, (LayerVolume{{{Opcode::all_reduce, 4}}, 8 * tokens * s.width * (members - 1) / members}));
    }
}

// Gathers instead of f's identity, scatters instead of g's sums.
TEST(Axes, SequencesAreGatheredAndScattered) {
  for (const int members : {2, 4}) {
    SCOPED_TRACE(members);
    const Sizes s{.width = 32, .length = 16};
    const LayerVolume volume = volume_of_layer(s, concat("pipe=1,tensor=", members), {"layout.sequence=tensor"});
    EXPECT_EQ(volume,
              (LayerVolume{{{Opcode::all_gather, 6}, {Opcode::reduce_scatter, 4}}, 10 * tokens_of(s) * s.width * (members - 1) / members}));
  }
}

// Elements of activations that a device of the first actor and one of the second send.
std::int64_t elements_sent(const Program& program, std::int64_t members) {
  std::int64_t elements = 0;
  for (const std::int64_t device : {std::int64_t{0}, members}) {
    const DeviceProgram& d = program.devices[static_cast<std::size_t>(device)];
    for (const Instruction& i : d.instructions)
      if (i.opcode == Opcode::send)
        for (const TensorType& part : d.slots[i.slot.index()].parts) elements += part.shape.size() == 3 ? part.elements() : 0;
  }
  return elements;
}

// What each member would send of the same values, all of them send together. What is split anyway, as sequences are, stays as it is.
TEST(Axes, LinksCarryAPartForEachMember) {
  for (const int members : {2, 4})
    for (const Sizes& s : {Sizes{.sequences = 4}, Sizes{.length = 4, .sequences = 1}, Sizes{.length = 5, .sequences = 3}}) {
      SCOPED_TRACE(concat(members, " members, ", s.sequences, " sequences"));
      const std::string mesh = concat("pipe=2,tensor=", members);
      const Program whole = training_of(gpt_config(s, mesh, {"tied=0"})),
                    split = training_of(gpt_config(s, mesh, {"tied=0", "layout.links=tensor"}));
      EXPECT_GE(elements_sent(whole, members), 2 * s.microbatches * tokens_of(s) * s.width);
      EXPECT_EQ(members * elements_sent(split, members), elements_sent(whole, members));
      const auto with_sequences = [&](const char* links) {
        return print(training_of(gpt_config(s, mesh, {"tied=0", "layout.sequence=tensor", links})));
      };
      EXPECT_EQ(with_sequences("layout.links=tensor"), with_sequences("layout.links="));
    }
}

// The bytes that the forward of a micro-batch leaves to its backward on device 0.
std::int64_t kept_bytes(const Program& program) {
  const DeviceProgram& d = program.devices[0];
  std::set<SlotId> made, kept;
  std::int64_t bytes = 0;
  for (const Instruction& i : d.instructions) {
    if (!has_operands(i.opcode) || !i.action || i.microbatch != 0) continue;
    if (i.kind == Kind::F)
      for (const Result& result : d.results_of(i)) made.insert(result.slot);
    if (i.kind == Kind::B)
      for (SlotId slot : d.operands_of(i))
        if (made.contains(slot) && kept.insert(slot).second) bytes += slot_bytes(d.slots[slot]);
  }
  return bytes;
}

std::int64_t kept_of_layer(const std::string& mesh, const std::vector<std::string>& more = {}) {
  Sizes s{.layers = 3, .width = 128, .heads = 4, .length = 128, .sequences = 4};
  const std::int64_t three = kept_bytes(training_of(gpt_config(s, mesh, more)));
  --s.layers;
  return three - kept_bytes(training_of(gpt_config(s, mesh, more)));
}

// Four bytes of 16 h + a + 4 per token, 4 h + 12 h / t + a / t + 4 and (16 h + a + 4) / t, for h = 128, a = 4, t = 2 and 512 tokens.
TEST(Axes, MembersKeepWhatTheFormulasSay) {
  EXPECT_EQ(kept_of_layer("pipe=1"), 4210688);
  EXPECT_EQ(kept_of_layer("pipe=1,tensor=2"), 2633728);
  EXPECT_EQ(kept_of_layer("pipe=1,tensor=2", {"layout.sequence=tensor"}), 2105344);
}

// Members of uneven parts begin their collectives at different times, and send each other parts of attention beside them. A device that
// freed what it sends while another waits for it in a collective would wait for ever; compile_training proves that none does.
TEST(Axes, NoMemberWaitsForWhatItsCollectivesDelay) {
  for (const std::int64_t heads : {3, 4, 5}) {
    const Sizes s{.layers = 1, .width = 4 * heads, .heads = heads, .length = 12, .sequences = 12};
    for (const char* mesh : {"context=5", "context=6", "context=7"})
      EXPECT_NO_THROW(training_of(gpt_config(s, mesh, {"schedule=1f1b", "dropout=0.2", "dtype=f64"}))) << heads << " heads, " << mesh;
  }
}

// The members' parts of a width of 4 differ by half, and so does what it would cost them to have the tied embedding's gradients on one
// actor or on the other. They sum them together, so they have to choose alike.
TEST(Axes, MembersOfUnequalPartsRunTheCodeBehindTheLoopAlike) {
  const Sizes s{.layers = 2, .width = 4, .heads = 2, .length = 12, .sequences = 2};
  EXPECT_NO_THROW(training_of(gpt_config(s, "pipe=2,context=3", {"microbatches=2", "dropout=0.2", "dtype=f64", "vocabulary=17"})));
}

}  // namespace
}  // namespace penstock
