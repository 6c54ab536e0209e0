// SPDX-License-Identifier: Apache-2.0
// State that the devices of an actor hold in shares: what moves, what it weighs, and who owns it. ZeRO: Rajbhandari et al., 1910.02054;
// ZeroPP: 2402.03791.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "base/text.h"
#include "config/compile.h"
#include "lower/lower.h"
#include "models/registry.h"
#include "penstock/compile.h"
#include "penstock/step.h"
#include "program/piece.h"
#include "support/golden.h"

namespace penstock {
namespace {

const std::vector<std::string> kGpt = {"layers=4", "tied=0"};

Config config_of(const std::vector<std::string>& settings, const std::vector<std::string>& model = kGpt) {
  std::vector<Override> overrides;
  for (const char* setting : {"width=16", "heads=2", "context=8", "vocabulary=32", "batch=64", "dtype=f32"})
    overrides.push_back(parse_override(setting));
  for (const std::string& setting : model) overrides.push_back(parse_override(setting));
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  return load_config("", overrides, builtin_models());
}

struct Made {
  Prepared prepared;
  Program program;
  std::int64_t parameters = 0;  // elements
};

Made made(const std::vector<std::string>& settings) {
  const Config config = config_of(settings);
  Made out{prepare(config, builtin_models()), {}, 0};
  out.program = compile_training(config, out.prepared);
  for (const ParameterSpec& spec : out.prepared.parameters) out.parameters += spec.type.elements();
  EXPECT_EQ(print(parse_program(print(out.program))), print(out.program));
  std::set<std::int64_t> run;  // no task is there for nothing
  for (const DeviceProgram& device : out.program.devices)
    for (const Instruction& i : device.instructions)
      if (i.opcode == Opcode::run) run.insert(i.task.value);
  EXPECT_EQ(run.size(), out.program.tasks.size());
  return out;
}

// Bytes that each device sends for collectives of what is no scalar, by a ring, and how many there are, by kind.
struct Volume {
  std::map<Opcode, std::int64_t> bytes, count;
  std::int64_t sum() const {
    std::int64_t sum = 0;
    for (const auto& [opcode, b] : bytes) sum += b;
    return sum;
  }
};

Volume volume_of(
    const Program& program, std::size_t device, const std::function<bool(const Instruction&)>& counts = [](const auto&) { return true; }) {
  const DeviceProgram& d = program.devices[device];
  Volume volume;
  for (const Instruction& i : d.instructions) {
    if (!is_collective(i.opcode) || !counts(i)) continue;
    const Slot &from = d.slots[d.operands_of(i)[0].index()], &to = d.slots[d.results_of(i)[0].slot.index()];
    const std::int64_t bytes = std::max(slot_bytes(from), slot_bytes(to));
    if (bytes == kAlignment) continue;  // the norm, the loss
    const auto members = static_cast<std::int64_t>(program.groups[static_cast<std::size_t>(i.group)].size());
    volume.bytes[i.opcode] += (i.opcode == Opcode::all_reduce ? 2 : 1) * bytes * (members - 1) / members;
    ++volume.count[i.opcode];
  }
  return volume;
}

// Whole members of the blocks and the padding between them: what the formulas call the parameters.
std::int64_t padded(std::int64_t bytes, std::int64_t blocks, std::int64_t tensors, std::int64_t members) {
  return bytes + (tensors + blocks * members) * kAlignment;
}

// Psi: the parameters' bytes. Data parallelism and ZeRO-1 and 2 move 2 Psi (D-1)/D, ZeRO-3 with a gather in each direction 3 Psi (D-1)/D
// (1910.02054, section 7).
TEST(Zero, VolumesAreThoseOfTheFormulas) {
  for (const int data : {2, 4})
    for (const int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE(concat("data ", data, ", zero ", zero));
      const Made m =
          made({"schedule=breadth-first", "actors=1", "chunks=4", "microbatches=4", concat("pipeline.data=", data), concat("zero=", zero)});
      const Volume volume = volume_of(m.program, 0);
      const std::int64_t bytes = m.parameters * 4, tensors = static_cast<std::int64_t>(m.prepared.parameters.size());
      const std::int64_t passes = zero == 3 ? 3 : 2;
      // The last stage's backward follows on its forward: it is gathered once.
      std::int64_t saved = 0;
      if (zero == 3) saved = volume.bytes.at(Opcode::reduce_scatter) * 2 - volume.bytes.at(Opcode::all_gather);
      EXPECT_LT(saved, bytes / 2);
      EXPECT_GE(volume.sum() + saved, passes * bytes * (data - 1) / data);
      EXPECT_LE(volume.sum() + saved, passes * padded(bytes, 4, tensors, data) * (data - 1) / data);
      EXPECT_EQ(volume.count.contains(Opcode::all_reduce), zero == 0);
      EXPECT_EQ(volume.count.contains(Opcode::all_gather), zero > 0);
      if (zero > 0) {
        EXPECT_EQ(volume.count.at(Opcode::reduce_scatter), 4);  // one a stage, whatever the number of micro-batches
      }
    }
}

// ZeroPP gathers a block once per unit of U micro-batches and direction and scatters its gradients once per unit: 3 x 12 h^2 x m/U elements
// of a transformer layer of width h.
TEST(Zero, ZeroppMovesThirtySixSquareWidthsPerUnit) {
  for (const int h : {16, 32})
    for (const int unit : {2, 4, 8}) {
      SCOPED_TRACE(concat("width ", h, ", unit ", unit));
      const int m = 8, data = 2;
      const Made made_here = made({concat("width=", h), "schedule=zeropp", "actors=2", "chunks=2", concat("microbatches=", m),
                                   concat("unit=", unit), "batch=64", concat("pipeline.data=", data)});
      ASSERT_EQ(made_here.prepared.options.zero, 3);  // as its table gathers
      // Stage 1 is one whole transformer layer, on actor 1.
      const DeviceProgram& device = made_here.program.devices[data];
      std::int64_t gathers = 0, scatters = 0, elements = 0;
      for (const Instruction& i : device.instructions) {
        if (!is_collective(i.opcode) || i.stage != 1) continue;
        const bool gather = i.opcode == Opcode::all_gather;
        (gather ? gathers : scatters) += 1;
        const Slot& block = device.slots[(gather ? device.results_of(i)[0].slot : device.operands_of(i)[0]).index()];
        for (const TensorType& part : block.parts)
          if (part.shape.size() == 2) elements += part.elements();
      }
      EXPECT_EQ(gathers, 2 * m / unit);
      EXPECT_EQ(scatters, m / unit);
      EXPECT_EQ(elements, 36 * m * h * h / unit);
    }
}

struct Weight {
  std::int64_t parameters = 0, moments = 0;  // bytes of state tensors
};
Weight weight_of(const DeviceProgram& device) {
  Weight weight;
  for (const Slot& slot : device.slots)
    for (std::size_t p = 0; holds_state(slot.kind) && p < slot.parts.size(); ++p) {
      const std::string tensor = parse_piece(slot.names[p]).tensor;
      const bool moment = tensor.starts_with("first:") || tensor.starts_with("second:");
      if (tensor != "step") (moment ? weight.moments : weight.parameters) += slot.parts[p].bytes();
    }
  return weight;
}

// Bytes of the accumulators' values at the update.
std::int64_t gradients_of(const DeviceProgram& device) {
  std::map<std::int64_t, std::int64_t> live;
  std::int64_t at_update = 0;
  for (const Instruction& i : device.instructions) {
    if (i.opcode == Opcode::free) live.erase(i.slot.value);
    const auto updates = [&](const Result& result) { return holds_state(device.slots[result.slot.index()].kind); };
    if (i.opcode == Opcode::run && std::ranges::any_of(device.results_of(i), updates)) {
      std::int64_t sum = 0;
      for (const auto& [slot, bytes] : live) sum += bytes;
      at_update = std::max(at_update, sum);
    }
    for (const Result& result : device.results_of(i)) {
      const Slot& slot = device.slots[result.slot.index()];
      std::int64_t bytes = 0;
      for (const TensorType& part : slot.parts) bytes += part.bytes();
      if (slot.name.starts_with("sum:") && bytes > 4) live[result.slot.value] = bytes;
    }
  }
  return at_update;
}

// The gathered blocks that a device holds at a time.
std::size_t most_gathered(const DeviceProgram& device) {
  std::set<std::int64_t> live;
  std::size_t most = 0;
  for (const Instruction& i : device.instructions) {
    if (i.opcode == Opcode::free) live.erase(i.slot.value);
    if (i.opcode == Opcode::all_gather && i.kind == Kind::UNSHARD) live.insert(device.results_of(i)[0].slot.value);
    most = std::max(most, live.size());
  }
  return most;
}

// In a window each step gathers and scatters as it would alone, and devices hold of state, sums and gathered blocks no more than for a
// step.
TEST(Zero, StepsOfAWindowDoAsTheyWouldAlone) {
  for (const char* schedule : {"breadth-first", "interleaved-1f1b"}) {
    std::vector<std::int64_t> planned;
    for (const int zero : {1, 2, 3}) {
      SCOPED_TRACE(concat(schedule, ", zero ", zero));
      const auto with = [&](const char* window) {
        return made({concat("schedule=", schedule), "actors=2", "chunks=4", "layers=8", "microbatches=4", "pipeline.data=2", "width=64",
                     "batch=8", concat("zero=", zero), window});
      };
      const Program alone = with("clip=1").program, window = with("window=3").program;
      for (const std::size_t d : {0, 3}) {
        const Volume of_step = volume_of(alone, d), of_window = volume_of(window, d);
        for (const auto& [opcode, count] : of_step.count) {
          EXPECT_EQ(of_window.count.at(opcode), 3 * count) << name(opcode);
          EXPECT_EQ(of_window.bytes.at(opcode), 3 * of_step.bytes.at(opcode)) << name(opcode);
        }
        EXPECT_EQ(weight_of(window.devices[d]).parameters, weight_of(alone.devices[d]).parameters);
        EXPECT_EQ(weight_of(window.devices[d]).moments, weight_of(alone.devices[d]).moments);
        EXPECT_EQ(gradients_of(window.devices[d]), gradients_of(alone.devices[d]));
        EXPECT_LE(most_gathered(window.devices[d]), most_gathered(alone.devices[d]));
      }
      const DeviceProgram& device = window.devices[0];
      planned.push_back(device.state_bytes + device.step_bytes + device.scratch_bytes);
    }
    EXPECT_LT(planned[2], planned[0]);
  }
}

// All slices of a stage read its parameters from one gather and add to one sum: as much travels, and devices hold as much, as without
// slices. Actor 0 is left out: its positions have their gradient behind the last slice, and so a block of their own.
TEST(Zero, SlicesOfAStageShareItsCollectives) {
  for (const char* schedule : {"breadth-first", "interleaved-1f1b", "zeropp"})
    for (const char* zero : {"zero=2", "zero=3"})
      for (const char* slices : {"slices=2", "slices=4", "slices=[5, 3]"}) {
        SCOPED_TRACE(concat(schedule, ", ", zero, ", ", slices));
        const auto with = [&](const char* cut) {
          return made({concat("schedule=", schedule), "actors=2", "chunks=2", "microbatches=4", "pipeline.data=2", zero, cut});
        };
        const Program whole = with("slices=1").program, cut = with(slices).program;
        for (const std::size_t d : {2, 3}) {
          EXPECT_EQ(volume_of(cut, d).count, volume_of(whole, d).count);
          EXPECT_EQ(volume_of(cut, d).bytes, volume_of(whole, d).bytes);
          EXPECT_EQ(weight_of(cut.devices[d]).parameters, weight_of(whole.devices[d]).parameters);
          EXPECT_EQ(weight_of(cut.devices[d]).moments, weight_of(whole.devices[d]).moments);
          EXPECT_EQ(gradients_of(cut.devices[d]), gradients_of(whole.devices[d]));
          EXPECT_LE(most_gathered(cut.devices[d]), 2);
        }
      }
}

// Each device: (1 + 2) Psi and Psi of gradients; from level 1 the moments, from 2 (here, as sums are scattered once, from 1) the gradients,
// from 3 the parameters are of D-th parts, which together are the whole, exactly.
TEST(Zero, MemoryIsThatOfTheFormulas) {
  for (const int data : {2, 4, 8})
    for (const int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE(concat("data ", data, ", zero ", zero));
      const Made m = made({"schedule=gpipe", "actors=1", "microbatches=2", concat("pipeline.data=", data), concat("zero=", zero)});
      const std::int64_t bytes = 4 * m.parameters, parts = static_cast<std::int64_t>(m.prepared.parameters.size());
      Weight sum;
      std::int64_t gradients = 0;
      for (const DeviceProgram& device : m.program.devices) {
        const Weight weight = weight_of(device);
        const std::int64_t share = bytes / data, slack = (parts + 1) * kAlignment;
        EXPECT_LE(std::abs(weight.parameters - (zero == 3 ? share : bytes)), zero == 3 ? slack : 0);
        EXPECT_LE(std::abs(weight.moments - (zero > 0 ? 2 * share : 2 * bytes)), zero > 0 ? 2 * slack : 0);
        EXPECT_LE(std::abs(gradients_of(device) - (zero > 0 ? share : bytes)), zero > 0 ? slack : 0);
        sum.parameters += weight.parameters;
        sum.moments += weight.moments;
        gradients += gradients_of(device);
      }
      EXPECT_EQ(sum.parameters, zero == 3 ? bytes : data * bytes);
      EXPECT_EQ(sum.moments, zero > 0 ? 2 * bytes : 2 * data * bytes);
      EXPECT_EQ(gradients, zero > 0 ? bytes : data * bytes);
    }
}

// Hosts share parameters and sums of gradients as at level 3, the devices of a host share what they both have as at level 1: each device
// moves 3 Psi (N-1)/N between N hosts and 2 Psi/N (L-1)/L inside of its own, and holds Psi/N of parameters, 2 Psi/(N L) of moments.
TEST(Zero, NodesShareWhatDevicesOfOneHaveAlike) {
  for (const int hosts : {2, 4})
    for (const int local : {2, 4}) {
      SCOPED_TRACE(concat(hosts, " hosts of ", local));
      const Made m = made({"schedule=breadth-first", "actors=1", "chunks=4", "microbatches=2", "batch=128", concat("pipeline.data=", hosts),
                           concat("pipeline.local=", local), "zero=3"});
      const std::int64_t bytes = m.parameters * 4, tensors = static_cast<std::int64_t>(m.prepared.parameters.size());
      const std::int64_t most = padded(bytes, 4, tensors, hosts * local);
      const auto is_inside = [&](const Instruction& i) { return m.program.groups[static_cast<std::size_t>(i.group)][1] == 1; };
      const Volume between = volume_of(m.program, 0, [&](const Instruction& i) { return !is_inside(i); });
      const Volume inside = volume_of(m.program, 0, is_inside);
      // The last stage's backward follows on its forward: it is gathered once.
      const std::int64_t saved = between.bytes.at(Opcode::reduce_scatter) * 2 - between.bytes.at(Opcode::all_gather);
      EXPECT_GE(between.sum() + saved, 3 * bytes * (hosts - 1) / hosts);
      EXPECT_LE(between.sum() + saved, 3 * most * (hosts - 1) / hosts);
      EXPECT_GE(inside.sum(), 2 * bytes / hosts * (local - 1) / local - (tensors + 4) * kAlignment);
      EXPECT_LE(inside.sum(), 2 * most / hosts * (local - 1) / local);
      EXPECT_EQ(inside.count.at(Opcode::reduce_scatter), 4);
      EXPECT_EQ(inside.count.at(Opcode::all_gather), 4);
      const std::int64_t slack = (tensors + 4) * kAlignment;
      Weight sum;
      for (const DeviceProgram& device : m.program.devices) {
        const Weight weight = weight_of(device);
        EXPECT_LE(std::abs(weight.parameters - bytes / hosts), slack);
        EXPECT_LE(std::abs(weight.moments - 2 * bytes / (hosts * local)), 2 * slack);
        EXPECT_LE(gradients_of(device), bytes / hosts + slack);
        sum.parameters += weight.parameters;
        sum.moments += weight.moments;
      }
      EXPECT_EQ(sum.parameters, local * bytes);
      EXPECT_EQ(sum.moments, 2 * bytes);
    }
}

// ZeroPP's second hybrid: F, I and W of a zero-bubble table, level 3 among hosts, level 1 in each.
TEST(Zero, ZeroBubbleOnNodes) {
  const Made m = made({"schedule=zb-h1", "actors=2", "microbatches=4", "pipeline.data=2", "pipeline.local=2", "zero=3"});
  const std::vector<std::vector<std::int32_t>> groups = {{0, 2}, {0, 1}, {0, 1, 2, 3}, {1, 3}, {2, 3},
                                                         {4, 6}, {4, 5}, {4, 5, 6, 7}, {5, 7}, {6, 7}};
  const auto sorted = [](std::vector<std::vector<std::int32_t>> list) {
    std::ranges::sort(list);
    return list;
  };
  EXPECT_EQ(sorted(m.program.groups), sorted(groups));
  for (const DeviceProgram& device : m.program.devices) EXPECT_LE(most_gathered(device), 2);
}

// Hybrid sharding: the same programs of devices that are numbered the other way, so that neighbours have what hosts have.
TEST(Zero, NeighboursShareWhatDevicesFarFromEachOtherHaveAlike) {
  constexpr std::int32_t kHosts = 2, kLocal = 4;
  const std::vector<std::string> settings = {"schedule=zb-h1",  "actors=2",         "microbatches=2", "batch=16",
                                             "pipeline.data=2", "pipeline.local=4", "zero=3"};
  std::vector<std::string> outside = settings;
  outside.push_back("pipeline.local_outside=true");
  const Program near = made(settings).program, far = made(outside).program;
  const auto number = [&](std::int32_t d) {  // of `near`'s device there
    const std::int32_t first = d / (kHosts * kLocal) * (kHosts * kLocal), place = d - first;
    return first + place % kLocal * kHosts + place / kLocal;
  };
  std::set<std::vector<std::int32_t>> groups, moved;
  for (const auto& group : far.groups) groups.insert(group);
  for (auto group : near.groups) {
    std::ranges::transform(group, group.begin(), number);
    std::ranges::sort(group);
    moved.insert(group);
  }
  EXPECT_EQ(moved, groups);
  EXPECT_TRUE(groups.contains({0, 1}));
  EXPECT_TRUE(groups.contains({0, 2, 4, 6}));
  for (std::int32_t d = 0; d < std::ssize(near.devices); ++d) {
    const DeviceProgram& here = near.devices[static_cast<std::size_t>(d)];
    const DeviceProgram& there = far.devices[static_cast<std::size_t>(number(d))];
    EXPECT_TRUE(std::ranges::equal(here.instructions, there.instructions, {}, &Instruction::opcode, &Instruction::opcode)) << d;
    EXPECT_EQ(weight_of(here).parameters, weight_of(there).parameters) << d;
  }
}

TEST(Zero, OneNodeHasAllParameters) {
  const Made m = made({"schedule=zeropp", "actors=2", "chunks=2", "microbatches=4", "pipeline.local=2"});
  EXPECT_EQ(m.prepared.options.zero, 1);
}

TEST(Zero, EachLevelPlansLess) {
  std::vector<std::int64_t> peaks;
  for (const int zero : {0, 1, 2, 3}) {
    const Made m = made({"schedule=breadth-first", "actors=1", "chunks=4", "microbatches=2", "pipeline.data=4", concat("zero=", zero)});
    peaks.push_back(m.program.devices[0].device_bytes());
  }
  EXPECT_LT(peaks[1], peaks[0]);
  EXPECT_LE(peaks[2], peaks[1]);  // breadth first, each sum is scattered once at either level
  EXPECT_LT(peaks[3], peaks[2]);
}

TEST(Zero, ZeroppHoldsTwoBlocksAtATime) {
  for (const int chunks : {2, 4})
    for (const int unit : {1, 2, 3, 4, 8}) {
      SCOPED_TRACE(concat("chunks ", chunks, ", unit ", unit));
      const Made m = made({"layers=8", "schedule=zeropp", "actors=2", concat("chunks=", chunks), "microbatches=8", concat("unit=", unit),
                           "pipeline.data=2"});
      for (const DeviceProgram& device : m.program.devices) EXPECT_EQ(most_gathered(device), 2);
    }
}

// A device goes on with another run before it waits for what it has just begun to scatter: neither the sum nor its share is asked for
// sooner, where there is something left to do.
TEST(Zero, ReductionsGoOnBesideComputing) {
  for (const char* settings : {"schedule=zeropp unit=2", "schedule=zeropp unit=8", "schedule=breadth-first pipeline.local=2"}) {
    SCOPED_TRACE(settings);
    std::vector<std::string> all = split(settings, ' ');
    all.insert(all.end(), {"layers=8", "actors=1", "chunks=4", "microbatches=8", "pipeline.data=2", "zero=3"});
    const Made m = made(all);
    for (const DeviceProgram& device : m.program.devices) {
      std::set<std::int64_t> begun;  // slots, since the last run of the loop
      std::size_t reductions = 0, last = 0;
      const auto computes = [](const Instruction& i) {
        return i.opcode == Opcode::run && i.action && i.kind != Kind::UNSHARD && i.kind != Kind::REDUCE_GRAD;
      };
      for (std::size_t i = 0; i < device.instructions.size(); ++i)
        if (computes(device.instructions[i])) last = i;
      for (std::size_t i = 0; i < last; ++i) {
        const Instruction& instruction = device.instructions[i];
        if (computes(instruction)) begun.clear();
        EXPECT_FALSE(instruction.opcode == Opcode::free && begun.contains(instruction.slot.value)) << i;
        for (const SlotId operand : device.operands_of(instruction)) EXPECT_FALSE(begun.contains(operand.value)) << i;
        if (instruction.opcode != Opcode::reduce_scatter) continue;
        ++reductions;
        begun.insert({device.operands_of(instruction)[0].value, device.results_of(instruction)[0].slot.value});
      }
      EXPECT_GE(reductions, 3u);
    }
  }
}

// Actors that keep on with one stage need no second gather; a device never holds more than it works with and what comes next.
TEST(Zero, TablesWithoutGathersGetThem) {
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "sequential", "interleaved-1f1b", "breadth-first"}) {
    SCOPED_TRACE(schedule);
    const bool chunked = std::string_view(schedule) == "interleaved-1f1b" || std::string_view(schedule) == "breadth-first";
    const Made m =
        made({concat("schedule=", schedule), "actors=2", chunked ? "chunks=2" : "chunks=1", "microbatches=4", "pipeline.data=2", "zero=3"});
    for (const DeviceProgram& device : m.program.devices) EXPECT_LE(most_gathered(device), 2);
    if (!chunked) {
      EXPECT_EQ(volume_of(m.program, 0).count.at(Opcode::all_gather), 1);
    }
  }
}

