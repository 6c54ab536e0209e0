// SPDX-License-Identifier: Apache-2.0
// Tensors between processes over NCCL, here a library that keeps its rules on the stand-in (tests/standin/fake_nccl.cpp): ranks as threads
// of this process, and as processes where steps are recorded or one of them is lost.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/text.h"
#include "devices/forwarding_transport.h"
#include "devices/transport_cases.h"
#include "driver/check.h"
#include "driver/training.h"
#include "models/registry.h"
#include "program/samples.h"
#include "support/errors.h"
#include "support/own_process.h"
#include "support/random_program.h"
#include "support/reserved_port.h"
#include "torch/arena.h"
#include "torch/device.h"
#include "torch/executor.h"
#include "torch/fake_runs.h"
#include "torch/gloo_cluster.h"
#include "torch/nccl_library.h"
#include "torch/nccl_transport.h"
#include "torch/stream_hub.h"
#include "torch/stream_lanes.h"
#include "torch/test_cluster.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace penstock {
namespace {

using test::message_of;

std::string fake_library() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "fake_nccl/libnccl.so.2").string();
}

Deadline in(double seconds) {
  return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

// Before anything of this process asks for NCCL.
const bool kFakeIsFound = ::setenv("PENSTOCK_NCCL", fake_library().c_str(), 0) == 0;

GlooOptions over_nccl(double deadline = 20) {
  return {.deadline = deadline, .rendezvous = 20, .device = "standin", .nccl = true};
}

Ranks ranks(int rank, int size, int port) {
  Ranks out;
  out.rank = rank;
  out.size = size;
  out.port = port;
  return out;
}

// --- the library

TEST(NcclLibrary, ThatIsNotThere) {
  const std::string message = message_of([] { load_nccl("no/libnccl.so.2"); });
  EXPECT_EQ(message.substr(0, message.find(':')), "cannot load NCCL, which backend nccl sends tensors with\n  no/libnccl.so.2");
  EXPECT_NE(message.find("hint: install NCCL, set PENSTOCK_NCCL to its libnccl.so.2, or take --backend gloo"), std::string::npos);
}

TEST(NcclLibrary, WithoutItsFunctions) {
  EXPECT_EQ(message_of([] { load_nccl("libc.so.6"); }),
            "libc.so.6 has no function ncclGetVersion\n  hint: set PENSTOCK_NCCL to the libnccl.so.2 of NCCL 2.18 or later");
}

TEST(NcclLibrary, ThatIsTooOld) {
  open_device("standin");
  ::setenv("PENSTOCK_FAKE_NCCL", "version:21605", 1);
  EXPECT_EQ(message_of([] { load_nccl(fake_library()); }),
            concat(fake_library(), " is NCCL 2.16.5, which is too old\n  hint: 2.18 or later; set PENSTOCK_NCCL to one"));
  ::unsetenv("PENSTOCK_FAKE_NCCL");
}

// --- the transport

// Takes what lies in the host's memory through that of the device.
class ThroughDevice final : public test::ForwardingTransport {
 public:
  ThroughDevice(std::unique_ptr<StreamLanes> lanes, std::unique_ptr<Transport> inner)
      : ForwardingTransport(nullptr), lanes_(std::move(lanes)), over_(std::move(inner)) {}

  void begin_step(const Program& program, int device) override { over_->begin_step(program, device); }
  Event send(int peer, int tag, std::span<const std::byte> bytes) override {
    Here here(bytes, {}, lanes_->device());
    const Event event = over_->send(peer, tag, here.from());
    return started(event, std::move(here));
  }
  Event receive(int peer, int tag, std::span<std::byte> bytes) override {
    Here here({}, bytes, lanes_->device());
    const Event event = over_->receive(peer, tag, here.to());
    return started(event, std::move(here));
  }
  Event collective(const CollectiveCall& call) override {
    Here here(call.from, call.to, lanes_->device());
    CollectiveCall there = call;
    there.from = here.from();
    there.to = here.to();
    const Event event = over_->collective(there);
    return started(event, std::move(here));
  }
  bool done(Event event) override { return over_->done(event); }
  bool wait(Event event, Deadline deadline) override {
    if (!over_->wait(event, deadline)) return false;
    under_way_.at(event).give_back(lanes_->device());
    return true;
  }

 private:
  struct Here {
    Arena memory;
    std::size_t given;
    std::span<std::byte> target;
    bool in_place;

    Here(std::span<const std::byte> in, std::span<std::byte> out, c10::Device device)
        : memory(static_cast<std::int64_t>(in.size() + out.size()), device),
          given(in.size()),
          target(out),
          in_place(in.data() == out.data()) {
      copy_bytes({memory.data(), device}, {const_cast<std::byte*>(in.data()), c10::DeviceType::CPU}, in.size());
      synchronise(device);
    }
    std::span<const std::byte> from() const { return {memory.data(), given}; }
    std::span<std::byte> to() const { return {memory.data() + (in_place ? 0 : given), target.size()}; }
    void give_back(c10::Device device) const {
      copy_bytes({target.data(), c10::DeviceType::CPU}, {to().data(), device}, target.size());
      synchronise(device);
    }
  };
  Event started(Event event, Here here) {
    under_way_.emplace(event, std::move(here));
    return event;
  }

  std::unique_ptr<StreamLanes> lanes_;
  std::map<Event, Here> under_way_;
  std::unique_ptr<Transport> over_;
};

std::vector<std::unique_ptr<Transport>> endpoints(int devices) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::unique_ptr<Transport>> out;
  for (int device = 0; device < devices; ++device) {
    auto lanes = std::make_unique<StreamLanes>(open_device("standin"));
    auto inner = make_nccl_transport(store, *lanes, std::chrono::seconds(20));
    out.push_back(std::make_unique<ThroughDevice>(std::move(lanes), std::move(inner)));
  }
  return out;
}

