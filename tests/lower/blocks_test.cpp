// SPDX-License-Identifier: Apache-2.0
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
  CompileOptions options = {.zero = 1};
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

std::string blocks_of(const std::string& step, const std::string& table, const CompileOptions& options) {
  const LowerInput input = lower_input(parse_graph(step), parse_schedule(table, "table.csv"), options);
  Draft draft;
  run_passes(input, draft, "blocks");
  const std::string text = print(draft);
  return text.substr(std::string_view("penstock draft 1\nafter blocks\n").size());
}

std::string blocks_of(const Case& c, const std::string& table, const std::vector<int>& devices) {
  CompileOptions options = c.options;
  options.devices = devices;
  return blocks_of(step_text(c), table, options);
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
     {.zero = 3}},
    {"what other programs read is a parameter", kMomentum, "%3", "%2", kGradientShared, {.zero = 1, .parameters = {"m"}}},
    {"a block has one parameter for each gradient", kMomentum, "%3", "%2", "", {.zero = 3, .parameters = {"m"}}},
    {"which the loop reads", "%2: f32[4] = add(%m, %0)", "%w", "%2", "", {.zero = 3, .parameters = {"m"}}},
    {"a gradient that updates nothing has none", kSumOf0, "%w", "%m", kGradientShared, {.zero = 3}, "f32[4]", "", "%w", "f32", "%9"},
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
     {.zero = 1},
     "f64[4]"},
    {"which can be summed", kMomentum, "%3", "%2", "", {.zero = 1}, "f32[4]", "", "%w", "f16"},
    {"two gradients of one class need each other whole",
     "%5: f32[4] = add(%0, %7) %3: f32[4] = sub(%w, %5)",
     "%3",
     "%m",
     "",
     {.zero = 1},
     "f32[4]",
     "f32[4]"},
    {"a constant joins no classes",
     "%4: f32[4] = full() {dtype=f32, fill_value=2.0, size=[4]} %5: f32[4] = mul(%0, %4) %6: f32[4] = mul(%7, %4)"
     "%2: f32[4] = sub(%m, %6) %3: f32[4] = sub(%w, %5)",
     "%3",
     "%2",
     "block 0 (f32[4], f32[4])\nsharded state 1 0 1\nsharded result 0 0 0\nsharded result 1 0 1\n",
     {.zero = 1},
     "f32[4]",
     "f32[4]"},
    {"sums of each dtype are a block of their own",
     kMomentum + "%4: f64[] = sum(%7) {dim=[0], keepdim=false} %5: f32[] = to(%4) {dtype=f32} %9: f32[] = add(%1, %5)",
     "%3",
     "%2",
     "block 0 (f64[4])\nblock 1 (f32[4])\nsharded state 1 1 0\nsharded result 0 1 0\nsharded result 1 0 0\n",
     {.zero = 1},
     "f32[4]",
     "f64[4]",
     "%w",
     "f32",
     "%9"},
    {"and parameters for all or none", kSumOf7, "%3", "%m", "", {.zero = 3}, "f32[4]", "f32[4]", "%w", "f32", "%9"},
    {"but other states for any",
     kSumOf7,
     "%3",
     "%m",
     "block 0 (f32[4], f32[4])\nsharded result 0 0 0\nsharded result 1 0 1\n",
     {.zero = 1},
     "f32[4]",
     "f32[4]",
     "%w",
     "f32",
     "%9"},
    {"what is read ahead of the loop is whole", "%3: f32[4] = sub(%w, %0)", "%3", "%m", "", {.zero = 3}, "f32[4]", "", "%8"},
    {"though its gradient need not be", "%3: f32[4] = sub(%w, %0)", "%3", "%m", kGradientShared, {.zero = 1}, "f32[4]", "", "%8"},
};

TEST(Blocks, FollowFromWhatIsComputedOfAGradient) {
  for (const Case& c : kCases) EXPECT_EQ(blocks_of(c, "0F0,0F1,0B0,0B1\n", {2}), c.expected) << c.what;
}

// A tensor along the hosts, and what a host has of it along its devices, is the tensor along the devices. Each has 64 bytes or a multiple.
TEST(Blocks, AreCutAlongNodesAndWithinThemAsAlongDevices) {
  const ShareBlock block{{{DType::f64, {7}}, {DType::f64, {3, 11}}, {DType::f64, {1}}}, {}, {}};
  const std::vector<std::int64_t> offsets = member_offsets(block);
  for (const std::int32_t local : {1, 2, 3})
    for (const std::int32_t hosts : {1, 2, 4})
      for (std::int32_t d = 0; d < hosts * local; ++d)
        for (std::int32_t member = 0; member < 3; ++member) {
          const std::int64_t elements = block.members[member].elements();
          const Layout data = flat_in(block, offsets, member, hosts * local, local),
                       devices = flat_in(block, offsets, member, hosts * local, 1);
          const LayoutRange host = range_of(data, elements, hosts, d / local);
          const LayoutRange within = range_of(flat_in_host(data, d / local, local), host.size(), local, d % local);
          const LayoutRange device = range_of(devices, elements, hosts * local, d);
          EXPECT_EQ(within.size(), device.size());
          if (device.size() > 0) {
            EXPECT_EQ(host.begin + within.begin, device.begin) << member << " on " << d << " of " << hosts << " x " << local;
          }
        }
}

