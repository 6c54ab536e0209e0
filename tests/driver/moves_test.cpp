// SPDX-License-Identifier: Apache-2.0
// State goes to the program that reads next, wherever and in whatever pieces that has it.
#include <gtest/gtest.h>

#include <atomic>

#include "base/text.h"
#include "devices/forwarding_executor.h"
#include "devices/forwarding_transport.h"
#include "driver/thread_cluster.h"
#include "support/errors.h"
#include "support/fake_device.h"
#include "support/random_program.h"
#include "support/temporary.h"

namespace penstock {
namespace {

using test::message_of;
using Bytes = std::vector<std::byte>;

// Device 0 updates "v".
const char* const kUpdates = R"(penstock program 1
program @updates {microbatches=1}
task @use {scratch=0}
graph @use(%x: i64[8]) -> (i64[8]) {
  %0: i64[8] = fake::mix(%x)
  return %0
}
device 0 {state_bytes=64, step_bytes=0, scratch_bytes=0}
  slot %v state @0 (i64[8] "v")
  run @use(%v) -> (update %v)
device 1 {state_bytes=0, step_bytes=0, scratch_bytes=0}
)";
// Device 1 gives all of it.
const char* const kGives = R"(penstock program 1
program @gives {microbatches=1}
output %y: i64[8]
device 0 {state_bytes=0, step_bytes=0, scratch_bytes=0}
device 1 {state_bytes=64, step_bytes=0, scratch_bytes=0}
  slot %v state @0 (i64[8] "v")
  output %y = %v
)";
// Both have a half of it.
const char* const kHalves = R"(penstock program 1
program @halves {microbatches=1}
device 0 {state_bytes=64, step_bytes=0, scratch_bytes=0}
  slot %v state @0 (i64[4] "v[0:4]")
device 1 {state_bytes=64, step_bytes=0, scratch_bytes=0}
  slot %v state @0 (i64[4] "v[4:8]")
)";

std::unique_ptr<Cluster> two_devices(
    const ExecutorFactory& executors = [](int) { return make_fake_executor({}); }, const ClusterOptions& options = {}) {
  return make_thread_cluster(2, executors, std::make_shared<test::HashData>(), options);
}

TEST(Moves, AProgramThatIsLoadedAgainHasThePresentState) {
  const auto cluster = two_devices();
  const std::uint64_t updates = cluster->load(parse_program(kUpdates));
  std::uint64_t gives = cluster->load(parse_program(kGives));
  cluster->set_state({});
  Bytes before;
  for (int i = 0; i < 3; ++i) {
    cluster->step(updates, {});
    const Bytes present = cluster->state("v");
    EXPECT_NE(present, before);
    EXPECT_EQ(cluster->step(gives, {}).outputs.at("y"), present);
    cluster->unload(gives);
    cluster->step(updates, {});
    const test::TemporaryFolder folder;
    cluster->save_state(folder.path().string());
    gives = cluster->load(parse_program(kGives));
    EXPECT_NE(cluster->step(gives, {}).outputs.at("y"), present);
    EXPECT_EQ(cluster->step(gives, {}).outputs.at("y"), before = cluster->state("v"));
  }
}

// The program that has the present value is unloaded before anything was moved.
TEST(Moves, StateIsReadInTheFormOfTheProgramThatIsLeft) {
  const auto cluster = two_devices();
  const std::uint64_t updates = cluster->load(parse_program(kUpdates));
  cluster->set_state({});
  cluster->step(updates, {});
  const Bytes present = cluster->state("v");
  cluster->load(parse_program(kHalves));
  cluster->unload(updates);
  EXPECT_EQ(cluster->state("v"), present);
  EXPECT_EQ(cluster->state("v[4:8]"), Bytes(present.begin() + 32, present.end()));
}

// Notes what is forgotten.
class Forgetful : public ForwardingExecutor {
 public:
  explicit Forgetful(std::vector<std::string>& forgotten) : ForwardingExecutor(make_fake_executor({})), forgotten_(forgotten) {}
  void forget(const std::vector<std::string>& names) override {
    forgotten_.insert(forgotten_.end(), names.begin(), names.end());
    ForwardingExecutor::forget(names);
  }

 private:
  std::vector<std::string>& forgotten_;
};

TEST(Moves, WhatNoLoadedProgramHasIsForgotten) {
  std::vector<std::string> forgotten[2];
  const auto cluster = two_devices([&](int device) { return std::make_unique<Forgetful>(forgotten[device]); });
  const std::uint64_t updates = cluster->load(parse_program(kUpdates)), gives = cluster->load(parse_program(kGives));
  cluster->set_state({});
  cluster->step(updates, {});
  cluster->step(gives, {});
  EXPECT_EQ(forgotten[0].size() + forgotten[1].size(), 0u);
  cluster->unload(gives);
  const std::uint64_t halves = cluster->load(parse_program(kHalves));
  cluster->step(halves, {});
  EXPECT_EQ(forgotten[0].size(), 0u);  // "v" of the program that updates it
  EXPECT_EQ(forgotten[1], std::vector<std::string>{"v"});
  cluster->unload(updates);
  EXPECT_EQ(cluster->step(cluster->load(parse_program(kGives)), {}).outputs.at("y"), cluster->state("v"));
  EXPECT_EQ(forgotten[0], std::vector<std::string>{"v"});
}

// Fails in its first send.
class FailsOnce : public test::ForwardingTransport {
 public:
  FailsOnce(std::unique_ptr<Transport> inner, std::atomic<bool>& failed) : ForwardingTransport(std::move(inner)), failed_(failed) {}
  Event send(int peer, int tag, std::span<const std::byte> bytes) override {
    if (!failed_.exchange(true)) throw Error("the wire is hot");
    return ForwardingTransport::send(peer, tag, bytes);
  }

 private:
  std::atomic<bool>& failed_;
};

TEST(Moves, AMoveThatFailedIsMadeAgain) {
  std::atomic<bool> failed = false;
  ClusterOptions options;
  options.wrap = [&](int, std::unique_ptr<Transport> inner) { return std::make_unique<FailsOnce>(std::move(inner), failed); };
  const auto cluster = two_devices([](int) { return make_fake_executor({}); }, options);
  const std::uint64_t updates = cluster->load(parse_program(kUpdates)), gives = cluster->load(parse_program(kGives));
  cluster->set_state({});
  cluster->step(updates, {});
  EXPECT_EQ(message_of([&] { cluster->step(gives, {}); }), "the wire is hot");
  const Bytes present = cluster->state("v");
  EXPECT_EQ(cluster->step(gives, {}).outputs.at("y"), present);
}

}  // namespace
}  // namespace penstock