using test::TransportConformance;
INSTANTIATE_TEST_SUITE_P(Nccl, TransportConformance, testing::Values(test::TransportCase{"Nccl", endpoints, true}), test::case_name);

TEST(NcclTransport, MoreDirectionsThanAGpuHasRoomFor) {
  Program program;
  program.devices.resize(30);
  for (std::int32_t peer = 1; peer < 29; ++peer) {
    Instruction& instruction = program.devices[0].instructions.emplace_back();
    instruction.opcode = Opcode::send;
    instruction.peer = peer;
  }
  const std::string message = message_of([&] { endpoints(1)[0]->begin_step(program, 0); });
  EXPECT_EQ(message,
            "device 0 sends to and receives from other devices in 28 directions\n"
            "  over NCCL these take 112 thread blocks at once, and a GPU may have as few as 108\n  hint: --backend gloo");
}

TEST(NcclTransport, SnapshotsThatOthersKeep) {
  const Program program = parse_program(test::snapshots());
  EXPECT_EQ(message_of([&] { endpoints(1)[0]->begin_step(program, 0); }),
            "device 0 sends a snapshot or keeps another's\n"
            "  snapshots lie in the host's memory, and NCCL sends from device to device\n  hint: --backend gloo, or no buddies");
}

// NCCL's rules, as the library of the tests keeps them: what two ends do is an error, or never ends until it is given up.
class NcclRules : public testing::Test {
 protected:
  void SetUp() override {
    std::thread other([&] { EXPECT_EQ(message_of([&] { ends[1]->begin_step(program, 1); }), "no error"); });
    EXPECT_EQ(message_of([&] { ends[0]->begin_step(program, 0); }), "no error");
    other.join();
  }
  // Returns what waiting for it says on device 0, which receives.
  std::string received(std::size_t bytes, double seconds) {
    const Event event = ends[0]->receive(1, 0, std::span(memory[0]).first(bytes));
    return message_of([&] { EXPECT_FALSE(ends[0]->wait(event, in(seconds))); });
  }

