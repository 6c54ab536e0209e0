// SPDX-License-Identifier: Apache-2.0
// Programs under virtual time: equal to the rules of waiting applied literally, and never faster than they can be.
#include "simulate/simulate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "base/numbers.h"
#include "base/text.h"
#include "program/interpreter.h"
#include "program/random_transfers.h"
#include "program/verify.h"
#include "support/errors.h"
#include "support/random_program.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::message_of;
using test::random_program;
using test::random_transfers;
using test::Rules;

// Times in eighths, so that sums are exact.
Durations random_durations(const Program& program, std::mt19937_64& random, bool positive = false) {
  Durations durations;
  for (const DeviceProgram& device : program.devices) {
    std::vector<double>& row = durations.emplace_back();
    for (const Instruction& i : device.instructions) {
      const bool computes = i.opcode == Opcode::run || i.opcode == Opcode::copy;
      row.push_back(static_cast<double>(random() % (computes ? 64 : 3) + (positive ? 1 : 0)) / 8);
      if (i.opcode == Opcode::free) row.back() = 0;
    }
  }
  return durations;
}

Network random_network(std::mt19937_64& random, std::int32_t devices) {
  Network network;
  for (std::int32_t from = 0; from < devices; ++from)
    for (std::int32_t to = 0; to < devices; ++to) {
      Link link;
      link.latency = static_cast<double>(random() % 16) / 8;
      link.bandwidth = static_cast<double>(64 << random() % 4);
      network.between[{from, to}] = link;
    }
  network.host.latency = static_cast<double>(random() % 4) / 8;
  network.host.bandwidth = static_cast<double>(64 << random() % 4);
  return network;
}

// When everything is done, by the rules of program/interpreter.h as a test of the interpreter writes them; nothing if it never is.
class ByTheRules {
 public:
  ByTheRules(const Program& program, const Durations& durations, const Network& network)
      : program_(program), durations_(durations), network_(network), rules_(program) {
    for (const DeviceProgram& device : program.devices) done_.emplace_back(device.instructions.size(), kUnknown);
    started_ = done_;
  }

  std::optional<double> makespan() {
    const std::size_t devices = program_.devices.size();
    std::vector<double> now(devices, 0);
    std::vector<std::size_t> next(devices, 0);
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t d = 0; d < devices; ++d)
        while (next[d] < program_.devices[d].instructions.size()) {
          const double start = earliest(static_cast<int>(d), next[d], now[d]);
          if (start == kUnknown) break;
          now[d] = execute(static_cast<int>(d), next[d], start);
          ++next[d];
          progress = true;
        }
    }
    double end = 0;
    for (std::size_t d = 0; d < devices; ++d) {
      if (next[d] < program_.devices[d].instructions.size()) return std::nullopt;
      end = std::max(end, now[d]);
      for (double done : done_[d]) end = std::max(end, done);
    }
    return end == kUnknown ? std::nullopt : std::optional(end);
  }

 private:
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  double earliest(int device, std::size_t instruction, double now) const {
    std::vector<double> candidates{now};
    for (double done : done_[at(device)])
      if (done > now && done != kUnknown) candidates.push_back(done);
    std::sort(candidates.begin(), candidates.end());
    for (double time : candidates)
      if (rules_.may_start(device, instruction, [&](int d, std::size_t i) { return done_[at(d)][i] <= time; })) return time;
    return kUnknown;
  }

  double execute(int device, std::size_t instruction, double start) {
    const Instruction& i = program_.devices[at(device)].instructions[instruction];
    const double end = start + durations_[at(device)][instruction];
    started_[at(device)][instruction] = end;
    if (is_host_copy(i.opcode)) {
      double& free_at = host_free_at_[device];
      const DeviceProgram& own = program_.devices[at(device)];
      free_at =
          std::max(end, free_at) + static_cast<double>(slot_bytes(own.slots[own.operands_of(i)[0].index()])) / network_.host.bandwidth;
      done_[at(device)][instruction] = free_at + network_.host.latency;
      return end;
    }
    const auto others = rules_.other_ends(device, instruction);
    double ready = end;
    for (const auto& [peer, other] : others) ready = std::max(ready, started_[at(peer)][other]);
    if (others.empty()) done_[at(device)][instruction] = end;
    if (others.empty() || ready == kUnknown) return end;
    const double done = is_collective(i.opcode) ? finish_collective(device, i, ready) : finish_transfer(device, i, ready);
    done_[at(device)][instruction] = done;
    for (const auto& [peer, other] : others) done_[at(peer)][other] = done;
    return end;
  }

  double bytes(int device, SlotId slot) const { return static_cast<double>(slot_bytes(program_.devices[at(device)].slots[slot.index()])); }

  double finish_transfer(int device, const Instruction& i, double ready) {
    const std::pair<std::int32_t, std::int32_t> ends = i.opcode == Opcode::send ? std::pair(device, i.peer) : std::pair(i.peer, device);
    const Link& link = network_.at(ends.first, ends.second);
    double& free_at = free_at_[ends];
    free_at = std::max(ready, free_at) + bytes(device, i.slot) / link.bandwidth;
    return free_at + link.latency;
  }

  double finish_collective(int device, const Instruction& i, double ready) {
    const DeviceProgram& own = program_.devices[at(device)];
    double most = 0;
    for (const SlotId operand : own.operands_of(i)) most = std::max(most, bytes(device, operand));
    for (const Result& result : own.results_of(i)) most = std::max(most, bytes(device, result.slot));
    double& free_at = group_free_at_[i.group];
    return free_at = std::max(ready, free_at) + collective_seconds(i.opcode, most, program_.groups[at(i.group)], network_);
  }

  const Program& program_;
  const Durations& durations_;
  const Network& network_;
  Rules rules_;
  std::vector<std::vector<double>> started_, done_;
  std::map<std::pair<std::int32_t, std::int32_t>, double> free_at_;
  std::map<int, double> host_free_at_, group_free_at_;
};