// A state may itself be a piece of something: lowering makes each share of it a piece of that piece.
TEST(Zero, SharesOfAPieceAreNamedInIt) {
  ModelOptions sizes;
  sizes.stages = 2;
  sizes.numbers = {{"width", 8}, {"heads", 2}, {"context", 4}, {"vocabulary", 16}, {"layers", 2}};
  const Graph step = training_step(*make_model(builtin_models(), "gpt", sizes), {8, 4, 4}, {.name = "adamw"});
  Graph renamed = step;
  std::map<std::string, std::string> names;
  for (std::size_t i = 0; i < static_cast<std::size_t>(step.state); ++i) {
    std::string& name = renamed.values[renamed.inputs[i]].name;
    const std::int64_t elements = step.type(step.inputs[i]).elements();
    names[name] = piece_name(name, {0, elements, elements});
    name = names[name];
  }
  const auto held = [](const Program& program) {
    std::set<std::pair<std::size_t, std::string>> out;
    for (std::size_t d = 0; d < program.devices.size(); ++d)
      for (const Slot& slot : program.devices[d].slots)
        for (const std::string& name : slot.names) out.emplace(d, name);
    return out;
  };
  const Schedule schedule = make_schedule("1f1b", {.actors = 2, .microbatches = 2});
  for (int zero = 0; zero <= 3; ++zero) {
    std::set<std::pair<std::size_t, std::string>> expected;
    for (const auto& [device, name] : held(compile(step, schedule, {.devices = {2, 2}, .zero = zero}))) {
      Piece piece = parse_piece(name);
      piece.tensor = names.at(piece.tensor);
      expected.emplace(device, piece_name(piece));
    }
    EXPECT_EQ(held(compile(renamed, schedule, {.devices = {2, 2}, .zero = zero})), expected) << "zero " << zero;
  }
}

