// SPDX-License-Identifier: Apache-2.0
// A snapshot is what the state was when the step began, on two devices, and the step is the same.
#include "lower/snapshot.h"

#include <gtest/gtest.h>

#include <chrono>

#include "driver/thread_cluster.h"
#include "support/drawn_programs.h"
#include "support/fake_device.h"
#include "support/random_program.h"
#include "support/rounds.h"
#include "support/snapshots.h"
#include "support/thread_lanes.h"

namespace penstock {
namespace {

using std::chrono::microseconds;

TEST(Snapshots, ABuddyIsOnAnotherHost) {
  using Buddies = std::vector<std::int32_t>;
  EXPECT_EQ(buddies_of(1, 1), (Buddies{-1}));
  EXPECT_EQ(buddies_of(3, 1), (Buddies{1, 2, 0}));
  EXPECT_EQ(buddies_of(3, 8), (Buddies{1, 2, 0}));
  EXPECT_EQ(buddies_of(4, 2), (Buddies{2, 3, 0, 1}));
  EXPECT_EQ(buddies_of(6, 2), (Buddies{2, 3, 4, 5, 0, 1}));
  EXPECT_EQ(buddies_of(5, 4), (Buddies{4, 4, 4, 4, 3}));
}

// Hosts that wait, for work that takes random times.
void expect_on_fakes(const Program& program, microseconds longest) {
  ClusterOptions options;
  options.wrap = [=](int device, std::unique_ptr<Transport> inner) {
    return make_fake_transport(std::move(inner), {static_cast<std::uint64_t>(device) + 100, longest});
  };
  if (longest.count() == 0) options.wrap = {};
  test::expect_snapshots(
      program, [=](int device) { return make_fake_executor({static_cast<std::uint64_t>(device), longest}); },
      [&](const ExecutorFactory& executor) {
        return make_thread_cluster(static_cast<int>(program.devices.size()), executor, std::make_shared<test::HashData>(), options);
      });
}

// Devices that wait.
void expect_on_lanes(const Program& program, std::uint64_t seed) {
  std::vector<std::shared_ptr<DeviceLanes>> lanes(program.devices.size());
  ClusterOptions options;
  options.wrap = [&](int device, std::unique_ptr<Transport> inner) {
    return make_lane_transport(std::move(inner), lanes[static_cast<std::size_t>(device)]);
  };
  const auto executor = [&](int device) {
    auto& own = lanes[static_cast<std::size_t>(device)] = make_thread_lanes(seed + static_cast<std::uint64_t>(device), microseconds(20));
    return make_lane_executor(make_fake_executor({}), own);
  };
  test::expect_snapshots(program, executor, [&](const ExecutorFactory& given) {
    return make_thread_cluster(static_cast<int>(program.devices.size()), given, std::make_shared<test::HashData>(), options);
  });
}

TEST(Snapshots, OfRandomPrograms) {
  for (std::uint64_t seed = 0; seed < test::rounds(20u) && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Program program = test::random_program(seed, 1 + static_cast<int>(seed % 5), 40);
    expect_on_fakes(program, microseconds(seed % 2 * 20));
    expect_on_lanes(program, seed);
  }
}

// Of tables, groups that hold state in shares, windows and axes.
TEST(Snapshots, OfWhatLoweringMakes) {
  int tried = 0;
  for (std::uint64_t seed = 0; tried < test::rounds(40) && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    test::Random random(seed);
    const std::optional<Program> program = seed % 4 == 0   ? test::of_random_table(random)
                                           : seed % 4 == 1 ? test::of_groups(random)
                                           : seed % 4 == 2 ? test::of_classes(random)
                                                           : test::of_mesh(random);
    if (!program) continue;
    ++tried;
    expect_on_fakes(*program, microseconds(0));
    if (tried % 4 == 0) expect_on_lanes(*program, seed);
  }
}

}  // namespace
}  // namespace penstock
