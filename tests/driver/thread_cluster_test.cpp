// SPDX-License-Identifier: Apache-2.0
#include "driver/thread_cluster.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "base/text.h"
#include "devices/forwarding_transport.h"
#include "support/errors.h"
#include "support/fake_device.h"
#include "support/paths.h"
#include "support/random_program.h"
#include "support/rounds.h"
#include "support/thread_lanes.h"

namespace penstock {
namespace {

using std::chrono::microseconds;
using test::HashData;
using test::message_of;

ExecutorFactory fake_executors(microseconds longest) {
  return [longest](int device) { return make_fake_executor({static_cast<std::uint64_t>(device), longest}); };
}

ClusterOptions fake_transports(microseconds longest) {
  ClusterOptions options;
  options.wrap = [longest](int device, std::unique_ptr<Transport> inner) {
    return make_fake_transport(std::move(inner), {static_cast<std::uint64_t>(device) + 100, longest});
  };
  return options;
}

StateSource zeros() {
  return {};
}

// Steps of a random program against the reference: outputs and state.
void expect_reference(std::uint64_t seed, int devices, int events, microseconds longest) {
  SCOPED_TRACE(testing::Message() << "seed " << seed << ", devices " << devices << ", longest " << longest.count() << " us");
  const Program program = test::random_program(seed, devices, events);
  auto cluster = make_thread_cluster(devices, fake_executors(longest), std::make_shared<HashData>(),
                                     longest.count() > 0 ? fake_transports(longest) : ClusterOptions{});
  const std::uint64_t key = cluster->load(program);
  cluster->set_state(zeros());
  test::Reference reference(program);
  for (std::int64_t step = 1; step <= 3; ++step) {
    StepInput input;
    input.step = step;
    EXPECT_EQ(cluster->step(key, input).outputs, reference.step(input));
  }
  for (int device = 0; device < devices; ++device) EXPECT_EQ(cluster->state("state" + std::to_string(device)), reference.state(device));
}

TEST(ThreadCluster, RandomProgramsGiveTheReference) {
  for (std::uint64_t seed = 0; seed < test::rounds(40u); ++seed)
    expect_reference(seed, 1 + static_cast<int>(seed % 5), 120, microseconds(0));
}

TEST(ThreadCluster, RandomCompletionGivesTheReference) {
  for (std::uint64_t seed = 0; seed < test::rounds(20u); ++seed)
    expect_reference(seed, 1 + static_cast<int>(seed % 5), 80, microseconds(200));
}

TEST(ThreadCluster, ProgramsAlternateOverOneState) {
  const Program first = test::random_program(1, 2, 60), second = test::random_program(2, 3, 60);
  auto cluster = make_thread_cluster(3, fake_executors(microseconds(0)), std::make_shared<HashData>());
  const std::uint64_t one = cluster->load(first), two = cluster->load(second);
  EXPECT_NE(one, two);
  EXPECT_EQ(cluster->load(first), one);
  cluster->set_state(zeros());
  StepInput input;
  cluster->step(one, input);
  const auto state = cluster->state("state0");
  test::Reference reference(first);
  reference.step(input);
  EXPECT_EQ(state, reference.state(0));
  const auto idle = cluster->state("state2");  // the first program does not name it
  cluster->step(one, input);
  EXPECT_EQ(cluster->state("state2"), idle);
  EXPECT_EQ(cluster->step(two, input).devices.size(), 3u);
  EXPECT_EQ(cluster->step(one, input).devices.size(), 2u);
}

TEST(ThreadCluster, AnUnloadedProgramIsLoadedAgain) {
  const Program program = test::random_program(4, 2, 60);
  auto cluster = make_thread_cluster(2, fake_executors(microseconds(0)), std::make_shared<HashData>());
  test::Reference reference(program);
  for (std::int64_t step = 1; step <= 3; ++step) {
    const std::uint64_t key = cluster->load(program);  // a copy of it
    if (step == 1) cluster->set_state(zeros());
    StepInput input;
    input.step = step;
    EXPECT_EQ(cluster->step(key, input).outputs, reference.step(input));
    cluster->unload(key);
  }
}

TEST(ThreadCluster, RecordsSpansInProgramOrder) {
  const Program program = test::random_program(3, 2, 60);
  auto cluster = make_thread_cluster(2, fake_executors(microseconds(0)), std::make_shared<HashData>());
  const std::uint64_t key = cluster->load(program);
  EXPECT_TRUE(cluster->step(key, {}).devices[0].spans.empty());
  const StepResult result = cluster->step(key, {}, true);
  for (const DeviceReport& report : result.devices) {
    ASSERT_FALSE(report.spans.empty());
    std::int64_t newest = -1;
    for (std::size_t i = 0; i < report.spans.size(); ++i) {
      if (i > 0) {
        EXPECT_LE(report.spans[i - 1].end, report.spans[i].begin);
      }
      if (report.spans[i].waited) continue;
      EXPECT_LT(newest, report.spans[i].instruction);
      newest = report.spans[i].instruction;
    }
    EXPECT_LE(report.busy + report.waiting, result.seconds);
    EXPECT_LE(report.busy + report.waiting, static_cast<double>(report.end - report.begin) * 1e-9);
  }
}

TEST(ThreadCluster, TooManyDevices) {
  auto cluster = make_thread_cluster(1, fake_executors(microseconds(0)), std::make_shared<HashData>());
  EXPECT_EQ(message_of([&] { cluster->load(test::random_program(0, 2, 1)); }),
            "program random0 needs 2 devices, there are 1\n  hint: start 2 processes, or take a schedule of 1 actors");
}

TEST(ThreadCluster, ExecutorThatCannotBeMade) {
  const ExecutorFactory broken = [](int device) -> std::unique_ptr<Executor> {
    if (device == 1) throw Error("no such device");
    return make_fake_executor({});
  };
  EXPECT_EQ(message_of([&] { make_thread_cluster(2, broken, std::make_shared<HashData>()); }), "no such device");
}

TEST(ThreadCluster, UnknownState) {
  auto cluster = make_thread_cluster(1, fake_executors(microseconds(0)), std::make_shared<HashData>());
  cluster->load(test::random_program(0, 1, 1));
  EXPECT_EQ(message_of([&] { cluster->state("w"); }), "no device has a state named \"w\"");
}

// Device 0 updates "v", before device 1 reads its data or after it has heard of it.
Program updating(bool update_first) {
  return parse_program(concat(R"(penstock program 1
program @updating {microbatches=1}
data %d: i64[8]
task @use {scratch=0}
graph @use(%x: i64[8]) -> (i64[8]) {
  %0: i64[8] = fake::mix(%x)
  return %0
}
device 0 {state_bytes=64, step_bytes=192, scratch_bytes=0}
  slot %v state @0 (i64[8] "v")
  slot %d step @0 (i64[8])
  slot %x step @64 (i64[8])
  slot %y step @128 (i64[8])
  input %d = %d
  run 0F0 @use(%d) -> (store %x)
)",
                              update_first ? "  run 0F0 @use(%x) -> (update %v)\n  send %x to 1 #0\n" : "  send %x to 1 #0\n", R"(  free %d
  free %x
  recv %y from 1 #0
)",
                              update_first ? "" : "  run 0F0 @use(%y) -> (update %v)\n", R"(  free %y
device 1 {state_bytes=0, step_bytes=192, scratch_bytes=0}
  slot %x step @0 (i64[8])
  slot %d step @64 (i64[8])
  slot %y step @128 (i64[8])
  recv %x from 0 #0
  free %x
  input %d = %d
  run 1F0 @use(%d) -> (store %y)
  send %y to 0 #0
  free %d
  free %y
)"));
}

// Device 1's read in step 2 calls `then`, once.
class Reading : public HashData {
 public:
  explicit Reading(std::function<void()> then) : then_(std::move(then)) {}
  void fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows, std::span<std::byte> out) const override {
    if (input.step == 2 && calls_++ == 1) then_();  // device 0 has read before
    HashData::fill(port, input, first_row, rows, out);
  }

