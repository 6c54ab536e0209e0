// SPDX-License-Identifier: Apache-2.0
// Measures a step's overhead: a device's dispatch, the messages of a step, and a transfer between threads that spin or sleep.
#include <benchmark/benchmark.h>

#include <chrono>
#include <memory>
#include <string>

#include "base/text.h"
#include "devices/commit.h"
#include "devices/device_runner.h"
#include "devices/forwarding_executor.h"
#include "driver/thread_cluster.h"
#include "program/memory_plan.h"
#include "support/fake_device.h"

namespace penstock {
namespace {

// An executor that takes `time` for each run and computes nothing.
class Idle : public ForwardingExecutor {
 public:
  explicit Idle(std::chrono::microseconds time) : ForwardingExecutor(make_fake_executor({})), time_(time) {}
  Event issue(const Instruction&) override {
    if (time_.count() > 0)
      for (const auto end = std::chrono::steady_clock::now() + time_; std::chrono::steady_clock::now() < end;) {
      }
    return kNoEvent;
  }

 private:
  std::chrono::microseconds time_;
};

// A transport on which everything is complete at once.
class NoWire : public Transport {
 public:
  void begin_step(const Program&, int) override {}
  Event send(int, int, std::span<const std::byte>) override { return kNoEvent; }
  Event receive(int, int, std::span<std::byte>) override { return kNoEvent; }
  Event collective(const CollectiveCall&) override { return kNoEvent; }
  bool done(Event) override { return true; }
  bool wait(Event, Deadline) override { return true; }
};

class NoData : public DataSource {
  void fill(const Port&, const StepInput&, std::int64_t, std::int64_t, std::span<std::byte>) const override {}
};

// Device 0 makes a tensor of `words` words, sends it to device 1, gets another one back, and so on.
Program ping_pong(int rounds, int words) {
  const std::string type = concat("i64[", words, "]");
  std::string first, second, slots0, slots1;
  for (int i = 0; i < rounds; ++i) {
    slots0 += concat("slot %x", i, " step (", type, ")\nslot %y", i, " step (", type, ")\n");
    slots1 += concat("slot %x", i, " step (", type, ")\nslot %y", i, " step (", type, ")\n");
    first +=
        i == 0 ? std::string("run @make() -> (store %x0)\n") : concat("run @use(%y", i - 1, ") -> (store %x", i, ")\nfree %y", i - 1, "\n");
    first += concat("send %x", i, " to 1 #", i, "\nrecv %y", i, " from 1 #", i, "\nfree %x", i, "\n");
    second += concat("recv %x", i, " from 0 #", i, "\nrun @use(%x", i, ") -> (store %y", i, ")\nfree %x", i, "\nsend %y", i, " to 0 #", i,
                     "\nfree %y", i, "\n");
  }
  first += concat("free %y", rounds - 1, "\n");
  const std::string arenas = " {state_bytes=0, step_bytes=0, scratch_bytes=0}\n";
  Program program = parse_program(concat(
      "penstock program 1\nprogram @ping_pong {microbatches=1}\ntask @make {scratch=0}\ngraph @make() -> (", type, ") {\n  %0: ", type,
      " = bench::make()\n  return %0\n}\ntask @use {scratch=0}\ngraph @use(%x: ", type, ") -> (", type, ") {\n  %0: ", type,
      " = bench::use(%x)\n  return %0\n}\ndevice 0", arenas, slots0, first, "device 1", arenas, slots1, second));
  plan_memory(program);
  return program;
}

void ActorDispatch(benchmark::State& state) {
  const auto program = std::make_shared<const Program>(ping_pong(1000, 8));
  Idle executor(std::chrono::microseconds(0));
  executor.load(program, 0);
  NoWire wire;
  NoData data;
  Commit commit;
  DeviceRunner runner(program, 0, executor, wire, data, commit, std::chrono::seconds(60));
  for (auto _ : state) {
    commit.reset();
    runner.step({}, state.range(0) != 0);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(program->devices[0].instructions.size()));
}
BENCHMARK(ActorDispatch)->Arg(0)->Arg(1)->ArgName("spans");

std::unique_ptr<Cluster> cluster_of(std::chrono::microseconds run, double spin) {
  ClusterOptions options;
  options.spin = spin;
  return make_thread_cluster(2, [run](int) { return std::make_unique<Idle>(run); }, std::make_shared<NoData>(), options);
}

// A step of a command, a reply, and nothing to do.
void EmptyStep(benchmark::State& state) {
  auto cluster = cluster_of(std::chrono::microseconds(0), -1);
  const std::uint64_t program = cluster->load(
      parse_program("penstock program 1\nprogram @empty {microbatches=1}\ndevice 0 {state_bytes=0, step_bytes=0, scratch_bytes=0}\n"
                    "device 1 {state_bytes=0, step_bytes=0, scratch_bytes=0}\n"));
  for (auto _ : state) cluster->step(program, {});
}
BENCHMARK(EmptyStep)->UseRealTime()->Unit(benchmark::kMicrosecond);

// One transfer of 256 KiB after another, each after a run of so many microseconds on the other device. Items are transfers.
void PingPong(benchmark::State& state) {
  constexpr int kRounds = 20;
  auto cluster = cluster_of(std::chrono::microseconds(state.range(0)), static_cast<double>(state.range(1)) * 1e-6);
  const std::uint64_t program = cluster->load(ping_pong(kRounds, 1 << 15));
  for (auto _ : state) cluster->step(program, {});
  state.SetItemsProcessed(state.iterations() * 2 * kRounds);
}
BENCHMARK(PingPong)
    ->ArgsProduct({{0, 100, 1000}, {0, 20, 50, 200, 2000}})
    ->ArgNames({"run_us", "spin_us"})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace penstock