bool verifies(const Program& program) {
  return test::order_verdict(program, ChannelModel::tagged) == "no error";
}

TEST(Simulate, EqualsTheRulesAndFinishesWhenTheVerifierSaysSo) {
  int finishing = 0, stuck = 0;
  for (std::uint64_t seed = 0; seed < test::rounds(2000u); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const Program program = random_transfers(random);
    const Durations durations = random_durations(program, random);
    const Network network = random_network(random, static_cast<std::int32_t>(program.devices.size()));
    const std::optional<double> expected = ByTheRules(program, durations, network).makespan();
    // The verifier refuses some orders of collectives that a lane per group, as the simulator has it, would let finish.
    if (program.groups.empty()) {
      ASSERT_EQ(expected.has_value(), verifies(program));
    } else {
      ASSERT_TRUE(expected.has_value() || !verifies(program));
    }
    (expected ? finishing : stuck)++;
    if (!expected) {
      EXPECT_NE(message_of([&] { simulate(program, durations, network); }).find("never finishes"), std::string::npos);
      continue;
    }
    EXPECT_DOUBLE_EQ(simulate(program, durations, network).makespan, *expected);
    // In the order of time, with every link its own medium: the same.
    Network media = network;
    std::int32_t medium = 0;
    for (auto& [pair, link] : media.between) link.medium = medium++;
    EXPECT_DOUBLE_EQ(simulate(program, durations, media).makespan, *expected);
  }
  EXPECT_GT(finishing, test::rounds(200));
  EXPECT_GT(stuck, test::rounds(200));
}

TEST(Simulate, BoundsLatencyAndScale) {
  for (std::uint64_t seed = 0; seed < test::rounds(200u); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const int devices = static_cast<int>(random() % 5) + 1;
    const Program program = random_program(seed, devices, 120);
    Durations durations = random_durations(program, random);
    Network network = random_network(random, devices);
    const Simulation base = simulate(program, durations, network);
    EXPECT_GE(base.makespan, base.busiest_device);
    EXPECT_GE(base.makespan, base.critical_path);
    EXPECT_GT(base.critical_path, 0);

    Network slower = network;
    auto link = slower.between.begin();
    std::advance(link, static_cast<std::ptrdiff_t>(random() % slower.between.size()));
    link->second.latency += 1.5;
    slower.host.latency += 1;
    EXPECT_GE(simulate(program, durations, slower).makespan, base.makespan);

    for (auto& row : durations)
      for (double& seconds : row) seconds *= 2;
    for (auto& [pair, doubled] : network.between) {
      doubled.latency *= 2;
      doubled.bandwidth /= 2;
    }
    network.host.latency *= 2;
    network.host.bandwidth /= 2;
    EXPECT_DOUBLE_EQ(simulate(program, durations, network).makespan, 2 * base.makespan);
  }
}