  Program program = both_ways();
  std::vector<std::vector<std::byte>> memory{std::vector<std::byte>(64), std::vector<std::byte>(64)};  // outlives what is under way
  std::vector<std::unique_ptr<Transport>> ends = endpoints(2);

 private:
  static Program both_ways() {
    Program out;
    out.devices.resize(2);
    for (std::int32_t device = 0; device < 2; ++device)
      for (const Opcode opcode : {Opcode::send, Opcode::recv}) {
        Instruction& instruction = out.devices[static_cast<std::size_t>(device)].instructions.emplace_back();
        instruction.opcode = opcode;
        instruction.peer = 1 - device;
      }
    return out;
  }
};

TEST_F(NcclRules, EndsOfDifferentSizesAreAnError) {
  ends[1]->send(0, 0, std::span(memory[1]).first(32));
  EXPECT_EQ(received(64, 20), "device 1 was lost\n  NCCL says: invalid usage: of the stand-in");
}

TEST_F(NcclRules, NothingIsDoneBeforeBothEndsHaveBegun) {
  const Event sent = ends[1]->send(0, 0, memory[1]);
  EXPECT_FALSE(ends[1]->wait(sent, in(0.1)));
  EXPECT_EQ(received(64, -1), "no error");  // it has begun, and was not waited for
  EXPECT_TRUE(ends[1]->wait(sent, in(20)));
}

TEST_F(NcclRules, AnEndThatIsGoneIsAnError) {
  ends[1].reset();
  EXPECT_NE(received(64, 20).find("device 1 was lost\n  NCCL says: remote process exited"), std::string::npos);
}

// --- clusters

// Runs them on so many ranks, which are threads of this process.
void run_random_programs(int size, const ExecutorFactory& executors) {
  const int port = test::reserved_port();
  const auto data = std::make_shared<test::HashData>();
  std::vector<std::string> said(static_cast<std::size_t>(size), "no error");
  std::vector<std::jthread> threads;  // so that an exception is said, and does not end the process in their place
  for (int rank = 1; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      said[static_cast<std::size_t>(rank)] = message_of([&] { serve_gloo(ranks(rank, size, port), executors, data, over_nccl()); });
    });
  auto cluster = make_gloo_cluster(ranks(0, size, port), executors, data, over_nccl());
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const Program program = test::random_program(seed, size, 80);
    test::Reference reference(program);
    const std::uint64_t key = cluster->load(program);
    cluster->set_state({});
    for (std::int64_t step = 1; step <= 3; ++step) {
      StepInput input;
      input.step = step;
      EXPECT_EQ(cluster->step(key, input).outputs, reference.step(input)) << "seed " << seed << ", step " << step;
    }
    EXPECT_EQ(cluster->state("state0"), reference.state(0));
  }
  cluster.reset();
  for (std::jthread& thread : threads) thread.join();
  EXPECT_EQ(said, std::vector<std::string>(static_cast<std::size_t>(size), "no error"));
}

TEST(NcclCluster, RandomProgramsGiveTheReference) {
  for (const int size : {2, 4}) {
    SCOPED_TRACE(size);
    run_random_programs(size, [](int) { return test::make_standin_fake(); });
  }
}

// It issues each of its steps, and the others replay theirs.
TEST(NcclCluster, ADeviceThatCannotRecordItsSteps) {
  run_random_programs(2, [](int device) { return test::make_standin_fake(device == 1); });
}

TEST(NcclCluster, TheHostIsNoDeviceForIt) {
  GlooOptions options = over_nccl();
  options.device = "cpu";
  EXPECT_EQ(message_of([&] { make_gloo_cluster(ranks(0, 2, test::reserved_port()), torch_executor_factory(), nullptr, options); }),
            "backend nccl sends from device to device, and the device is cpu\n  hint: --backend gloo, or another --device");
}

// --- processes

struct Task {
  Config config;
  Prepared prepared;
  Program program;
  std::shared_ptr<const DataSource> data;
};