 private:
  std::function<void()> then_;
  mutable std::atomic<int> calls_ = 0;
};

StepInput number(std::int64_t step) {
  StepInput input;
  input.step = step;
  return input;
}

const char* const kTorn =
    "a step failed after it had begun to write the state, so what the devices hold is of no step\n"
    "  1 tensor that it updates, such as \"v\"\n  hint: set all of them from a state that was kept, or begin again from it";

TEST(ThreadCluster, AFailureStopsAllDevicesAtOnceAndIsTheOneReported) {
  for (const bool update_first : {false, true}) {
    auto cluster =
        make_thread_cluster(2, fake_executors(microseconds(0)), std::make_shared<Reading>([] { throw Error("the text is gone"); }));
    const std::uint64_t key = cluster->load(updating(update_first));
    cluster->step(key, number(1));
    const std::vector<std::byte> before = cluster->state("v");
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(message_of([&] { cluster->step(key, number(2)); }), "the text is gone");
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
    if (update_first) {
      EXPECT_EQ(message_of([&] { cluster->state("v"); }), kTorn);
      EXPECT_EQ(message_of([&] { cluster->step(key, number(2)); }), kTorn);
      EXPECT_EQ(message_of([&] { cluster->check_state(); }), kTorn);
      StateSource kept;
      kept.kind = StateSource::Kind::values;
      kept.values["v"] = before;
      cluster->set_state(kept);
    }
    EXPECT_EQ(cluster->state("v"), before);
    cluster->step(key, number(2));
    EXPECT_NE(cluster->state("v"), before);
  }
}