// What the stage's actor alone does not settle stays whole: a tied embedding on two actors, a stage on two actors.
TEST(Zero, WhatSeveralActorsNeedStaysWhole) {
  const auto is_whole = [](const Made& m, const std::string& name) {
    for (const DeviceProgram& device : m.program.devices)
      for (const Slot& slot : device.slots)
        for (const std::string& held : slot.names)
          if (parse_piece(held).tensor == name && !parse_piece(held).whole()) return false;
    return true;
  };
  const std::vector<std::string> settings = {"tied=1", "schedule=1f1b", "microbatches=4", "pipeline.data=2", "zero=3"};
  std::vector<std::string> one = settings, two = settings;
  one.push_back("actors=1");
  two.push_back("actors=2");
  EXPECT_FALSE(is_whole(made(one), "wte.weight"));
  EXPECT_TRUE(is_whole(made(two), "wte.weight"));
  EXPECT_FALSE(is_whole(made(two), "h.0.mlp.c_fc.weight"));
  EXPECT_TRUE(is_whole(made({"schedule=chimera", "actors=2", "microbatches=4", "pipeline.data=2", "zero=3"}), "h.0.mlp.c_fc.weight"));
}

// Weight decay reads the parameter by itself, before the gradient comes in: adam's and nesterov's too.
TEST(Zero, WhatUpdatesReadByItselfIsInShares) {
  ModelOptions sizes;
  sizes.numbers = {{"width", 16}, {"heads", 2}, {"context", 4}, {"vocabulary", 16}, {"layers", 2}};
  const auto model = make_model(builtin_models(), "gpt", sizes);
  std::map<std::string, std::int64_t> held;  // bytes on the first device
  for (const std::string optimiser : {"sgd", "nesterov", "adamw", "adam"}) {
    const Graph step = training_step(*model, {8, 4, 4}, {.name = optimiser});
    const Program program = compile(step, make_schedule("1f1b", {.actors = 1, .microbatches = 2}), {.devices = {2}, .zero = 3});
    for (const Slot& slot : program.devices[0].slots)
      if (!slot.names.empty()) held[optimiser] += slot_bytes(slot);
  }
  EXPECT_EQ(held["nesterov"], held["sgd"]);
  EXPECT_EQ(held["adam"], held["adamw"]);
}

