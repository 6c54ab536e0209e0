// SPDX-License-Identifier: Apache-2.0
#include "driver/run_lock.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "base/text.h"
#include "support/errors.h"
#include "support/temporary.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using test::message_of;

TEST(RunLock, TheSecondIsToldWhoHasIt) {
  const test::TemporaryFolder folder;
  const std::string run = folder.file("run");
  auto first = std::make_unique<RunLock>(run);
  const std::string message = message_of([&] { RunLock second(run); });
  EXPECT_EQ(message.find(concat(run, " is in use: process ", ::getpid(), " on ")), 0u) << message;
  EXPECT_NE(message.find(" trains there\n  hint: --out names another folder"), message.npos) << message;
  first.reset();
  EXPECT_EQ(message_of([&] { RunLock third(run); }), "no error");
}

TEST(RunLock, LeavesWhatWasWrittenAndNothingElse) {
  const test::TemporaryFolder folder;
  {
    RunLock lock(folder.file("empty"));
  }
  EXPECT_FALSE(fs::exists(folder.file("empty")));
  {
    RunLock lock(folder.file("runs/mine"));  // in a folder that there is not either
  }
  EXPECT_FALSE(fs::exists(folder.file("runs")));
  {
    RunLock lock(folder.file("written"));
    write_file(folder.file("written/metrics.jsonl"), "");
  }
  EXPECT_TRUE(fs::exists(folder.file("written/metrics.jsonl")));
  EXPECT_FALSE(fs::exists(folder.file("written/lock")));
  fs::create_directories(folder.file("there"));
  {
    RunLock lock(folder.file("there"));
  }
  EXPECT_TRUE(fs::exists(folder.file("there")));
  write_file(folder.file("there/lock"), "a process that was killed");
  EXPECT_EQ(message_of([&] { RunLock lock(folder.file("there")); }), "no error");
}

TEST(RunLock, NeedsAFolder) {
  const test::TemporaryFolder folder;
  write_file(folder.file("file"), "mine");
  EXPECT_EQ(message_of([&] { RunLock lock(folder.file("file")); }),
            concat(folder.file("file"), " is not a folder\n  hint: --out names the folder of the run"));
}

// While holders come and go, and the folder with them, there is never more than one.
TEST(RunLock, OneHolderAtATime) {
  const test::TemporaryFolder folder;
  std::atomic<int> holders = 0, held = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        try {
          const RunLock lock(folder.file("run"));
          EXPECT_EQ(++holders, 1);
          ++held;
          --holders;
        } catch (const std::exception&) {
          // Another thread has it.
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(held, 0);
}

}  // namespace
}  // namespace penstock