// Executes the program, counting bytes where slots are defined and freed: after every change.
struct CountingMachine {
  const Program& program;
  std::map<std::tuple<int, int, int>, std::size_t> started;  // ends, by sender, receiver and tag; by -1, group and tag
  std::vector<std::vector<double>> totals;                   // of each device
  std::size_t device = 0;

  explicit CountingMachine(const Program& p) : program(p), totals(p.devices.size(), {0}) {
    for (std::size_t d = 0; d < p.devices.size(); ++d)
      for (const Slot& slot : p.devices[d].slots)
        if (holds_state(slot.kind)) totals[d][0] += static_cast<double>(slot_bytes(slot));
  }

  void change(SlotId id, double sign) {
    const Slot& slot = program.devices[device].slots[id.index()];
    if (slot.kind == SlotClass::step) totals[device].push_back(totals[device].back() + sign * static_cast<double>(slot_bytes(slot)));
  }
  Event run(const Instruction& i) {
    for (const Result& result : program.devices[device].results_of(i))
      if (result.mode == ResultMode::store) change(result.slot, 1);
    const double scratch = i.opcode == Opcode::run ? static_cast<double>(program.tasks[i.task.index()].scratch) : 0;
    totals[device].push_back(totals[device].back() + scratch);
    totals[device].push_back(totals[device].back() - scratch);
    return kNoEvent;
  }
  Event start(const Instruction& i) {
    if (i.opcode == Opcode::recv || i.opcode == Opcode::input) change(i.slot, 1);
    for (const Result& result : program.devices[device].results_of(i))
      if (result.mode == ResultMode::store) change(result.slot, 1);
    if (i.opcode != Opcode::send && i.opcode != Opcode::recv && !is_collective(i.opcode)) return kNoEvent;
    ++started[key(i)];
    const auto& all = program.devices[device].instructions;
    return static_cast<Event>(&i - all.data());
  }
  std::tuple<int, int, int> key(const Instruction& i) const {
    const int own = static_cast<int>(device);
    if (is_collective(i.opcode)) return {-1, i.group, i.tag};
    return i.opcode == Opcode::send ? std::tuple(own, i.peer, i.tag) : std::tuple(i.peer, own, i.tag);
  }
  bool done(Event event) {
    const Instruction& i = program.devices[device].instructions[at(event)];
    return started[key(i)] == (is_collective(i.opcode) ? program.groups[at(i.group)].size() : 2);
  }
  void release(SlotId slot) { change(slot, -1); }
};

TEST(Simulate, MemoryEqualsAnExecutionThatCounts) {
  for (std::uint64_t seed = 0; seed < test::rounds(100u); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const int devices = static_cast<int>(random() % 4) + 1;
    const Program program = random_program(seed, devices, 80);
    CountingMachine machine(program);
    std::vector<DeviceState> states;
    for (const DeviceProgram& device : program.devices) states.emplace_back(device);
    for (std::size_t finished = 0; finished < states.size();) {
      finished = 0;
      for (machine.device = 0; machine.device < states.size(); ++machine.device)
        finished += advance(states[machine.device], machine).finished();
    }
    const Simulation simulation = simulate(program, random_durations(program, random, true), {}, {.record = true});
    for (std::size_t d = 0; d < states.size(); ++d) {
      // The curve joins changes of one moment: each of its points is a state that the execution went through, in its order.
      auto found = machine.totals[d].begin();
      double most = 0;
      for (const MemoryPoint& point : simulation.timeline.memory[d]) {
        found = std::find(found, machine.totals[d].end(), point.total());
        ASSERT_NE(found, machine.totals[d].end());
        most = std::max(most, point.total());
      }
      EXPECT_EQ(simulation.timeline.memory[d].back().total(), machine.totals[d].back());
      EXPECT_EQ(most, *std::max_element(machine.totals[d].begin(), machine.totals[d].end()));
    }
  }
}