TEST(ThreadCluster, AnInterruptedStepIsGivenUpOrEnded) {
  for (const bool update_first : {false, true}) {
    std::atomic<bool> wanted = false, asked = false;
    ClusterOptions options;
    options.interrupted = [&] {
      asked = asked || wanted;
      return wanted.load();
    };
    const auto wait = [&] {
      wanted = true;
      while (!asked) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the step is given up behind the answer
    };
    auto cluster = make_thread_cluster(2, fake_executors(microseconds(0)), std::make_shared<Reading>(wait), options);
    const std::uint64_t key = cluster->load(updating(update_first));
    cluster->step(key, number(1));
    const std::vector<std::byte> before = cluster->state("v");
    const std::string said = message_of([&] { cluster->step(key, number(2)); });
    wanted = false;
    EXPECT_TRUE(said == "no error" || (!update_first && said == "the step was interrupted")) << said;
    EXPECT_EQ(cluster->state("v") == before, said != "no error");
    cluster->step(key, number(3));
    EXPECT_NE(cluster->state("v"), before);
  }
}

// A transport whose device 1 never starts its sends.
class DeafTransport : public test::ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  Event send(int, int, std::span<const std::byte>) override { return kNoEvent; }
};

const char* const kReceive = R"(penstock program 1
program @receive {microbatches=1}
output %y: i64[8]
task @make {scratch=0}
graph @make() -> (i64[8]) {
  %0: i64[8] = fake::mix()
  return %0
}
task @use {scratch=0}
graph @use(%x: i64[8]) -> (i64[8]) {
  %0: i64[8] = fake::mix(%x)
  return %0
}
device 0 {state_bytes=0, step_bytes=128, scratch_bytes=0}
  slot %x step @0 (i64[8])
  slot %y step @64 (i64[8])
  recv %x from 1 #0
  run 0F0 @use(%x) -> (store %y)
  output %y = %y
  free %x
  free %y
device 1 {state_bytes=0, step_bytes=64, scratch_bytes=0}
  slot %x step @0 (i64[8])
  run 1F0 @make() -> (store %x)
  send %x to 0 #0
  free %x
)";

TEST(ThreadCluster, APassedDeadlineNamesDeviceInstructionAndPeer) {
  ClusterOptions options;
  options.deadline = 0.05;
  options.wrap = [](int device, std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    if (device == 1) return std::make_unique<DeafTransport>(std::move(inner));
    return inner;
  };
  auto cluster = make_thread_cluster(2, fake_executors(microseconds(0)), std::make_shared<HashData>(), options);
  const std::uint64_t key = cluster->load(parse_program(kReceive));
  EXPECT_EQ(message_of([&] { cluster->step(key, {}); }),
            "device 0 waited longer than the deadline of 0.05 s in recv from device 1 (tag 0)\n"
            "  needed by: F0 of stage 0\n  program: receive\n"
            "  hint: see what device 1 was doing; raise the deadline if a step may take that long");
}

Program collectives() {
  return parse_program(read_file(test::tests_folder() + "/golden/program/collectives.txt"));
}