// The loop reads w and v cast and n as it is; all are of so many elements.
std::string blocks_of_casts(int elements, int level) {
  std::string text =
      "penstock graph 1\ngraph @step(%w: f32[N], %v: f32[N], %n: f32[N], %x: bf16[8,N]) -> (f32[N], f32[N], f32[N], f32[]) {state=3} {\n"
      "%0: f32[N], %1: f32[N], %2: f32[N], %3: f32[] = accumulate(%x, %w, %v, %n) {microbatches=4, split=1}"
      " (%x: bf16[2,N], %w: f32[N], %v: f32[N], %n: f32[N]) -> (f32[N], f32[N], f32[N], f32[]) {\n"
      "%0: bf16[N] = to(%w) {dtype=bf16, sequence=1}\n"
      "%1: bf16[N] = to(%v) {dtype=bf16, sequence=2}\n"
      "%2: bf16[2,N] = mul(%x, %0) {sequence=3}\n"
      "%3: bf16[2,N] = add(%2, %1) {sequence=4}\n"
      "%4: f32[2,N] = to(%3) {dtype=f32, sequence=5}\n"
      "%5: f32[2,N] = mul(%4, %n) {sequence=6}\n"
      "%6: f32[] = sum(%5) {dim=[0, 1], keepdim=false, sequence=7}\n"
      "%7: bf16[N] = sum(%2) {dim=[0], keepdim=false, phase=\"backward\", sequence=3}\n"
      "%8: f32[N] = to(%7) {dtype=f32, phase=\"backward\", sequence=1}\n"
      "%9: bf16[N] = sum(%3) {dim=[0], keepdim=false, phase=\"backward\", sequence=4}\n"
      "%10: f32[N] = to(%9) {dtype=f32, phase=\"backward\", sequence=2}\n"
      "%11: f32[N] = sum(%4) {dim=[0], keepdim=false, phase=\"backward\", sequence=6}\n"
      "return %8, %10, %11, %6\n}\n"
      "%4: f32[N] = sub(%w, %0) %5: f32[N] = sub(%v, %1) %6: f32[N] = sub(%n, %2)\nreturn %4, %5, %6, %3\n}\n";
  for (std::size_t at = 0; (at = text.find("N]", at)) != std::string::npos;) text.replace(at, 1, concat(elements));
  return blocks_of(text, "0F0,0F1,0B0,0B1\n", {.devices = {2}, .zero = level});
}

// Casts take a block of their own, of which the bytes that are gathered are half. Sums are kept and travel as they are, so that of the code
// behind the loop nothing changes.
TEST(Blocks, AreGatheredAsTheyAreRead) {
  const std::string members =
      "sharded state 0 1 0\nsharded state 1 1 1\nsharded state 2 0 0\n"
      "sharded result 0 1 0\nsharded result 1 1 1\nsharded result 2 0 0\n";
  EXPECT_EQ(blocks_of_casts(96, 3), concat("block 0 (f32[96]) parameters (2) for (0)\n",
                                           "block 1 (f32[96], f32[96]) parameters (0, 1) as bf16 for (0)\n", members));
  EXPECT_EQ(blocks_of_casts(48, 3),
            concat("block 0 (f32[48]) parameters (2) for (0)\n", "block 1 (f32[48], f32[48]) parameters (0, 1) for (0)\n", members))
      << "in bf16 the second would begin elsewhere";
  EXPECT_EQ(blocks_of_casts(96, 2),
            "block 0 (f32[96], f32[96], f32[96])\nsharded result 0 0 0\nsharded result 1 0 1\nsharded result 2 0 2\n");
}

// A stage on two actors, or an actor of one device, shares nothing.
TEST(Blocks, AreOfOneActorWithSeveralDevices) {
  EXPECT_EQ(blocks_of(kCases[0], "0F0,0B0\n0F1,0B1\n", {2, 2}), "");
  EXPECT_EQ(blocks_of(kCases[0], "0F0,0F1,0B0,0B1\n0F2,0F3,0B2,0B3\n", {1, 1}), "");
}

}  // namespace
}  // namespace penstock
