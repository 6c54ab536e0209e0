// SPDX-License-Identifier: Apache-2.0
// Devices that wait by themselves: they give what devices give whose hosts wait, no wait is missing, and few are not needed.
#include "support/thread_lanes.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "base/hash.h"
#include "base/sanitizer.h"
#include "base/text.h"
#include "devices/forwarding_transport.h"
#include "driver/thread_cluster.h"
#include "support/errors.h"
#include "support/fake_device.h"
#include "support/lane_order.h"
#include "support/random_program.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using namespace test;
using std::chrono::microseconds;

Deadline soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(20);
}

int number_from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

// Lanes.

TEST(ThreadLanes, EachLaneKeepsItsOrderAndWaitsForOthers) {
  const auto lanes = make_thread_lanes(1, microseconds(100));
  std::vector<int> order;  // only ever touched in one order, if the lanes wait
  Event last = kNoEvent;
  for (int n = 0; n < 60; ++n) {
    const DeviceLane lane = static_cast<DeviceLane>(n / 2 % static_cast<int>(kLanes));
    if (last != kNoEvent && n % 2 == 0)
      lanes->after(lane, n % 4 == 0 ? last : lanes->record(static_cast<DeviceLane>((n / 2 + 2) % 3)), soon());
    last = lanes->enqueue(lane, [&order, n] { return order.push_back(n), true; });
  }
  ASSERT_TRUE(lanes->wait(last, soon()));
  EXPECT_TRUE(lanes->done(last));
  ASSERT_EQ(order.size(), 60u);
  EXPECT_TRUE(std::ranges::is_sorted(order));
}

TEST(ThreadLanes, WorkThatIsUnderWayHoldsNobodyUp) {
  const auto lanes = make_thread_lanes(1, microseconds(0));
  std::atomic<bool> arrived = false;
  const Event first = lanes->enqueue(DeviceLane::transfer, [&] { return arrived.load(); });
  const Event second = lanes->enqueue(DeviceLane::transfer, [] { return true; });
  lanes->after(DeviceLane::compute, first, soon());
  const Event third = lanes->record(DeviceLane::compute);
  ASSERT_TRUE(lanes->wait(second, soon()));
  EXPECT_FALSE(lanes->done(first));
  EXPECT_FALSE(lanes->wait(third, std::chrono::steady_clock::now() + std::chrono::milliseconds(20)));
  arrived = true;
  EXPECT_TRUE(lanes->wait(third, soon()));
}

TEST(ThreadLanes, WhatFailsStopsAllLanesAndIsThrownByWaits) {
  const auto lanes = make_thread_lanes(1, microseconds(0));
  const Event bad = lanes->enqueue(DeviceLane::host_copy, []() -> bool { throw Error("the copy failed"); });
  lanes->after(DeviceLane::compute, bad, soon());
  const Event next = lanes->enqueue(DeviceLane::compute, [] { return true; });
  EXPECT_EQ(message_of([&] { lanes->wait(next, soon()); }), "the copy failed");
  lanes->stop();
}

// Random programs.

// Lanes that note what they are told. One of their waits may be left out; one of their works may be held until another is done, which
// must not wait for it.
class Watched : public DeviceLanes {
 public:
  struct Fault {
    std::size_t left_out, held, until;  // a call; works
    std::function<void()> spoil = {};   // done as the work is held
  };
  Watched(std::shared_ptr<DeviceLanes> inner, std::vector<LaneCall>& calls, std::optional<Fault> fault)
      : inner_(std::move(inner)), calls_(calls), fault_(fault) {}