TEST(Simulate, EveryActivityBeginsWhenItsCauseEnds) {
  for (std::uint64_t seed = 0; seed < test::rounds(100u); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const int devices = static_cast<int>(random() % 4) + 1;
    const Program program = random_program(seed, devices, 80);
    Network network = random_network(random, devices);
    if (seed % 2) network.link.second_end_copies = true, network.between.clear();
    const Timeline timeline = simulate(program, random_durations(program, random), network, {.record = true}).timeline;
    for (const Activity& activity : timeline.activities) {
      if (activity.cause < 0) {
        EXPECT_EQ(activity.begin, 0);
        continue;
      }
      const Activity& cause = timeline.activities[at(activity.cause)];
      // A queueing transfer begins when the one before has left the link, a latency before it arrives.
      const bool queued = activity.lane == Lane::transfer && cause.lane == Lane::transfer && cause.device == activity.device;
      const double latency = cause.peer == cause.device ? network.host.latency : network.at(cause.device, cause.peer).latency;
      EXPECT_TRUE(activity.begin == cause.end || (queued && activity.begin == cause.end - latency))
          << detail(timeline, activity) << " begins at " << activity.begin << ", its cause " << detail(timeline, cause) << " ends at "
          << cause.end;
    }
  }
}

// Device 0 computes and sends 64 bytes to each of 1 and 2; device 1 computes before it receives.
Program one_to_two() {
  const std::string receives =
      "  run @t(%w) -> (store %a)\n  recv %b from 0 #0\n  run @t(%b) -> (store %c)\n  free %a\n  free %b\n  free %c\n";
  const std::string slots = " {state_bytes=64, step_bytes=192, scratch_bytes=0}\n  slot %w state @0 (f32[16] \"w";
  const std::string steps = "  slot %a step @0 (f32[16])\n  slot %b step @64 (f32[16])\n  slot %c step @128 (f32[16])\n";
  return parse_program(
      concat("penstock program 1\nprogram @one {microbatches=1}\ntask @t {scratch=0}\ngraph @t(%x: f32[16]) -> (f32[16]) {\n",
             "  %0: f32[16] = neg(%x)\n  return %0\n}\ndevice 0", slots, "0\")\n", steps,
             "  run @t(%w) -> (store %a)\n  send %a to 1 #0\n  send %a to 2 #0\n  free %a\n", "device 1", slots, "1\")\n", steps, receives,
             "device 2", slots, "2\")\n", steps, receives));
}

// Seconds of the run before the transfer on devices 0, 1 and 2; everything else takes none, a run after it one.
Durations before(const Program& program, double zero, double one, double two) {
  Durations durations;
  for (const DeviceProgram& device : program.devices) durations.emplace_back(device.instructions.size(), 0.0);
  durations[0][0] = zero;
  durations[1][0] = one;
  durations[2][0] = two;
  durations[1][2] = durations[2][2] = 1;
  return durations;
}

TEST(Simulate, LinksHaveLatencyAndBandwidthAndThoseOfOneMediumTakeTurns) {
  const Program program = one_to_two();
  Network network;
  network.link.latency = 0.5;
  network.link.bandwidth = 32;
  const Durations durations = before(program, 3, 1, 4);
  EXPECT_EQ(simulate(program, durations, network).finished, (std::vector<double>{6.5, 3 + 2 + 0.5 + 1, 4 + 2 + 0.5 + 1}));
  network.link.medium = 0;
  // Device 1's is started first, at 3, and takes the medium until 5.
  EXPECT_EQ(simulate(program, durations, network).finished, (std::vector<double>{7.5, 6.5, 5 + 2 + 0.5 + 1}));
  // Device 2's is, at 3.
  EXPECT_EQ(simulate(program, before(program, 3, 4, 1), network).finished, (std::vector<double>{7.5, 5 + 2 + 0.5 + 1, 6.5}));
  network.link.start_seconds = 0.25;
  network.link.medium = -1;
  EXPECT_EQ(simulate(program, durations, network).finished, (std::vector<double>{6.75, 3.25 + 2.5 + 1, 4.25 + 2.5 + 1}));
}

TEST(Simulate, TheSecondEndCopies) {
  const Program program = one_to_two();
  Network network;
  network.link.second_end_copies = true;
  network.link.bandwidth = 32;
  network.link.latency = 0.5;
  // Device 1 waits for the sender, who copies from 3 to 5; device 2 comes later and copies itself, from 7 to 9.
  EXPECT_EQ(simulate(program, before(program, 3, 1, 7), network).finished, (std::vector<double>{9.5, 5.5 + 1, 9 + 1}));
  network.link.wake_seconds = 0.125;
  EXPECT_EQ(simulate(program, before(program, 3, 1, 7), network).finished,
            (std::vector<double>{9.5, 5.5 + 1, 9.125 + 1}));  // device 0 waits too
  EXPECT_EQ(simulate(program, before(program, 3, 1, 1), network).finished, (std::vector<double>{7.25, 5.5 + 1, 7.625 + 1}));
  network.link.wake_seconds = 0;
  // Both come later, one while the other copies: each has its own thread.
  EXPECT_EQ(simulate(program, before(program, 3, 4, 5), network).finished, (std::vector<double>{7.5, 6 + 1, 7 + 1}));
  // Both wait: the sender copies one after the other.
  EXPECT_EQ(simulate(program, before(program, 3, 1, 1), network).finished, (std::vector<double>{7, 5.5 + 1, 7.5 + 1}));
}

