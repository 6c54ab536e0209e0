// Which gradients and states devices hold in shares: the code after a small loop in, the pass's lines out.
#include <gtest/gtest.h>

#include "base/text.h"
#include "lower/passes.h"

namespace penstock {
namespace {

// States w, which the loop reads, and m; the loop gives the gradient %0, `second`, if any, as %7, and the loss %1.
struct Case {
  std::string what;
  std::string after;
  std::string next_w, next_m;
  std::string expected;
  Sharding sharding = {.level = 1};
  std::string m = "f32[4]", second = "";
  std::string loop_reads = "%w", dtype = "f32", loss = "%1";
};

std::string step_text(const Case& c) {
  const std::string result = c.second.empty() ? "" : ", %7: " + c.second, type = c.second.empty() ? "" : ", " + c.second;
  const std::string make = c.second.empty()              ? ""
                           : c.second.starts_with("f64") ? "%3: f64[4] = to(%2) {dtype=f64, phase=\"backward\", sequence=1}\n"
                                                         : "%3: f32[4] = neg(%2) {phase=\"backward\", sequence=1}\n";
  std::string text =
      concat("penstock graph 1\ngraph @step(%w: f32[4], %m: ", c.m, ", %x: f32[8,4]) -> (f32[4], ", c.m, ", f32[]) {state=2} {\n",
             c.loop_reads == "%w" ? "" : c.loop_reads + ": f32[4] = neg(%w)\n", "%0: f32[4]", result, ", %1: f32[] = accumulate(%x, ",
             c.loop_reads, ") {microbatches=4, split=1} (%x: f32[2,4], %w: f32[4]) -> (f32[4]", type,
             ", f32[]) {\n"
             "%0: f32[2,4] = mul(%x, %w) {sequence=1}\n"
             "%1: f32[] = sum(%0) {dim=[0, 1], keepdim=false, sequence=2}\n"
             "%2: f32[4] = sum(%0) {dim=[0], keepdim=false, phase=\"backward\", sequence=1}\n",
             make, "return %2", c.second.empty() ? "" : ", %3", ", %1\n}\n", c.after, "\nreturn ", c.next_w, ", ", c.next_m, ", ", c.loss,
             "\n}\n");
  for (std::size_t at = 0; c.dtype != "f32" && (at = text.find("f32", at)) != std::string::npos;) text.replace(at, 3, c.dtype);
  return text;
}

std::string blocks_of(const Case& c, const std::string& table, const std::vector<int>& devices) {
  const LowerInput input =
      lower_input(parse_graph(step_text(c)), parse_schedule(table, "table.csv"), {.devices = devices, .sharding = c.sharding});
  Draft draft;
  run_passes(input, draft, "blocks");
  const std::string text = print(draft);
  return text.substr(std::string_view("penstock draft 1\nafter blocks\n").size());
}

const std::string kMomentum = "%2: f32[4] = add(%m, %0) %3: f32[4] = sub(%w, %2)";
const std::string kSumOf0 = "%4: f32[] = sum(%0) {dim=[0], keepdim=false} %9: f32[] = add(%1, %4)";
const std::string kSumOf7 = "%3: f32[4] = sub(%w, %0) %4: f32[] = sum(%7) {dim=[0], keepdim=false} %9: f32[] = add(%1, %4)";
const std::string kMomentumShared = "block 0 (f32[4])\nsharded state 1 0 0\nsharded result 0 0 0\n";
const std::string kGradientShared = "block 0 (f32[4])\nsharded result 0 0 0\n";

const Case kCases[] = {
    {"at level 1 the moment is shared", kMomentum, "%3", "%2", kMomentumShared},
    {"at level 3 the parameter too",
     kMomentum,
     "%3",
     "%2",
     "block 0 (f32[4]) parameters (0) for (0)\nsharded state 0 0 0\nsharded state 1 0 0\nsharded result 0 0 0\n",
     {.level = 3}},
    {"what other programs read is a parameter", kMomentum, "%3", "%2", kGradientShared, {.level = 1, .parameters = {"m"}}},
    {"a block has one parameter for each gradient", kMomentum, "%3", "%2", "", {.level = 3, .parameters = {"m"}}},
    {"which the loop reads", "%2: f32[4] = add(%m, %0)", "%w", "%2", "", {.level = 3, .parameters = {"m"}}},
    {"a gradient that updates nothing has none", kSumOf0, "%w", "%m", kGradientShared, {.level = 3}, "f32[4]", "", "%w", "f32", "%9"},
    {"an op of whole tensors needs it whole", "%2: f32[4] = reshape(%0) {shape=[4]} %3: f32[4] = sub(%w, %2)", "%3", "%m", ""},
    {"so does one that stretches an operand",
     "%4: f32[1] = full() {dtype=f32, fill_value=1.0, size=[1]} %2: f32[4] = mul(%0, %4) %3: f32[4] = sub(%w, %2)", "%3", "%m", ""},
    {"but no sum over all elements, nor a scalar",
     "%4: f32[] = sum(%0) {dim=[0], keepdim=false} %5: f32[4] = mul(%0, %4) %2: f32[4] = add(%m, %5) %3: f32[4] = sub(%w, %2)", "%3", "%2",
     kMomentumShared},
    {"a state's next value must be of its class", kMomentum + " %5: f32[4] = neg(%m)", "%3", "%5", ""},
    {"or the state itself", kMomentum, "%3", "%m", kMomentumShared},
    {"all states are of the gradient's type",
     "%2: f64[4] = to(%0) {dtype=f64} %5: f64[4] = add(%m, %2) %3: f32[4] = sub(%w, %0)",
     "%3",
     "%5",
     "",
     {.level = 1},
     "f64[4]"},
    {"which can be summed", kMomentum, "%3", "%2", "", {.level = 1}, "f32[4]", "", "%w", "f16"},
    {"two gradients of one class need each other whole",
     "%5: f32[4] = add(%0, %7) %3: f32[4] = sub(%w, %5)",
     "%3",
     "%m",
     "",
     {.level = 1},
     "f32[4]",
     "f32[4]"},
    {"a constant joins no classes",
     "%4: f32[4] = full() {dtype=f32, fill_value=2.0, size=[4]} %5: f32[4] = mul(%0, %4) %6: f32[4] = mul(%7, %4)"
     "%2: f32[4] = sub(%m, %6) %3: f32[4] = sub(%w, %5)",
     "%3",
     "%2",
     "block 0 (f32[4], f32[4])\nsharded state 1 0 1\nsharded result 0 0 0\nsharded result 1 0 1\n",
     {.level = 1},
     "f32[4]",
     "f32[4]"},
    {"a block has one dtype",
     kMomentum + "%4: f64[] = sum(%7) {dim=[0], keepdim=false} %5: f32[] = to(%4) {dtype=f32} %9: f32[] = add(%1, %5)",
     "%3",
     "%2",
     "",
     {.level = 1},
     "f32[4]",
     "f64[4]",
     "%w",
     "f32",
     "%9"},
    {"and parameters for all or none", kSumOf7, "%3", "%m", "", {.level = 3}, "f32[4]", "f32[4]", "%w", "f32", "%9"},
    {"but other states for any",
     kSumOf7,
     "%3",
     "%m",
     "block 0 (f32[4], f32[4])\nsharded result 0 0 0\nsharded result 1 0 1\n",
     {.level = 1},
     "f32[4]",
     "f32[4]",
     "%w",
     "f32",
     "%9"},
    {"what is read ahead of the loop is whole", "%3: f32[4] = sub(%w, %0)", "%3", "%m", "", {.level = 3}, "f32[4]", "", "%8"},
    {"though its gradient need not be", "%3: f32[4] = sub(%w, %0)", "%3", "%m", kGradientShared, {.level = 1}, "f32[4]", "", "%8"},
};

TEST(Blocks, FollowFromWhatIsComputedOfAGradient) {
  for (const Case& c : kCases) EXPECT_EQ(blocks_of(c, "0F0,0F1,0B0,0B1\n", {2}), c.expected) << c.what;
}

// A tensor along the nodes, and what a node has of it along its devices, is the tensor along the devices. Each has 64 bytes or a multiple.
TEST(Blocks, AreCutAlongNodesAndWithinThemAsAlongDevices) {
  const ShareBlock block{{{DType::f64, {7}}, {DType::f64, {3, 11}}, {DType::f64, {1}}}, {}, {}};
  for (const std::int32_t local : {1, 2, 3})
    for (const std::int32_t nodes : {1, 2, 4})
      for (std::int32_t d = 0; d < nodes * local; ++d)
        for (std::int32_t member = 0; member < 3; ++member) {
          const std::int64_t elements = block.members[member].elements();
          const Layout data = flat_in(block, member, nodes * local, local), devices = flat_in(block, member, nodes * local, 1);
          const LayoutRange node = range_of(data, elements, nodes, d / local);
          const LayoutRange within = range_of(flat_in_node(data, d / local, local), node.size(), local, d % local);
          const LayoutRange device = range_of(devices, elements, nodes * local, d);
          EXPECT_EQ(within.size(), device.size());
          if (device.size() > 0) {
            EXPECT_EQ(node.begin + within.begin, device.begin) << member << " on " << d << " of " << nodes << " x " << local;
          }
        }
}

// A stage on two actors, or an actor of one device, shares nothing.
TEST(Blocks, AreOfOneActorWithSeveralDevices) {
  EXPECT_EQ(blocks_of(kCases[0], "0F0,0B0\n0F1,0B1\n", {2, 2}), "");
  EXPECT_EQ(blocks_of(kCases[0], "0F0,0F1,0B0,0B1\n0F2,0F3,0B2,0B3\n", {1, 1}), "");
}

}  // namespace
}  // namespace penstock