std::vector<std::uint64_t> words_of(const std::vector<std::byte>& bytes) {
  std::vector<std::uint64_t> out(bytes.size() / 8);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

TEST(ThreadCluster, CollectivesGiveTheSums) {
  const Program program = collectives();
  for (const microseconds longest : {microseconds(0), microseconds(300)}) {
    auto cluster = make_thread_cluster(4, fake_executors(longest), std::make_shared<HashData>(),
                                       longest.count() > 0 ? fake_transports(longest) : ClusterOptions{});
    const std::uint64_t key = cluster->load(program);
    for (std::int64_t step = 1; step <= 5; ++step) {
      StepInput input;
      input.step = step;
      std::vector<std::byte> all(8 * 64);
      HashData().fill(program.data[0], input, 0, 8, all);
      const std::vector<std::uint64_t> x = words_of(all);  // 16 of each device
      const auto outputs = cluster->step(key, input).outputs;
      std::vector<std::uint64_t> sum, total, pieces;
      for (std::size_t i = 0; i < 16; ++i) sum.push_back(3 * (x[i] + x[16 + i] + x[32 + i]));
      for (std::size_t i = 0; i < 16; ++i) total.push_back(3 * x[32 + i]);
      for (std::size_t i = 0; i < 24; ++i) pieces.push_back(x[16 * (1 + i / 8) + i % 8]);
      EXPECT_EQ(words_of(outputs.at("sum")), sum);
      EXPECT_EQ(words_of(outputs.at("total")), total);
      EXPECT_EQ(words_of(outputs.at("pieces")), pieces);
    }
  }
}

// A transport that stays away from a collective, or loses the others in it.
class Absent : public test::ForwardingTransport {
 public:
  Absent(std::unique_ptr<Transport> inner, int group, int tag, bool loses)
      : ForwardingTransport(std::move(inner)), group_(group), tag_(tag), loses_(loses) {}
  Event collective(const CollectiveCall& call) override {
    if (call.group != group_ || call.tag != tag_) return ForwardingTransport::collective(call);
    if (loses_) throw PeerLost("connection closed");
    return kNoEvent;
  }

 private:
  int group_, tag_;
  bool loses_;
};

std::string failure_of_collectives(bool loses) {
  ClusterOptions options;
  options.deadline = loses ? 60 : 0.5;  // on a busy machine a device waits for any other for tens of milliseconds
  options.wrap = [loses](int device, std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    if (device == 2) return std::make_unique<Absent>(std::move(inner), 0, 2, loses);
    return inner;
  };
  auto cluster = make_thread_cluster(4, fake_executors(microseconds(0)), std::make_shared<HashData>(), options);
  const std::uint64_t key = cluster->load(collectives());
  return message_of([&] { cluster->step(key, {}); });
}

// Devices 0 and 1 wait for device 2; which of them is late first is by chance.
TEST(ThreadCluster, APassedDeadlineNamesTheCollectiveAndItsOtherMembers) {
  const std::string message = failure_of_collectives(false);
  EXPECT_TRUE(message ==
                  "device 0 waited longer than the deadline of 0.5 s in all_reduce %part of group 0 (tag 2)\n"
                  "  needed by: output sum\n  program: collectives\n"
                  "  hint: see what device 1 or 2 was doing; raise the deadline if a step may take that long" ||
              message ==
                  "device 1 waited longer than the deadline of 0.5 s in all_reduce %part of group 0 (tag 2)\n"
                  "  needed by: free %part\n  program: collectives\n"
                  "  hint: see what device 0 or 2 was doing; raise the deadline if a step may take that long")
      << message;
}

TEST(ThreadCluster, ALostMemberIsOneOfTheGroup) {
  EXPECT_EQ(failure_of_collectives(true),
            "device 0 or 1 was lost while device 2 waited in all_reduce %part of group 0 (tag 2)\n"
            "  needed by: all_reduce %part of group 0 (tag 2)\n  program: collectives\n  the transport says: connection closed");
}

// Host copies that are never done.
class StuckHostCopies : public Executor {
 public:
  void load(std::shared_ptr<const Program> program, int device) override { inner_->load(std::move(program), device); }
  std::span<std::byte> address(SlotId slot) override { return inner_->address(slot); }
  Event write(SlotId slot, std::size_t offset, std::span<const std::byte> bytes) override { return inner_->write(slot, offset, bytes); }
  Event read(SlotId slot, std::size_t offset, std::span<std::byte> bytes) override { return inner_->read(slot, offset, bytes); }
  Event issue(const Instruction& instruction) override { return is_host_copy(instruction.opcode) ? 0 : inner_->issue(instruction); }
  std::uint64_t placement() const override { return inner_->placement(); }
  bool done(Event) override { return false; }
  bool wait(Event, Deadline deadline) override {
    std::this_thread::sleep_until(deadline);
    return false;
  }

 private:
  std::unique_ptr<Executor> inner_ = make_fake_executor({});
};

// Writes that are never done.
class StuckWrites : public StuckHostCopies {
 public:
  Event write(SlotId, std::size_t, std::span<const std::byte>) override { return 0; }
};

TEST(ThreadCluster, APassedDeadlineNamesTheStateCopy) {
  ClusterOptions options;
  options.deadline = 0.05;
  auto cluster = make_thread_cluster(1, [](int) { return std::make_unique<StuckWrites>(); }, std::make_shared<HashData>(), options);
  cluster->load(test::random_program(0, 1, 1));
  EXPECT_EQ(message_of([&] { cluster->set_state(zeros()); }),
            "device 0 waited longer than the deadline of 0.05 s for a copy of its state\n"
            "  hint: raise the deadline if a copy may take that long");
}

// The message of a step of asynchronous devices.
std::string failure_on_lanes(const Program& program, double deadline,
                             const std::function<std::unique_ptr<Transport>(int device, std::unique_ptr<Transport>)>& wrap) {
  std::vector<std::shared_ptr<DeviceLanes>> lanes;
  for (std::size_t d = 0; d < program.devices.size(); ++d) lanes.push_back(make_thread_lanes(d, microseconds(0)));
  ClusterOptions options;
  options.deadline = deadline;
  options.wrap = [&](int device, std::unique_ptr<Transport> inner) {
    return make_lane_transport(wrap(device, std::move(inner)), lanes[static_cast<std::size_t>(device)]);
  };
  const auto executor = [&](int device) { return make_lane_executor(make_fake_executor({}), lanes[static_cast<std::size_t>(device)]); };
  auto cluster = make_thread_cluster(static_cast<int>(lanes.size()), executor, std::make_shared<HashData>(), options);
  const std::uint64_t key = cluster->load(program);
  return message_of([&] { cluster->step(key, {}); });
}

TEST(ThreadCluster, APassedDeadlineOfAsynchronousDevicesNamesWhatNeverCame) {
  const auto deaf = [](int device, std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    if (device == 1) return std::make_unique<DeafTransport>(std::move(inner));
    return inner;
  };
  EXPECT_EQ(failure_on_lanes(parse_program(kReceive), 0.5, deaf),
            "device 0 waited longer than the deadline of 0.5 s in recv from device 1 (tag 0)\n"
            "  needed by: the end of the step\n  program: receive\n"
            "  hint: see what device 1 was doing; raise the deadline if a step may take that long");
}

TEST(ThreadCluster, AsynchronousDevicesTellALostMember) {
  const auto absent = [](int device, std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    if (device == 2) return std::make_unique<Absent>(std::move(inner), 0, 2, true);
    return inner;
  };
  const std::string message = failure_on_lanes(collectives(), 60, absent);
  EXPECT_TRUE(message.find("was lost while device 2 waited in ") != message.npos) << message;
  EXPECT_TRUE(message.ends_with("  program: collectives\n  the transport says: connection closed")) << message;
}

TEST(ThreadCluster, APassedDeadlineNamesTheHostCopy) {
  ClusterOptions options;
  options.deadline = 0.05;
  auto cluster = make_thread_cluster(1, [](int) { return std::make_unique<StuckHostCopies>(); }, std::make_shared<HashData>(), options);
  const std::uint64_t key = cluster->load(parse_program(read_file(test::tests_folder() + "/golden/program/host_copies.txt")));
  EXPECT_EQ(message_of([&] { cluster->step(key, {}); }),
            "device 0 waited longer than the deadline of 0.05 s in offload %a to %h\n"
            "  needed by: free %a\n  program: over_the_host\n  hint: raise the deadline if a step may take that long");
}

}  // namespace
}  // namespace penstock