TEST(Simulate, AReplayTakesRecordedArrivalsAndBegins) {
  const Program program = one_to_two();
  Network network;
  network.link.latency = 0.5;
  Durations arrivals = before(program, 0, 0, 0);
  for (auto& row : arrivals) std::fill(row.begin(), row.end(), std::nan(""));
  arrivals[1][1] = 2;
  const Simulation simulation = simulate(program, before(program, 3, 1, 1), network, {.begin = {1, 0, 0}, .arrivals = &arrivals});
  EXPECT_EQ(simulation.finished, (std::vector<double>{4.5, 4 + 2 + 1, 4 + 0.5 + 1}));
}

// Copies to and from the host take turns beside computing; a free waits for its slot's, a run for what is reloaded.
TEST(Simulate, HostCopiesTakeTurnsBesideComputing) {
  const Program program = parse_program(R"(penstock program 1
program @p {microbatches=1}
task @t {scratch=0}
graph @t(%x: f32[16]) -> (f32[16]) {
  %0: f32[16] = neg(%x)
  return %0
}
device 0 {state_bytes=64, step_bytes=256, scratch_bytes=0, host_bytes=128}
  slot %w state @0 (f32[16] "w")
  slot %a step @0 (f32[16])
  slot %b step @64 (f32[16])
  slot %g host @0 (f32[16])
  slot %h host @64 (f32[16])
  slot %c step @128 (f32[16])
  slot %d step @192 (f32[16])
  run @t(%w) -> (store %a)
  run @t(%w) -> (store %b)
  offload %a -> %g
  offload %b -> %h
  run @t(%w) -> (store %d)
  free %a
  free %b
  reload %g -> %c
  run @t(%c) -> (update %d)
  free %g
  free %h
  free %c
  free %d
)");
  verify(program);
  Durations durations = {{1, 1, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0}};
  Network network;
  network.host.bandwidth = 32;  // two seconds each
  network.host.latency = 0.5;
  const Simulation simulation = simulate(program, durations, network, {.record = true});
  // Copies from 2 to 4, 4 to 6, and, once %b is free at 6.5, 6.5 to 8.5; the last run from 9 on.
  EXPECT_EQ(simulation.makespan, 11);
  EXPECT_EQ(simulation.busy[0], 5);
  EXPECT_EQ(simulation.critical_path, 1 + 2 + 2 + 2);
  std::vector<std::pair<double, double>> copies;
  for (const Activity& activity : simulation.timeline.activities)
    if (activity.lane == Lane::transfer) copies.emplace_back(activity.begin, activity.end);
  EXPECT_EQ(copies, (std::vector<std::pair<double, double>>{{2, 4.5}, {4, 6.5}, {6.5, 9}}));
  // %a is free from 4.5 on, the host's memory is not the device's.
  std::map<double, double> memory;
  for (const MemoryPoint& point : simulation.timeline.memory[0]) memory[point.time] = point.total();
  memory.erase(3), memory.erase(9);  // where only the scratch of a run, none, comes and goes
  EXPECT_EQ(memory, (std::map<double, double>{{0, 128}, {1, 192}, {2, 256}, {4.5, 192}, {6.5, 192}, {11, 64}}));
  // Where the device copies by itself, copies are in the durations.
  durations[0][2] = durations[0][3] = durations[0][7] = 2;
  EXPECT_EQ(simulate(program, durations, {}).makespan, 11);
  // A replay takes when a wait has ended.
  Durations arrivals = {std::vector<double>(durations[0].size(), std::nan(""))};
  arrivals[0][7] = 3;
  EXPECT_EQ(simulate(program, durations, {}, {.arrivals = &arrivals}).makespan, 14);
}

