// SPDX-License-Identifier: Apache-2.0
// Clusters over Gloo: ranks as threads of this process, and as processes where one of them is killed.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/text.h"
#include "devices/transport_conformance.h"
#include "state/initialise.h"
#include "support/errors.h"
#include "support/fake_device.h"
#include "support/own_process.h"
#include "support/random_program.h"
#include "support/reserved_port.h"
#include "support/temporary.h"
#include "torch/gloo_cluster.h"
#include "torch/gloo_transport.h"
#include "torch/staged_transport.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace penstock {
namespace {

using std::chrono::microseconds;
using test::exit_code;
using test::message_of;

// A listening socket on a free port of the loopback device; closed at the end.
class Listener {
 public:
  Listener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(socket_, 1), 0);
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(address.sin_port);
  }
  ~Listener() { ::close(socket_); }
  int port = 0;

 private:
  int socket_;
};

Ranks ranks(int rank, int size, int port) {
  Ranks out;
  out.rank = rank;
  out.size = size;
  out.port = port;
  return out;
}

ExecutorFactory fakes(microseconds longest = microseconds(0)) {
  return [longest](int device) { return make_fake_executor({static_cast<std::uint64_t>(device), longest}); };
}

GlooOptions quick() {
  return {20, 20};
}

std::vector<std::unique_ptr<Transport>> endpoints(int devices) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::unique_ptr<Transport>> ends(static_cast<std::size_t>(devices));
  std::vector<std::thread> threads;
  for (int device = 0; device < devices; ++device)
    threads.emplace_back([&, device] {
      ends[static_cast<std::size_t>(device)] =
          make_gloo_transport(store, device, devices, "127.0.0.1", std::chrono::seconds(20), std::chrono::seconds(20));
    });
  for (std::thread& thread : threads) thread.join();
  return ends;
}

using test::TransportConformance;
// Through memory of their own, as devices send whose memory is not the host's.
std::vector<std::unique_ptr<Transport>> staged_endpoints(int devices) {
  std::vector<std::unique_ptr<Transport>> out = endpoints(devices);
  for (std::unique_ptr<Transport>& end : out) end = make_staged_transport(std::move(end), c10::DeviceType::CPU);
  return out;
}

INSTANTIATE_TEST_SUITE_P(Gloo, TransportConformance,
                         testing::Values(test::TransportCase{"Gloo", endpoints}, test::TransportCase{"GlooStaged", staged_endpoints}),
                         test::case_name);

// A world whose other ranks are threads of this process.
class World {
 public:
  explicit World(int size, GlooOptions options = quick()) : port_(test::reserved_port()) {
    for (int rank = 1; rank < size; ++rank)
      threads_.emplace_back([=, this, said = said_] {
        said->at(static_cast<std::size_t>(rank)) = message_of([&] { serve_gloo(ranks(rank, size, port_), fakes(), data(), options); });
      });
    cluster = make_gloo_cluster(ranks(0, size, port_), fakes(), data(), options);
  }
  ~World() { stop(); }
  // Returns what each rank said at its end.
  std::vector<std::string> stop() {
    cluster.reset();
    for (std::thread& thread : threads_)
      if (thread.joinable()) thread.join();
    return *said_;
  }
  std::unique_ptr<Cluster> cluster;

 private:
  static std::shared_ptr<const DataSource> data() { return std::make_shared<test::HashData>(); }
  int port_;
  std::shared_ptr<std::vector<std::string>> said_ = std::make_shared<std::vector<std::string>>(16, "no error");
  std::vector<std::thread> threads_;
};

TEST(GlooCluster, RandomProgramsGiveTheReference) {
  for (int size : {1, 2, 4}) {
    SCOPED_TRACE(size);
    World world(size);
    world.cluster->set_state({});
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      const Program program = test::random_program(seed, size, 80);
      test::Reference reference(program);
      const std::uint64_t key = world.cluster->load(program);
      world.cluster->set_state({});
      for (std::int64_t step = 1; step <= 3; ++step) {
        StepInput input;
        input.step = step;
        EXPECT_EQ(world.cluster->step(key, input).outputs, reference.step(input)) << "seed " << seed;
      }
      EXPECT_EQ(world.cluster->state("state0"), reference.state(0));
    }
    EXPECT_EQ(world.stop(), std::vector<std::string>(16, "no error"));
  }
}