  Event enqueue(DeviceLane lane, Work work) override {
    const std::size_t number = works_++;
    if (fault_ && number == fault_->held) work = held(lane, std::move(work));
    if (fault_ && number == fault_->until)
      work = [this, lane, work = std::move(work), give_up = soon()] {
        const auto early = [&] { return !spoilt_ && std::chrono::steady_clock::now() < give_up; };
        if (lane == DeviceLane::transfer && early()) return false;
        while (early()) std::this_thread::sleep_for(microseconds(20));
        const bool complete = work();
        if (complete) open_ = true;
        return complete;
      };
    const Event event = inner_->enqueue(lane, std::move(work));
    calls_.push_back({LaneCall::Kind::work, lane, event});
    return event;
  }
  Event record(DeviceLane lane) override {
    const Event event = inner_->record(lane);
    calls_.push_back({LaneCall::Kind::record, lane, event});
    return event;
  }
  bool after(DeviceLane lane, Event event, Deadline deadline) override {
    if (!fault_ || calls_.size() != fault_->left_out) inner_->after(lane, event, deadline);
    calls_.push_back({LaneCall::Kind::after, lane, event});
    return true;
  }
  void keep_times(bool keep) override { inner_->keep_times(keep); }
  std::chrono::nanoseconds time_of(Event event) override { return inner_->time_of(event); }
  bool done(Event event) override { return inner_->done(event); }
  bool wait(Event event, Deadline deadline) override { return inner_->wait(event, deadline); }
  void stop() override { inner_->stop(); }

 private:
  // A transfer lets others of its lane begin, other work does not.
  Work held(DeviceLane lane, Work work) {
    return [this, lane, work = std::move(work), give_up = soon()] {
      if (!spoilt_ && fault_->spoil) fault_->spoil();
      spoilt_ = true;
      const auto closed = [&] { return !open_ && std::chrono::steady_clock::now() < give_up; };
      if (lane == DeviceLane::transfer && closed()) return false;
      while (closed()) std::this_thread::sleep_for(microseconds(20));
      return work();
    };
  }

  std::shared_ptr<DeviceLanes> inner_;
  std::vector<LaneCall>& calls_;
  std::optional<Fault> fault_;
  std::size_t works_ = 0;
  std::atomic<bool> spoilt_ = false, open_ = false;
};

std::uint64_t digest(std::span<const std::byte> bytes, std::uint64_t before = 0) {
  Hash hash;
  hash.add(before);
  hash.add(bytes);
  return hash.value();
}

// Takes down what every instruction reads, as it reads it.
class WitnessExecutor : public Executor {
 public:
  explicit WitnessExecutor(std::vector<std::uint64_t>& seen) : seen_(seen) {}
  void load(std::shared_ptr<const Program> program, int device) override {
    program_ = program;
    own_ = &program_->devices[static_cast<std::size_t>(device)];
    seen_.assign(own_->instructions.size(), 0);
    inner_->load(std::move(program), device);
  }
  std::span<std::byte> address(SlotId slot) override { return inner_->address(slot); }
  Event write(SlotId slot, std::size_t offset, std::span<const std::byte> bytes) override { return inner_->write(slot, offset, bytes); }
  Event read(SlotId slot, std::size_t offset, std::span<std::byte> bytes) override { return inner_->read(slot, offset, bytes); }
  Event issue(const Instruction& i) override {
    std::uint64_t& seen = seen_[static_cast<std::size_t>(&i - own_->instructions.data())];
    for (const SlotId operand : own_->operands_of(i)) seen = digest(address(operand), seen);
    for (const Result& result : own_->results_of(i))
      if (result.mode == ResultMode::add) seen = digest(address(result.slot), seen);
    return inner_->issue(i);
  }
  std::uint64_t placement() const override { return inner_->placement(); }
  bool done(Event event) override { return inner_->done(event); }
  bool wait(Event event, Deadline deadline) override { return inner_->wait(event, deadline); }

 private:
  std::unique_ptr<Executor> inner_ = make_fake_executor({});
  std::shared_ptr<const Program> program_;
  const DeviceProgram* own_ = nullptr;
  std::vector<std::uint64_t>& seen_;  // by instruction
};