TEST(Network, CollectivesGoRoundARingOrOverATree) {
  Network network;
  network.link.latency = 0.5;
  network.link.bandwidth = 32;
  const std::vector<std::int32_t> four = {0, 1, 2, 3};
  // 128 bytes in steps of a quarter: 0.5 + 1 seconds each.
  for (const Opcode opcode : {Opcode::all_gather, Opcode::reduce_scatter, Opcode::all_to_all, Opcode::broadcast})
    EXPECT_EQ(collective_seconds(opcode, 128, four, network), 3 * 1.5);
  EXPECT_EQ(collective_seconds(Opcode::all_reduce, 128, four, network), 6 * 1.5);
  // 8 bytes over a tree of two levels, all of them each time.
  EXPECT_EQ(collective_seconds(Opcode::broadcast, 8, four, network), 2 * 0.75);
  EXPECT_EQ(collective_seconds(Opcode::all_reduce, 8, four, network), 4 * 0.75);
  EXPECT_EQ(collective_seconds(Opcode::all_gather, 8, four, network), 3 * (0.5 + 0.0625));
  EXPECT_EQ(collective_seconds(Opcode::all_reduce, 6, {0, 1, 2}, network), 4 * (0.5 + 0.0625));  // the ring: as many steps, less in each
  // Only links between neighbours count, and of them the slowest, also the one that closes the ring.
  network.between[{0, 2}] = Link{.latency = 100};
  EXPECT_EQ(collective_seconds(Opcode::all_gather, 128, four, network), 3 * 1.5);
  network.between[{3, 0}] = Link{.latency = 2, .bandwidth = 64};
  EXPECT_EQ(collective_seconds(Opcode::all_gather, 128, four, network), 3 * (2 + 1.0));
}

// What was measured of a kind stands for the links, at any number of members; no tree.
TEST(Network, MeasuredCollectivesGoRoundTheirOwnRing) {
  Network network;
  network.link.latency = 100;
  network.collectives[Opcode::all_reduce] = {.latency = 0.5, .bandwidth = 32};
  EXPECT_EQ(collective_seconds(Opcode::all_reduce, 64, {0, 1}, network), 2 * (0.5 + 1));
  EXPECT_EQ(collective_seconds(Opcode::all_reduce, 8, {0, 1, 2, 3}, network), 6 * (0.5 + 0.0625));
  EXPECT_EQ(collective_seconds(Opcode::all_gather, 8, {0, 1}, network), 100);
}

// Two devices sum two values over themselves beside a run that needs neither, then read both.
Program two_sums() {
  const std::string device =
      "  slot %a step @0 (f32[16])\n  slot %b step @64 (f32[16])\n  slot %c step @128 (f32[16])\n"
      "  run @t(%w) -> (store %a)\n  run @t(%w) -> (store %b)\n"
      "  all_reduce %a -> update %a in 0 #0\n  all_reduce %b -> update %b in 0 #1\n"
      "  run @t(%w) -> (store %c)\n  run @t(%a) -> (update %c)\n  run @t(%b) -> (update %c)\n  free %a\n  free %b\n  free %c\n";
  const Program program =
      parse_program(concat("penstock program 1\nprogram @sums {microbatches=1}\ngroup 0 (0, 1)\ntask @t {scratch=0}\n",
                           "graph @t(%x: f32[16]) -> (f32[16]) {\n  %0: f32[16] = neg(%x)\n  return %0\n}\n",
                           "device 0 {state_bytes=64, step_bytes=192, scratch_bytes=0}\n  slot %w state @0 (f32[16] \"w0\")\n", device,
                           "device 1 {state_bytes=64, step_bytes=192, scratch_bytes=0}\n  slot %w state @0 (f32[16] \"w1\")\n", device));
  verify(program);
  return program;
}