// Programs and states may be larger than what the store takes at once.
TEST(GlooCluster, CarriesLargeMessages) {
  World world(2);
  world.cluster->load(parse_program(R"(penstock program 1
program @p {microbatches=1}
device 0 {state_bytes=0, step_bytes=0, scratch_bytes=0}
device 1 {state_bytes=20000000, step_bytes=0, scratch_bytes=0}
  slot %w state @0 (f64[2500000] "w")
)"));
  StateSource source;
  source.parameters = {{"w", {DType::f64, {2500000}}, {Initialiser::Kind::ones, 0}, true}};
  world.cluster->set_state(source);
  const auto w = world.cluster->state("w");
  EXPECT_EQ(w.size(), 20000000u);
  EXPECT_EQ(w[w.size() - 1], std::byte{0x3f});
}

TEST(GlooCluster, PutsPiecesOfStateTogether) {
  World world(2);
  world.cluster->load(parse_program(R"(penstock program 1
program @p {microbatches=1}
device 0 {state_bytes=64, step_bytes=0, scratch_bytes=0}
  slot %w state @0 (f64[3] "w[4:7]")
device 1 {state_bytes=64, step_bytes=0, scratch_bytes=0}
  slot %w state @0 (f64[4] "w[0:4]")
)"));
  StateSource source;
  source.parameters = {{"w", {DType::f64, {7}}, {Initialiser::Kind::normal, 1}, true}};
  world.cluster->set_state(source);
  std::vector<std::byte> expected(56);
  initialise(source.parameters[0], 0, expected);
  EXPECT_EQ(world.cluster->state("w"), expected);
}

TEST(GlooCluster, APortInUse) {
  Listener taken;
  EXPECT_EQ(message_of([&] { make_gloo_cluster(ranks(0, 2, taken.port), fakes(), nullptr, quick()); }),
            concat("port ", taken.port, " is in use\n  hint: set MASTER_PORT to a free one; another run may still be there"));
}

TEST(GlooCluster, ARankThatDoesNotCome) {
  const int port = test::reserved_port();
  EXPECT_EQ(message_of([&] { make_gloo_cluster(ranks(0, 2, port), fakes(), nullptr, {1, 0.3}); }),
            "rank 1 did not come within 0.3 s\n  the world has 2 ranks\n  hint: see what that process says");
}

TEST(GlooCluster, NobodyAtTheAddress) {
  const int port = test::reserved_port();
  const std::string message = message_of([&] { serve_gloo(ranks(1, 2, port), fakes(), nullptr, {1, 0.5}); });
  EXPECT_EQ(message.substr(0, message.find('\n')), concat("cannot reach rank 0 at 127.0.0.1:", port));
}

TEST(GlooCluster, AnotherWorldSize) {
  const int port = test::reserved_port();
  std::string other;
  std::thread thread([&] { other = message_of([&] { serve_gloo(ranks(1, 3, port), fakes(), nullptr, quick()); }); });
  const std::string message = message_of([&] { make_gloo_cluster(ranks(0, 2, port), fakes(), nullptr, quick()); });
  thread.join();
  EXPECT_EQ(message, "rank 1 has another world size than rank 0\n  rank 0: 2\n  rank 1: 3\n  hint: start all processes with one launcher");
  EXPECT_EQ(other, message);
}

TEST(GlooCluster, AnotherConfiguration) {
  const int port = test::reserved_port();
  GlooOptions first = quick(), second = quick();
  first.run = "command: train\n[model]\nwidth = 64\n";
  second.run = "command: train\n[model]\nwidth = 65\n";
  std::string other;
  std::thread thread([&] { other = message_of([&] { serve_gloo(ranks(1, 2, port), fakes(), nullptr, second); }); });
  const std::string message = message_of([&] { make_gloo_cluster(ranks(0, 2, port), fakes(), nullptr, first); });
  thread.join();
  EXPECT_EQ(message,
            "rank 1 has another command, data or configuration than rank 0\n  rank 0: [model] width = 64\n  rank 1: [model] width = 65\n"
            "  hint: start all processes with the same command, on the same data");
  EXPECT_EQ(other, message);
}

// Neither finds what the other says.
TEST(GlooCluster, AnotherSecret) {
  Ranks first = ranks(0, 2, test::reserved_port()), second = first;
  second.rank = 1;
  first.secret = "a", second.secret = "b";
  std::string other;
  std::thread thread([&] { other = message_of([&] { serve_gloo(second, fakes(), nullptr, {1, 2}); }); });
  EXPECT_EQ(message_of([&] { make_gloo_cluster(first, fakes(), nullptr, {1, 6}); }),
            "rank 1 did not come within 6 s\n  the world has 2 ranks\n  hint: see what that process says");
  thread.join();
  EXPECT_EQ(other,
            "rank 0 did not answer within 2 s\n  hint: see what that process says; all processes need the same PENSTOCK_SECRET, or none");
}

// It takes the connection and never says a word.
TEST(GlooCluster, SomebodyElseAtTheAddress) {
  Listener silent;
  const std::string message = message_of([&] { serve_gloo(ranks(1, 2, silent.port), fakes(), nullptr, {1, 0.5}); });
  EXPECT_EQ(message.substr(0, message.find(": ")), concat("cannot reach rank 0 at 127.0.0.1:", silent.port, "\n  tried for 0.5 s"));
}

TEST(GlooCluster, StateIsSavedInTheRunsFolderOnly) {
  const test::TemporaryFolder folder;
  GlooOptions options = quick();
  options.folder = folder.file("run");
  World world(2, options);
  world.cluster->load(test::random_program(0, 2, 1));
  world.cluster->set_state({});
  EXPECT_EQ(message_of([&] { world.cluster->save_state(folder.path().string()); }),
            concat("state is not saved in ", folder.path().string(), "\n  the run's folder is ", options.folder));
  EXPECT_FALSE(std::filesystem::exists(folder.file("device-1.safetensors")));
}

TEST(GlooCluster, TooManyDevices) {
  World world(2);
  EXPECT_EQ(message_of([&] { world.cluster->load(test::random_program(0, 3, 1)); }),
            "program random0 needs 3 devices, there are 2\n  hint: start 3 processes, or take a schedule of 2 actors");
}

// A device that fails tells the controller, and the controller tells it.
TEST(GlooCluster, AnErrorOfAnotherRank) {
  World world(2);
  EXPECT_EQ(message_of([&] {
              world.cluster->load(test::random_program(0, 2, 1));
              StateSource source;
              source.kind = StateSource::Kind::safetensors;
              source.parameters = {{"state1", {DType::i64, {8}}, {}, true}};
              source.path = "missing.safetensors";
              world.cluster->set_state(source);
            }).substr(0, 39),
            "cannot read missing.safetensors: No suc");
}

TEST(GlooCluster, ADeviceThatCannotBeMade) {
  const int port = test::reserved_port();
  const auto data = std::make_shared<test::HashData>();
  const ExecutorFactory broken = [](int) -> std::unique_ptr<Executor> { throw Error("no such device"); };
  std::string other;
  std::thread thread([&] { other = message_of([&] { serve_gloo(ranks(1, 2, port), broken, data, quick()); }); });
  auto cluster = make_gloo_cluster(ranks(0, 2, port), fakes(), data, quick());
  EXPECT_EQ(message_of([&] { cluster->set_state({}); }), "no such device");
  EXPECT_EQ(message_of([&] { cluster->set_state({}); }),
            "the devices stopped after an earlier failure\n  one of them was lost\n"
            "  hint: the state of those that are left can be read; begin again from a state that was kept");
  cluster.reset();
  thread.join();
  EXPECT_EQ(other, "no such device");
}

// Never finishes a run.
class Stuck : public Executor {
 public:
  void load(std::shared_ptr<const Program> program, int device) override { inner_->load(std::move(program), device); }
  std::span<std::byte> address(SlotId slot) override { return inner_->address(slot); }
  Event write(SlotId slot, std::size_t offset, std::span<const std::byte> bytes) override { return inner_->write(slot, offset, bytes); }
  Event read(SlotId slot, std::size_t offset, std::span<std::byte> bytes) override { return inner_->read(slot, offset, bytes); }
  Event issue(const Instruction&) override {
    std::this_thread::sleep_for(std::chrono::hours(1));
    return kNoEvent;
  }
  std::uint64_t placement() const override { return inner_->placement(); }
  bool done(Event event) override { return inner_->done(event); }
  bool wait(Event event, Deadline deadline) override { return inner_->wait(event, deadline); }

 private:
  std::unique_ptr<Executor> inner_ = make_fake_executor({});
};

// Not a test: one process of the worlds below.
TEST(GlooProcess, Serve) {
  const char* variable = std::getenv("PENSTOCK_TEST_ROLE");
  if (!variable) GTEST_SKIP() << "started by other tests";
  const std::string role = variable;
  const ExecutorFactory executor = [&](int device) { return role == "stuck" ? std::make_unique<Stuck>() : fakes()(device); };
  const auto data = std::make_shared<test::HashData>();
  try {
    if (role == "leaves") {
      auto cluster = make_gloo_cluster(*ranks_from_environment(), executor, data, quick());
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      std::_Exit(0);  // without a word to the others
    }
    serve_gloo(*ranks_from_environment(), executor, data, {std::atof(std::getenv("PENSTOCK_TEST_DEADLINE")), 60});
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(1);
  }
  std::_Exit(0);
}

// Seconds that nobody waits for, and what the tests wait for in which that is the end: so long that no device comes late by itself.
constexpr int kPatient = 20, kDeadline = 3;

// This test program, as rank `rank`.
pid_t spawn(const char* role, int rank, int size, int port, int deadline = kPatient) {
  return test::spawn_test("GlooProcess.Serve",
                          {concat("PENSTOCK_TEST_ROLE=", role), concat("RANK=", rank), concat("WORLD_SIZE=", size),
                           concat("MASTER_PORT=", port), "MASTER_ADDR=127.0.0.1", concat("PENSTOCK_TEST_DEADLINE=", deadline)});
}

// 0 receives from 1, 1 from 2; 2 makes what they wait for.
const char* const kChain = R"(penstock program 1
program @chain {microbatches=1}
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
device 1 {state_bytes=0, step_bytes=128, scratch_bytes=0}
  slot %x step @0 (i64[8])
  slot %y step @64 (i64[8])
  recv %x from 2 #0
  run 1F0 @use(%x) -> (store %y)
  send %y to 0 #0
  free %x
  free %y
device 2 {state_bytes=0, step_bytes=64, scratch_bytes=0}
  slot %x step @0 (i64[8])
  run 2F0 @make() -> (store %x)
  send %x to 1 #0
  free %x
)";

// Device 2 is killed while device 1 waits for it and device 0 for device 1.
TEST(GlooProcess, AKilledProcessIsNamedWithTheInstructionThatWaited) {
  const int port = test::reserved_port();
  const pid_t middle = spawn("good", 1, 3, port), last = spawn("stuck", 2, 3, port);
  auto cluster = make_gloo_cluster(ranks(0, 3, port), fakes(), std::make_shared<test::HashData>(), {kPatient, 60});
  const std::uint64_t key = cluster->load(parse_program(kChain));
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    ::kill(last, SIGKILL);
  });
  const auto begin = std::chrono::steady_clock::now();
  const std::string message = message_of([&] { cluster->step(key, {}); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  killer.join();
  EXPECT_EQ(message.substr(0, message.find("\n  the transport")),
            "device 2 was lost while device 1 waited in recv from device 2 (tag 0)\n  needed by: F0 of stage 1\n  program: chain");
  EXPECT_EQ(exit_code(middle), 1);
  EXPECT_EQ(exit_code(last), 128 + SIGKILL);
}

// All three sum what they have made.
std::string sums() {
  const std::string device =
      " {state_bytes=0, step_bytes=64, scratch_bytes=0}\n  slot %x step @0 (i64[8])\n  run @make() -> (store %x)\n"
      "  all_reduce %x -> update %x in 0 #0\n";
  return concat("penstock program 1\nprogram @sums {microbatches=1}\noutput %y: i64[8]\ngroup 0 (0, 1, 2)\ntask @make {scratch=0}\n",
                "graph @make() -> (i64[8]) {\n  %0: i64[8] = fake::mix()\n  return %0\n}\n",  //
                "device 0", device, "  output %y = %x\n  free %x\n",                          //
                "device 1", device, "  free %x\n",                                            //
                "device 2", device, "  free %x\n");
}

// Devices 0 and 1 only know that one of the others is missing; whose process has ended is known to the controller.
TEST(GlooProcess, AKilledMemberOfAGroupIsNamedWithTheCollective) {
  const int port = test::reserved_port();
  const pid_t other = spawn("good", 1, 3, port), last = spawn("stuck", 2, 3, port);
  auto cluster = make_gloo_cluster(ranks(0, 3, port), fakes(), std::make_shared<test::HashData>(), {kPatient, 60});
  const std::uint64_t key = cluster->load(parse_program(sums()));
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    ::kill(last, SIGKILL);
  });
  const std::string message = message_of([&] { cluster->step(key, {}); });
  killer.join();
  EXPECT_EQ(message.substr(0, message.find("\n  the transport")),
            "device 1 or 2 was lost while device 0 waited in all_reduce %x of group 0 (tag 0)\n  needed by: output y\n  program: sums");
  EXPECT_NE(message.find("\n  device 2 was lost: its process has ended"), std::string::npos) << message;
  cluster.reset();
  EXPECT_EQ(exit_code(other), 1);
  exit_code(last);
}