using Sent = std::map<std::pair<int, int>, std::uint64_t>;  // by peer, or -1 - group, and tag

class WitnessTransport : public ForwardingTransport {
 public:
  WitnessTransport(std::unique_ptr<Transport> inner, Sent& sent) : ForwardingTransport(std::move(inner)), sent_(sent) {}
  Event send(int peer, int tag, std::span<const std::byte> bytes) override {
    sent_[{peer, tag}] = digest(bytes);
    return ForwardingTransport::send(peer, tag, bytes);
  }
  Event collective(const CollectiveCall& call) override {
    sent_[{-1 - call.group, call.tag}] = digest(call.from);
    return ForwardingTransport::collective(call);
  }

 private:
  Sent& sent_;
};

struct Outcome {
  LaneCalls calls;
  std::vector<std::vector<std::uint64_t>> read;  // by device and instruction
  std::vector<Sent> sent;
  std::map<std::string, std::vector<std::byte>> outputs;
  bool same_values(const Outcome& other) const { return read == other.read && sent == other.sent && outputs == other.outputs; }
};

const Instruction& instruction_of(const DeviceProgram& device, std::size_t work) {
  const auto is_it = [&](const Instruction& i) { return i.opcode != Opcode::free && work-- == 0; };
  return *std::ranges::find_if(device.instructions, is_it);
}

// One step on lanes; `fault` is of device `faulty`. A receive that is held has something else arrive first: it may bring what was there.
Outcome step_on_lanes(const Program& program, const StepInput& input, std::size_t faulty = 0, std::optional<Watched::Fault> fault = {}) {
  const std::size_t devices = program.devices.size();
  Outcome out{LaneCalls(devices), std::vector<std::vector<std::uint64_t>>(devices), std::vector<Sent>(devices), {}};
  std::vector<std::shared_ptr<DeviceLanes>> lanes;
  Executor* spoiled = nullptr;
  if (fault)
    if (const Instruction& held = instruction_of(program.devices[faulty], fault->held); held.opcode == Opcode::recv)
      fault->spoil = [&spoiled, slot = held.slot] { std::ranges::fill(spoiled->address(slot), std::byte{0xEE}); };
  for (std::size_t d = 0; d < devices; ++d)
    lanes.push_back(std::make_shared<Watched>(make_thread_lanes(d, microseconds(0)), out.calls[d],
                                              d == faulty ? fault : std::optional<Watched::Fault>{}));
  ClusterOptions options;
  options.wrap = [&](int device, std::unique_ptr<Transport> inner) {
    const auto d = static_cast<std::size_t>(device);
    return make_lane_transport(std::make_unique<WitnessTransport>(std::move(inner), out.sent[d]), lanes[d]);
  };
  const auto executor = [&](int device) {
    const auto d = static_cast<std::size_t>(device);
    auto witness = std::make_unique<WitnessExecutor>(out.read[d]);
    if (d == faulty) spoiled = witness.get();
    return make_lane_executor(std::move(witness), lanes[d]);
  };
  auto cluster = make_thread_cluster(static_cast<int>(devices), executor, std::make_shared<HashData>(), options);
  out.outputs = cluster->step(cluster->load(program), input).outputs;
  return out;
}