Task task_of(const std::string& settings) {
  std::vector<Override> overrides;
  for (const std::string_view setting :
       split(concat("width=16 heads=2 context=8 vocabulary=32 batch=8 microbatches=4 clip=0.1 dropout=0.1 ", settings), ' '))
    overrides.push_back(parse_override(std::string(setting)));
  Config config = load_config("", overrides, builtin_models());
  Prepared prepared = prepare(config, builtin_models());
  Program program = compile_training(config, prepared);
  const auto data = std::make_shared<RandomBatch>(text_ports(context_of(config)), vocabulary_of(config));
  return {std::move(config), std::move(prepared), std::move(program), data};
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

// Not a test: one process of the worlds below, that trains by the settings, or runs random programs' tasks where there are none.
TEST(NcclProcess, Serve) {
  if (variable("PENSTOCK_TEST_RANKS").empty()) GTEST_SKIP() << "started by other tests";
  const std::string settings = variable("PENSTOCK_TEST_SETTINGS");
  const GlooOptions options = over_nccl();
  try {
    const ExecutorFactory fakes = [](int) { return test::make_standin_fake(); };
    if (settings.empty())
      serve_gloo(*ranks_from_environment(), fakes, std::make_shared<test::HashData>(), options);
    else
      serve_gloo(*ranks_from_environment(), torch_executor_factory(1, open_device("standin")), task_of(settings).data, options);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(1);
  }
  std::_Exit(0);
}

pid_t spawn(int rank, int size, int port, const std::string& settings, const std::string& fault = "") {
  return test::spawn_test("NcclProcess.Serve", {"PENSTOCK_TEST_RANKS=1", concat("PENSTOCK_TEST_SETTINGS=", settings), concat("RANK=", rank),
                                                concat("WORLD_SIZE=", size), concat("MASTER_PORT=", port), "MASTER_ADDR=127.0.0.1",
                                                "PENSTOCK_STANDIN_DELAY=20", concat("PENSTOCK_FAKE_NCCL=", fault)});
}

struct Trained {
  std::vector<std::map<std::string, std::vector<std::byte>>> outputs;  // of each step
  std::map<std::string, std::vector<std::byte>> state;
  bool operator==(const Trained&) const = default;
};

Trained train(Cluster& cluster, const Task& task, bool issued) {
  const std::uint64_t key = cluster.load(task.program);
  cluster.set_state(fresh_start(task.config, task.prepared).state);
  Trained out;
  for (std::int64_t step = 1; step <= 4; ++step) out.outputs.push_back(cluster.step(key, {step, 0, false, {}}, issued).outputs);
  out.state = test::state_of(cluster, task.program);
  return out;
}

// Steps whose spans are asked for are issued; the others are recorded at the second and replayed from then on.
TEST(NcclProcess, ReplayedStepsHaveTheBitsOfIssuedOnesAndOfThreads) {
  for (const std::string settings : {"schedule=1f1b pipeline.data=2 zero=2 dtype=bf16", "schedule=zb-h1 actors=3 layers=3",
                                     "schedule=interleaved-1f1b chunks=2 layers=4 pipeline.data=2 zero=1"}) {
    SCOPED_TRACE(settings);
    const Task task = task_of(settings);
    const int size = static_cast<int>(task.program.devices.size()), port = test::reserved_port();
    std::vector<pid_t> others;
    for (int rank = 1; rank < size; ++rank) others.push_back(spawn(rank, size, port, settings));
    const ExecutorFactory executors = torch_executor_factory(1, open_device("standin"));
    auto cluster = make_gloo_cluster(ranks(0, size, port), executors, task.data, over_nccl());
    const Trained issued = train(*cluster, task, true), replayed = train(*cluster, task, false);
    cluster.reset();
    for (const pid_t other : others) EXPECT_EQ(test::exit_code(other), 0);
    EXPECT_TRUE(replayed == issued);
    const auto threads = make_thread_cluster(size, executors, task.data, {.hub = [] { return make_stream_hub(open_device("standin")); }});
    EXPECT_TRUE(train(*threads, task, false) == issued);
  }
}

// Device 1 makes what 0 gives.
const char* const kPair = R"(penstock program 1
program @pair {microbatches=1}
output %x: i64[8]
task @make {scratch=0}
graph @make() -> (i64[8]) {
  %0: i64[8] = fake::mix()
  return %0
}
device 0 {state_bytes=0, step_bytes=64, scratch_bytes=0}
  slot %x step @0 (i64[8])
  recv %x from 1 #0
  output %x = %x
  free %x
device 1 {state_bytes=0, step_bytes=64, scratch_bytes=0}
  slot %x step @0 (i64[8])
  run 1F0 @make() -> (store %x)
  send %x to 0 #0
  free %x
)";