// One sum over the devices for a stage and step, also where I makes some of its gradients.
TEST(Zero, OneReductionForAStage) {
  const Made m = made({"schedule=zb-h1", "actors=2", "microbatches=4", "pipeline.data=2"});
  EXPECT_EQ(volume_of(m.program, 0).count.at(Opcode::all_reduce), 1);
  EXPECT_EQ(volume_of(m.program, 2).count.at(Opcode::all_reduce), 1);
}

// Members of the mesh's axes may have other blocks than the first: t5's along the tensor axis do.
TEST(Zero, ProgramsOfOneRunHoldTheSamePieces) {
  const std::vector<std::string> t5 = {"model.name=t5", "model.buckets=4", "model.distance=8", "layers=1"};
  for (const auto& [model, way] : std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>>{
           {kGpt, {"actors=2", "chunks=2", "schedule=zeropp"}},
           {kGpt, {"actors=2", "chunks=2", "schedule=interleaved-1f1b"}},
           {kGpt, {"actors=2", "chunks=2", "schedule=zeropp", "pipeline.local=2"}},
           {kGpt, {"actors=2", "chunks=2", "schedule=zeropp", "pipeline.context=2", "pipeline.tensor=2"}},
           {t5, {"actors=1", "schedule=1f1b", "pipeline.context=2", "pipeline.tensor=2", R"(pipeline.axes=["context", "tensor"])"}},
           {t5, {"actors=1", "schedule=1f1b", "pipeline.context=2", "pipeline.tensor=2", R"(pipeline.axes=["tensor", "context"])"}}}) {
    SCOPED_TRACE(join(model, ", ") + ", " + join(way, ", "));
    std::vector<std::string> settings = {"microbatches=4", "pipeline.data=2", "zero=3"};
    settings.insert(settings.end(), way.begin(), way.end());
    const Config config = config_of(settings, model);
    const Prepared prepared = prepare(config, builtin_models());
    const Program training = compile_training(config, prepared);
    for (const Program& other : {compile_evaluation(config, prepared), compile_gradients(config, prepared)})
      for (std::size_t d = 0; d < training.devices.size(); ++d) {
        std::set<std::string> held;
        for (const Slot& slot : training.devices[d].slots) held.insert(slot.names.begin(), slot.names.end());
        for (const Slot& slot : other.devices[d].slots)
          for (const std::string& name : slot.names) EXPECT_TRUE(held.contains(name)) << other.name << " device " << d << ": " << name;
      }
  }
}

