// SPDX-License-Identifier: Apache-2.0
// Sessions whose devices are ranks, here threads of this process that meet over Gloo.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <thread>
#include <vector>

#include "base/text.h"
#include "formats/safetensors.h"
#include "penstock/compile.h"
#include "penstock/plan_step.h"
#include "penstock/session.h"
#include "support/errors.h"
#include "support/paths.h"
#include "support/reserved_port.h"
#include "support/temporary.h"

namespace penstock {
namespace {

using test::message_of;

HostTensor drawn(const Shape& shape, float phase = 0.3f) {
  std::vector<float> numbers(static_cast<std::size_t>(TensorType{DType::f32, shape}.elements()));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = 0.3f * std::sin(1.7f * static_cast<float>(i) + phase);
  return host_tensor<float>(shape, numbers);
}

const HostTensors kState = {{"first", drawn({16, 8})}, {"second", drawn({4, 16})}}, kData = {{"x", drawn({16, 8})}, {"y", drawn({16, 4})}};

// The two layers of examples/graphs on two devices that share every micro-batch, and hold the state in shares.
Program program() {
  const std::string file = test::tests_folder() + "/../examples/graphs/two-layers.step";
  return compile(parse_graph(read_file(file), file), make_schedule("sequential", {.actors = 1, .microbatches = 2}),
                 {.devices = {2}, .zero = 3});
}

// Runs the same on both ranks; gives what each throws.
std::vector<std::string> on_two_ranks(const std::function<void(Session&, int rank)>& run, double deadline = 10) {
  std::vector<std::string> said(2);
  std::vector<std::thread> threads;
  const int port = test::reserved_port();
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      said[static_cast<std::size_t>(rank)] = message_of([&] {
        Ranks ranks;
        ranks.rank = rank;
        ranks.size = 2;
        ranks.port = port;
        Session session(2, {.deadline = deadline, .ranks = ranks});
        run(session, rank);
      });
    });
  for (std::thread& thread : threads) thread.join();
  return said;
}

void begin(Session& session) {
  session.together("begin", {}, [&] {
    session.load("train", program());
    session.set_state(kState);
    return Shared{};
  });
}

Shared step(Session& session, const HostTensors& data = kData) {
  return session.together("step", data, [&] { return Shared{session.step("train", data).outputs, "done"}; });
}

const std::vector<std::string> kNoErrors(2, "no error");

TEST(SessionOverRanks, EveryRankHasTheResults) {
  Session alone(2);
  alone.load("train", program());
  alone.set_state(kState);
  std::vector<HostTensors> expected;
  for (int i = 0; i < 3; ++i) expected.push_back(step(alone).tensors);
  const HostTensor first = alone.state("first");
  const std::size_t pieces = alone.pieces().size();
  const auto said = on_two_ranks([&](Session& session, int rank) {
    EXPECT_TRUE(session.over_ranks());
    begin(session);
    for (const HostTensors& outputs : expected) {
      const Shared found = step(session);
      EXPECT_EQ(found.text, "done");
      ASSERT_EQ(found.tensors.size(), outputs.size());
      for (const auto& [name, tensor] : outputs) EXPECT_EQ(found.tensors.at(name).bytes, tensor.bytes) << rank << " " << name;
    }
    const Shared state = session.together("state", {}, [&] { return Shared{{{"first", session.state("first")}}, {}}; });
    EXPECT_EQ(state.tensors.at("first").bytes, first.bytes);
    ASSERT_EQ(session.programs().size(), 1u);
    EXPECT_EQ(print(*session.programs()[0]), print(program()));
    EXPECT_EQ(session.pieces().size(), pieces);
  });
  EXPECT_EQ(said, kNoErrors);
}

// The state goes over Gloo to a program of two stages and back; the step in between is the same as one on threads.
TEST(SessionOverRanks, StateMovesToAnotherProgram) {
  const std::string file = test::tests_folder() + "/../examples/graphs/two-layers.step";
  const Program staged =
      compile(plan_step(parse_graph(read_file(file), file), uniform_cluster(2, 1e10), planner_named("best"), "v100", {}).step,
              make_schedule("1f1b", {.actors = 2, .microbatches = 4}));
  const auto switched = [&](Session& session) {
    begin(session);
    step(session);
    return session.together("switch", kData, [&] {
      session.load("staged", staged);
      session.unload("train");
      session.step("staged", kData);
      session.load("train", program());
      session.step("train", kData);
      return Shared{{{"first", session.state("first")}, {"second", session.state("second")}}, {}};
    });
  };
  Session alone(2);
  const Shared expected = switched(alone);
  const auto said = on_two_ranks([&](Session& session, int) {
    const Shared state = switched(session);
    for (const auto& [name, tensor] : expected.tensors) EXPECT_EQ(state.tensors.at(name).bytes, tensor.bytes) << name;
  });
  EXPECT_EQ(said, kNoErrors);
}

// Each rank's device reads its own rank's data: no other way leads there.
TEST(SessionOverRanks, DataAreReadWhereTheyAreGiven) {
  const auto said = on_two_ranks([](Session& session, int rank) {
    begin(session);
    EXPECT_EQ(
        message_of([&] { step(session, rank == 0 ? kData : HostTensors{{"x", drawn({16, 8}, 1)}, {"y", kData.at("y")}}); }).substr(0, 61),
        "rank 1 is given other data than rank 0: step\n  rank 0: x is f");
    step(session);  // nothing was begun, so the session goes on
  });
  EXPECT_EQ(said, kNoErrors);
}