// PENSTOCK_LANE_PROGRAMS: how many.
TEST(AsynchronousDevices, RandomProgramsGiveTheReference) {
  const int programs = number_from_environment("PENSTOCK_LANE_PROGRAMS", test::rounds(300));
  for (int p = 0; p < programs && !testing::Test::HasFailure(); ++p) {
    const auto seed = static_cast<std::uint64_t>(p);
    const int devices = 1 + p % 5;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", devices " << devices);
    const Program program = random_program(seed, devices, 40, p % 2 == 1);
    std::vector<std::shared_ptr<DeviceLanes>> lanes;
    for (int device = 0; device < devices; ++device)
      lanes.push_back(make_thread_lanes(10 * seed + static_cast<std::uint64_t>(device), microseconds(p % 3 * 20)));
    ClusterOptions options;
    options.wrap = [&](int device, std::unique_ptr<Transport> inner) {
      return make_lane_transport(std::move(inner), lanes[static_cast<std::size_t>(device)]);
    };
    const auto executor = [&](int device) { return make_lane_executor(make_fake_executor({}), lanes[static_cast<std::size_t>(device)]); };
    auto cluster = make_thread_cluster(devices, executor, std::make_shared<HashData>(), options);
    const std::uint64_t key = cluster->load(program);
    Reference reference(program);
    for (std::int64_t step = 1; step <= 2; ++step) {
      StepInput input;
      input.step = step;
      ASSERT_EQ(cluster->step(key, input).outputs, reference.step(input));
    }
    for (int device = 0; device < devices; ++device) ASSERT_EQ(cluster->state(concat("state", device)), reference.state(device));
  }
}

// Whatever the time that work takes: each access to memory is over before the next that it conflicts with begins.
TEST(AsynchronousDevices, TheirWaitsOrderAllConflicts) {
  for (std::uint64_t seed = 0; seed < test::rounds(40u); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Program program = random_program(seed, 1 + static_cast<int>(seed % 5), 60, seed % 2 == 1);
    const Outcome outcome = step_on_lanes(program, {});
    EXPECT_FALSE(conflicts(program).empty());
    EXPECT_TRUE(unordered(program, outcome.calls).empty());
  }
}

// Each wait without which a value could be read too early or too late: the work that it waited for is held until the other has read or
// overwritten its memory. PENSTOCK_LANE_WAITS: how many waits.
TEST(AsynchronousDevices, AWaitThatIsLeftOutIsFound) {
  if (kSanitizer == Sanitizer::thread) GTEST_SKIP() << "what is left out here are the waits without which there are races";
  const int all = number_from_environment("PENSTOCK_LANE_WAITS", test::rounds(200));
  int left_out = 0, found = 0, idle = 0;
  for (std::uint64_t seed = 1000; left_out < all; ++seed) {
    const Program program = random_program(seed, 1 + static_cast<int>(seed % 4), 40);
    const Outcome right = step_on_lanes(program, {});
    std::vector<LeftOut> waits;
    for (std::size_t d = 0; d < right.calls.size(); ++d)
      for (std::size_t c = 0; c < right.calls[d].size(); ++c)
        if (right.calls[d][c].kind == LaneCall::Kind::after) waits.push_back({d, c});
    std::mt19937_64 random(seed);
    std::shuffle(waits.begin(), waits.end(), random);
    for (std::size_t w = 0; w < std::min<std::size_t>(waits.size(), 8) && left_out < all; ++w) {
      std::vector<Conflict> open = unordered(program, right.calls, waits[w]);
      std::erase_if(open, [](const Conflict& conflict) { return !conflict.seen; });
      if (open.empty()) {
        ++idle;
        continue;
      }
      ++left_out;
      const Conflict& conflict = open[random() % open.size()];
      const DeviceProgram& own = program.devices[conflict.device];
      const auto text = [&](std::size_t work) { return print(program, own, instruction_of(own, work)); };
      bool seen = true;
      try {
        const Watched::Fault fault{waits[w].call, conflict.first, conflict.second, {}};
        seen = !step_on_lanes(program, {}, waits[w].device, fault).same_values(right);
      } catch (const Error&) {
      }
      found += seen;
      if (!seen)
        std::printf("not found: seed %llu, device %zu, call %zu, %s before %s\n", static_cast<unsigned long long>(seed), waits[w].device,
                    waits[w].call, text(conflict.first).c_str(), text(conflict.second).c_str());
    }
  }
  std::printf("%d waits left out, %d found; %d others were not needed\n", left_out, found, idle);
  EXPECT_GE(found, (95 * left_out + 99) / 100);
}

}  // namespace
}  // namespace penstock