// A sum over the members of an axis is one of what each device has.
TEST(Zero, SharesWhatMembersOfAnAxisSum) {
  const Made m = made({"schedule=gpipe", "actors=1", "microbatches=2", "pipeline.data=2", "pipeline.context=2", "zero=3"});
  std::int64_t elements = 0;
  for (const std::size_t device : {0, 2})  // the first member of each
    for (const Slot& slot : m.program.devices[device].slots)
      for (std::size_t p = 0; p < slot.names.size(); ++p)
        if (parse_piece(slot.names[p]).tensor == "h.0.mlp.c_fc.weight") {
          EXPECT_FALSE(parse_piece(slot.names[p]).whole());
          elements += slot.parts[p].elements();
        }
  EXPECT_EQ(elements, 16 * 64);
}

// What the computation reads in its own dtype is gathered in it: all but norms and embeddings.
TEST(Zero, GathersInTheDtypeOfTheComputation) {
  for (const auto& [dtype, slices] : {std::pair("bf16", 1), {"f32", 1}, {"bf16", 2}}) {
    const Made m = made({concat("dtype=", dtype), "width=32", "schedule=gpipe", "actors=1", "microbatches=2", "pipeline.data=2", "zero=3",
                         concat("slices=", slices)});
    std::map<DType, std::int64_t> expected, found;  // elements
    for (const ParameterSpec& spec : m.prepared.parameters) {
      const bool is_read_whole = spec.name.find("ln_") != spec.name.npos || spec.name.starts_with("wte") || spec.name.starts_with("wpe");
      expected[dtype == std::string("bf16") && !is_read_whole ? DType::bf16 : DType::f32] += spec.type.elements();
    }
    const DeviceProgram& device = m.program.devices[0];
    for (const Instruction& i : device.instructions)
      if (i.opcode == Opcode::all_gather && i.kind == Kind::UNSHARD)
        for (const TensorType& part : device.slots[device.results_of(i)[0].slot.index()].parts) found[part.dtype] += part.elements();
    EXPECT_EQ(found, expected) << dtype << ", slices " << slices;
  }
}

TEST(Zero, PerceptronInShares) {
  ModelOptions options;
  options.stages = 2;
  options.numbers = {{"width", 8}};
  const auto model = make_model(builtin_models(), "mlp", options);
  ScheduleOptions shape;
  shape.actors = 1;
  shape.chunks = 2;
  shape.microbatches = 1;
  const Schedule schedule = with_gathers(make_schedule("sequential", shape), /*turns=*/true);
  const Graph step = training_step(*model, {4, 4, 2}, {});
  CompileOptions lowering{.devices = {2}, .zero = 3};
  for (const ParameterSpec& spec : model->parameters()) lowering.parameters.push_back(spec.name);
  test::expect_golden("lower/perceptron_zero3.txt", print(lower(step, schedule, lowering)));
  const Graph step_of_four = training_step(*model, {4, 8, 4}, {});
  lowering.devices = {4};
  lowering.local = 2;
  test::expect_golden("lower/perceptron_zero3_nodes.txt", print(lower(step_of_four, schedule, lowering)));
}

}  // namespace
}  // namespace penstock