// The error with which a step ends when something goes wrong in the other process. Its first operation is that with which the two connect,
// and then there is one in each step.
struct Loss {
  std::string message;
  std::chrono::duration<double> took{};
  int code = 0;  // of the other process
};

// The other process waits for longer than this one, which so is the first to say something.
Loss lose(const std::string& fault, int steps, double deadline, bool kill = false) {
  const int port = test::reserved_port();
  const pid_t other = spawn(1, 2, port, "", fault);
  auto cluster = make_gloo_cluster(
      ranks(0, 2, port), [](int) { return test::make_standin_fake(); }, std::make_shared<test::HashData>(), over_nccl(deadline));
  const std::uint64_t key = cluster->load(parse_program(kPair));
  for (int step = 1; step < steps; ++step) cluster->step(key, {});
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    if (kill) ::kill(other, SIGKILL);
  });
  const auto begin = std::chrono::steady_clock::now();
  Loss out{message_of([&] { cluster->step(key, {}); })};
  out.took = std::chrono::steady_clock::now() - begin;
  killer.join();
  cluster.reset();
  if (fault.starts_with("silent")) ::kill(other, SIGKILL);
  out.code = test::exit_code(other);
  return out;
}

constexpr const char* kLost =
    "device 1 was lost while device 0 waited in recv from device 1 (tag 0)\n  needed by: the end of the step\n  program: pair\n";

TEST(NcclProcess, AProcessThatEndsIsNamedWithTheInstructionThatWaited) {
  const Loss loss = lose("exit:2", 1, 20);
  EXPECT_EQ(loss.message.substr(0, std::string(kLost).size()), kLost);
  EXPECT_LT(loss.took, std::chrono::seconds(10));
  EXPECT_EQ(loss.code, 9);
}

TEST(NcclProcess, AKilledProcessIsNamedInAReplayedStep) {
  const Loss loss = lose("silent:4", 3, 20, true);
  EXPECT_EQ(loss.message.substr(0, loss.message.find('\n')), "device 1 was lost");
  EXPECT_NE(loss.message.find("NCCL says: remote process exited"), std::string::npos) << loss.message;
  EXPECT_LT(loss.took, std::chrono::seconds(10));
  EXPECT_EQ(loss.code, 128 + SIGKILL);
}

TEST(NcclProcess, ASilentProcessIsNamedAtTheDeadline) {
  const std::string message = lose("silent:2", 1, 2).message,
                    late = "device 0 waited longer than the deadline of 2 s in recv from device 1 (tag 0)";
  EXPECT_EQ(message.substr(0, message.find('\n')), late);
  EXPECT_EQ(lose("silent:1", 1, 2).message, "device 1 was lost\n  its first message did not come");
  EXPECT_EQ(
      lose("silent:4", 3, 2).message,
      "a recorded step took longer than the deadline\n  it waits for device 1\n  hint: raise the deadline if a step may take that long");
}

// The error is of the other process, which then gives up its end.
TEST(NcclProcess, AnErrorThatNcclFindsByItselfEndsTheStep) {
  for (const int steps : {1, 3}) {
    const Loss loss = lose(concat("error:", steps + 1), steps, 20);
    EXPECT_NE(loss.message.find("NCCL says: "), std::string::npos) << loss.message;
    EXPECT_LT(loss.took, std::chrono::seconds(10));
    EXPECT_EQ(loss.code, 1);
  }
}

}  // namespace
}  // namespace penstock