TEST(GlooProcess, AStuckMemberOfAGroupIsNamedAtTheDeadline) {
  const int port = test::reserved_port();
  const pid_t other = spawn("good", 1, 3, port, kDeadline), last = spawn("stuck", 2, 3, port, kDeadline);
  auto cluster = make_gloo_cluster(ranks(0, 3, port), fakes(), std::make_shared<test::HashData>(), {kDeadline, 60});
  const std::uint64_t key = cluster->load(parse_program(sums()));
  const std::string message = message_of([&] { cluster->step(key, {}); });
  EXPECT_EQ(message.substr(0, message.find("\n  hint")),
            "device 0 waited longer than the deadline of 3 s in all_reduce %x of group 0 (tag 0)\n  needed by: output y\n  program: sums");
  EXPECT_NE(message.find("\n  device 2 was lost: it did not answer"), std::string::npos) << message;
  cluster.reset();
  EXPECT_EQ(exit_code(other), 1);
  ::kill(last, SIGKILL);
  exit_code(last);
}

TEST(GlooProcess, WithoutRank0TheOthersEnd) {
  const int port = test::reserved_port();
  const pid_t other = spawn("good", 1, 2, port), first = spawn("leaves", 0, 2, port);
  EXPECT_EQ(exit_code(first), 0);
  EXPECT_EQ(exit_code(other), 1);
}

// A process that hangs but lives: the deadline ends the step.
TEST(GlooProcess, AStuckProcessIsNamedAtTheDeadline) {
  const int port = test::reserved_port();
  const pid_t middle = spawn("good", 1, 3, port, kDeadline), last = spawn("stuck", 2, 3, port, kDeadline);
  auto cluster = make_gloo_cluster(ranks(0, 3, port), fakes(), std::make_shared<test::HashData>(), {kDeadline, 60});
  const std::uint64_t key = cluster->load(parse_program(kChain));
  EXPECT_EQ(message_of([&] { cluster->step(key, {}); }),
            "device 1 waited longer than the deadline of 3 s in recv from device 2 (tag 0)\n"
            "  needed by: F0 of stage 1\n  program: chain\n"
            "  hint: see what device 2 was doing; raise the deadline if a step may take that long");
  cluster.reset();
  EXPECT_EQ(exit_code(middle), 1);
  ::kill(last, SIGKILL);
  exit_code(last);
}

}  // namespace
}  // namespace penstock