TEST(Simulate, AGroupDoesOneCollectiveAfterTheOtherBesideComputing) {
  const Program program = two_sums();
  const Durations durations = {{1, 1, 0, 0, 1, 1, 1, 0, 0, 0}, {2, 1, 0, 0, 1, 1, 1, 0, 0, 0}};
  Network network;
  network.link.latency = 0.5;
  network.link.bandwidth = 32;  // a sum of 64 bytes: two steps of 0.5 + 1 seconds
  const Simulation simulation = simulate(program, durations, network, {.record = true});
  // Device 1 comes at 3: the sums take 3 to 6 and 6 to 9; the runs that read them begin at 6 and 9.
  EXPECT_EQ(simulation.finished, (std::vector<double>{10, 10}));
  EXPECT_EQ(simulation.busy, (std::vector<double>{5, 6}));
  EXPECT_EQ(simulation.critical_path, 2 + 3 + 1 + 1);
  std::string sums;
  for (const Activity& activity : simulation.timeline.activities)
    if (activity.lane == Lane::transfer)
      sums += concat(activity.begin, "..", activity.end, " on ", activity.device, ": ", detail(simulation.timeline, activity), "\n");
  EXPECT_EQ(sums,
            "3..6 on 0: all_reduce, 64 B\n3..6 on 1: all_reduce, 64 B\n"
            "6..9 on 0: all_reduce, 64 B\n6..9 on 1: all_reduce, 64 B\n");
  // A replay takes when each member's wait has ended.
  Durations arrivals = {std::vector<double>(10, std::nan("")), std::vector<double>(10, std::nan(""))};
  arrivals[0][2] = 1;
  arrivals[0][3] = 2;
  EXPECT_EQ(simulate(program, durations, network, {.arrivals = &arrivals}).finished, (std::vector<double>{6, 10}));
}

TEST(Simulate, StartingAMeasuredCollectiveKeepsEachMember) {
  const Durations durations = {{1, 1, 0, 0, 1, 1, 1, 0, 0, 0}, {2, 1, 0, 0, 1, 1, 1, 0, 0, 0}};
  Network network;
  network.collectives[Opcode::all_reduce] = {.latency = 0.5, .bandwidth = 32, .start_seconds = 0.25};
  const Simulation simulation = simulate(two_sums(), durations, network);
  // Device 1 has started them at 3.25 and 3.5; they take 3.25 to 6.25 and to 9.25.
  EXPECT_EQ(simulation.finished, (std::vector<double>{10.25, 10.25}));
  EXPECT_EQ(simulation.busiest_device, 6 + 0.5);
}

TEST(Simulate, TheLastMemberDoesTheCopyingOfACollectiveBetweenThreads) {
  Network network;
  network.link.second_end_copies = true;
  network.link.bandwidth = 32;
  const Durations durations = {{1, 1, 0, 0, 1, 1, 1, 0, 0, 0}, {2, 1, 0, 0, 1, 1, 1, 0, 0, 0}};
  const Simulation simulation = simulate(two_sums(), durations, network);
  // Device 1 sums 64 bytes of two members from 3 to 7 and from 7 to 11, then computes; device 0 computes meanwhile.
  EXPECT_EQ(simulation.finished, (std::vector<double>{12, 14}));
  EXPECT_EQ(simulation.busiest_device, 6 + 8);
}

TEST(Simulate, RefusesBadDurations) {
  const Program program = one_to_two();
  for (double bad : {-1.0, std::nan(""), HUGE_VAL}) {
    const std::string message = message_of([&] { simulate(program, before(program, 1, bad, 1), {}); });
    EXPECT_NE(message.find("device 1, instruction 0"), std::string::npos) << message;
    EXPECT_NE(message.find("0 or more"), std::string::npos) << message;
  }
}

TEST(Disturb, IsSeededAndBounded) {
  const Program program = one_to_two();
  const Durations original = before(program, 4, 4, 4);
  Durations a = original, b = original, c = original;
  disturb(a, program, {.jitter = 0.25, .seed = 1});
  disturb(b, program, {.jitter = 0.25, .seed = 1});
  disturb(c, program, {.jitter = 0.25, .seed = 2, .slowdown = {1, 2, 1}});
  EXPECT_EQ(a, b);
  EXPECT_NE(a[0][0], c[0][0]);
  for (const Durations& d : {a, c}) {
    EXPECT_GE(d[0][0], 3);
    EXPECT_LE(d[0][0], 5);
  }
  EXPECT_GE(c[1][0], 6);
  Durations unchanged = original;
  disturb(unchanged, program, {});
  EXPECT_EQ(unchanged, original);
  EXPECT_NE(message_of([&] { disturb(a, program, {.jitter = 1}); }), "no error");
  EXPECT_NE(message_of([&] { disturb(a, program, {.slowdown = {1, 1}}); }), "no error");
  EXPECT_NE(message_of([&] { disturb(a, program, {.slowdown = {1, 0, 1}}); }), "no error");
}

}  // namespace
}  // namespace penstock
