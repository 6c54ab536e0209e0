// SPDX-License-Identifier: Apache-2.0
// Snapshots of real steps, on the host and on a device, between threads and over Gloo.
#include <gtest/gtest.h>

#include <map>
#include <thread>
#include <vector>

#include "driver/check.h"
#include "program/state_parts.h"
#include "support/drawn_programs.h"
#include "support/errors.h"
#include "support/reserved_port.h"
#include "support/rounds.h"
#include "support/snapshots.h"
#include "torch/executor.h"
#include "torch/gloo_cluster.h"
#include "torch/test_cluster.h"

namespace penstock {
namespace {

// The data are of the drawn programs' models.
std::shared_ptr<const DataSource> random_tokens() {
  return std::make_shared<RandomBatch>(text_ports(4), 16);
}

// Small numbers in all tensors of floats; the rest is zero.
StateSource random_state(test::Random& random, const Program& program) {
  StateSource out{.kind = StateSource::Kind::values};
  for (const auto& [tensor, parts] : checks::state_parts(program, SlotClass::state)) {
    const DType dtype = parts.front().type->dtype;
    std::vector<std::byte>& bytes = out.values[tensor];
    bytes.resize(static_cast<std::size_t>(checks::whole_elements(parts) * byte_size(dtype)));
    if (dtype != DType::f32) continue;
    for (float& number : std::span(reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)))
      number = 0.01F * static_cast<float>(test::draw(random, 1, 20));
  }
  return out;
}

template <class Check>
void for_drawn_programs(int count, const Check& check) {
  for (std::uint64_t seed = 0; count > 0 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    test::Random random(seed);
    const std::optional<Program> program = seed % 2 == 0 ? test::of_groups(random) : test::of_mesh(random);
    if (!program) continue;
    check(*program, random_state(random, *program));
    --count;
  }
}

TEST(KeptSnapshots, OfThreads) {
  for_drawn_programs(test::rounds(16), [](const Program& program, const StateSource& state) {
    test::expect_snapshots(
        program, torch_executor_factory(1, test::test_device()),
        [&](const ExecutorFactory& executor) { return test::make_test_cluster(program.devices.size(), executor, random_tokens()); }, state);
  });
}

// The ranks are threads of this process.
TEST(KeptSnapshots, OverGloo) {
  const bool on_host = test::test_device().is_cpu();
  const GlooOptions options{.deadline = 20, .rendezvous = 20, .device = on_host ? "cpu" : "standin"};
  for_drawn_programs(test::rounds(4), [&](const Program& program, const StateSource& state) {
    std::vector<std::thread> others;
    std::vector<std::string> said(program.devices.size(), "no error");
    const auto size = static_cast<int>(program.devices.size());
    const auto connect = [&](const ExecutorFactory& executor) {
      const int port = test::reserved_port();
      const auto ranks = [=](int rank) {
        Ranks out;
        out.rank = rank;
        out.size = size;
        out.port = port;
        return out;
      };
      for (int rank = 1; rank < size; ++rank)
        others.emplace_back([=, &said] {
          said[static_cast<std::size_t>(rank)] = test::message_of([&] { serve_gloo(ranks(rank), executor, random_tokens(), options); });
        });
      return make_gloo_cluster(ranks(0), executor, random_tokens(), options);
    };
    test::expect_snapshots(program, torch_executor_factory(1, test::test_device(), !on_host), connect, state);
    for (std::thread& other : others) other.join();
    EXPECT_EQ(said, std::vector<std::string>(said.size(), "no error"));
  });
}

}  // namespace
}  // namespace penstock
