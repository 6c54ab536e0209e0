// SPDX-License-Identifier: Apache-2.0
#include "driver/pending_checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "base/text.h"
#include "driver/thread_cluster.h"
#include "formats/safetensors.h"
#include "lower/snapshot.h"
#include "support/errors.h"
#include "support/fake_device.h"
#include "support/file_tensors.h"
#include "support/random_program.h"
#include "support/temporary.h"

namespace penstock {
namespace {

// Device 0 owns "w" and keeps "v" for device 1, and the other way round; there is a snapshot of ones, and the state is twos.
class PendingCheckpoints : public testing::Test {
 protected:
  void SetUp() override {
    const Program program = parse_program(R"(penstock program 1
program @p {microbatches=1}
device 0 {state_bytes=64, step_bytes=0, scratch_bytes=0}
  slot %w state @0 (f32[3] "w")
device 1 {state_bytes=64, step_bytes=0, scratch_bytes=0}
  slot %v state @0 (f32[2] "v[0:2]")
)");
    const std::uint64_t key = cluster_->load(with_snapshot(program, 1, buddies_of(2, 1)));
    set(1);
    cluster_->step(key, {});
    set(2);
  }

  static std::vector<std::byte> numbers(std::size_t count, float value) {
    const std::vector<float> all(count, value);
    const auto bytes = std::as_bytes(std::span(all));
    return {bytes.begin(), bytes.end()};
  }
  void set(float value) {
    StateSource source{.kind = StateSource::Kind::values};
    source.values = {{"w", numbers(3, value)}, {"v", numbers(2, value)}};
    cluster_->set_state(source);
  }

  PendingCheckpoint begin() {
    return {*cluster_, 1, [this](const SaveState& save) { return write_checkpoint(out_.path().string(), {.step = 5}, 1, save); }};
  }
  static std::string end(PendingCheckpoint& pending) {
    for (;;) {
      if (const auto folder = pending.poll()) return *folder;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  std::size_t left() const { return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(out_.path()), {})); }

  test::TemporaryFolder out_;
  std::unique_ptr<Cluster> cluster_ =
      make_thread_cluster(2, [](int) { return make_fake_executor({}); }, std::make_shared<test::HashData>());
};

TEST_F(PendingCheckpoints, HaveTheSnapshotAndNotThePresentState) {
  PendingCheckpoint pending = begin();
  EXPECT_TRUE(pending.reads(1));
  EXPECT_FALSE(pending.reads(0));
  const Checkpoint checkpoint = read_checkpoint(end(pending));
  EXPECT_FALSE(pending.reads(1));
  EXPECT_FALSE(pending.give_up());
  EXPECT_EQ(checkpoint.files, (std::map<std::string, std::string>{{"v[0:2]", "device-1.safetensors"}, {"w", "device-0.safetensors"}}));
  const auto file = SafetensorsFile::open(concat(checkpoint.folder, "/device-1.safetensors"));
  EXPECT_TRUE(std::ranges::equal(test::bytes_of(file.tensors().at("v[0:2]")), numbers(2, 1)));
}

TEST_F(PendingCheckpoints, AFailureOfADeviceIsSaidAndTheNextOneIsWritten) {
  PendingCheckpoint nowhere(*cluster_, 1, [this](const SaveState& save) {
    save(out_.file("nowhere"));
    return std::string();
  });
  EXPECT_TRUE(test::message_of([&] { end(nowhere); }).starts_with(concat("cannot write ", out_.file("nowhere/device-")))) << "as it says";
  EXPECT_FALSE(nowhere.reads(1));
  PendingCheckpoint pending = begin();
  EXPECT_EQ(end(pending), out_.file("checkpoint-5"));
}

TEST_F(PendingCheckpoints, WhatIsGivenUpLeavesNothing) {
  PendingCheckpoint pending = begin();
  EXPECT_TRUE(pending.give_up());
  EXPECT_EQ(test::message_of([&] { end(pending); }), "the devices have changed");
  EXPECT_EQ(left(), 0U);
  begin();
  EXPECT_EQ(left(), 0U);
}

TEST_F(PendingCheckpoints, ADeviceThatOwnsNothingOfASnapshotHasNoFile) {
  PendingCheckpoint pending = begin();
  end(pending);
  EXPECT_TRUE(cluster_->persist(0, out_.path().string()).empty());
  EXPECT_TRUE(cluster_->persisted().empty());
}

}  // namespace
}  // namespace penstock