// A sample of a large tensor is compared, which has its ends.
TEST(SessionOverRanks, ALargeTensorIsComparedByASample) {
  const auto said = on_two_ranks([](Session& session, int rank) {
    std::vector<float> numbers(1'000'003);
    const auto call = [&] { session.together("call", {{"x", host_tensor<float>({1'000'003}, numbers)}}, [] { return Shared{}; }); };
    call();
    for (float* end : {&numbers.front(), &numbers.back()}) {
      *end = static_cast<float>(rank);
      EXPECT_NE(message_of(call), "no error");
      *end = 0;
    }
    for (float& number : numbers) number = static_cast<float>(rank);
    EXPECT_NE(message_of(call), "no error");
  });
  EXPECT_EQ(said, kNoErrors);
}

TEST(SessionOverRanks, AnErrorReachesEveryRank) {
  const auto said = on_two_ranks([](Session& session, int rank) {
    begin(session);
    EXPECT_EQ(message_of([&] { session.together("call", {}, []() -> Shared { throw Error("it is late", {"very"}, "be quick"); }); }),
              "it is late\n  very\n  hint: be quick");
    EXPECT_EQ(
        message_of([&] { session.together(rank == 0 ? "one" : "other", {}, [] { return Shared{}; }); }),
        "rank 1 makes another call than rank 0\n  rank 0: one\n  rank 1: other\n  hint: all ranks make the same calls in the same order");
    EXPECT_EQ(message_of([&] { session.state("first"); }),
              rank == 0 ? "the other ranks do not take part in this call\n  hint: make it inside of Session::together"
                        : "this rank's session only does what rank 0 does\n  hint: make the call inside of Session::together");
    step(session);
  });
  EXPECT_EQ(said, kNoErrors);
}

TEST(SessionOverRanks, ARankThatEndsIsNamed) {
  const auto said = on_two_ranks([](Session& session, int rank) {
    begin(session);
    if (rank == 0) step(session);
  });
  EXPECT_EQ(said, (std::vector<std::string>{"rank 1 has ended\n  hint: see what that process says", "no error"}));
}

TEST(SessionOverRanks, Rank0ThatEndsIsNamed) {
  const auto said = on_two_ranks([](Session& session, int rank) {
    begin(session);
    if (rank == 1) step(session);
  });
  EXPECT_EQ(said, (std::vector<std::string>{"no error", "rank 0 has ended, rank 1 was at step\n  hint: all ranks make the same calls"}));
}

// Rank 0 is silent until rank 1 has lost patience.
TEST(SessionOverRanks, ASilentRankIsNamedAtTheDeadline) {
  std::atomic<bool> named = false;
  const auto said = on_two_ranks(
      [&](Session& session, int rank) {
        try {
          begin(session);
          while (rank == 0 && !named) std::this_thread::sleep_for(std::chrono::milliseconds(10));
          step(session);
        } catch (...) {
          named = true;
          throw;
        }
      },
      3);
  EXPECT_EQ(said[1],
            "rank 0 was silent for 3 s, rank 1 was at step\n"
            "  hint: see what that process is doing; raise the deadline if it may take that long");
  EXPECT_EQ(said[0].substr(0, 16), "rank 1 did not h");
}

TEST(SessionOverRanks, StateIsReadFromFiles) {
  const test::TemporaryFolder folder;
  const HostTensor first = drawn({16, 8}, 2);
  write_safetensors(folder.file("a.safetensors"), {{"of the first", first.type}},
                    [&](std::size_t) -> std::span<const std::byte> { return first.bytes; });
  const auto said = on_two_ranks([&](Session& session, int) {
    begin(session);
    const auto read = [&](const char* name, const char* stored) {
      session.together("read", {}, [&] {
        session.read_state({{name, {folder.file("a.safetensors"), stored}}});
        return Shared{};
      });
    };
    read("first", "of the first");
    const Shared state =
        session.together("state", {}, [&] { return Shared{{{"first", session.state("first")}, {"second", session.state("second")}}, {}}; });
    EXPECT_EQ(state.tensors.at("first").bytes, first.bytes);
    EXPECT_EQ(state.tensors.at("second").bytes, kState.at("second").bytes);
    EXPECT_EQ(message_of([&] { read("third", "of the first"); }), "no loaded program has the state \"third\"");
    EXPECT_EQ(message_of([&] { read("second", "of the first"); }),
              concat(folder.file("a.safetensors"), ": \"of the first\" is f32[16,8], the state \"second\" is f32[64]"));
    EXPECT_EQ(message_of([&] { read("first", "of the frist"); }),
              concat(folder.file("a.safetensors"), ": there is no tensor \"of the frist\"\n  hint: it has of the first"));
  });
  EXPECT_EQ(said, kNoErrors);
}

TEST(SessionOverRanks, ABackendThatThereIsNot) {
  EXPECT_EQ(message_of([] { Session(1, {.backend = "mpi"}); }), "there is no backend \"mpi\" over ranks\n  hint: gloo or nccl");
}

TEST(SessionOverRanks, AsManyRanksAsDevices) {
  Ranks ranks;
  ranks.size = 2;
  EXPECT_EQ(message_of([&] { Session(3, {.ranks = ranks}); }), "2 processes were started for 3 devices\n  hint: start one for each device");
}

TEST(SessionOverRanks, AClosedSessionSaysSo) {
  Session session(1);
  session.close();
  EXPECT_EQ(message_of([&] { session.state("first"); }), "the session is closed");
}

}  // namespace
}  // namespace penstock
