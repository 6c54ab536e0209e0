// SPDX-License-Identifier: Apache-2.0
#include "base/machine.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "support/temporary.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

// A machine's files, as far as they are looked at.
class Machine {
 public:
  void write(const std::string& path, const std::string& content) const {
    fs::create_directories((folder_.path() / path).parent_path());
    write_file(folder_.file(path), content);
  }
  MemoryRoom room() const { return memory_room(folder_.path().string()); }

 private:
  test::TemporaryFolder folder_;
};

TEST(MemoryRoom, IsWhatIsFreeAndCanBeSwapped) {
  const Machine machine;
  machine.write("proc/meminfo", "MemTotal:       8000 kB\nMemAvailable:   3000 kB\nSwapFree:       1000 kB\n");
  EXPECT_EQ(machine.room().bytes, 4000 * 1024);
  EXPECT_EQ(machine.room().limit, "this machine's free memory");
}

TEST(MemoryRoom, OfAControlGroupIsWhatItAndItsParentsLeave) {
  const Machine machine;
  machine.write("proc/meminfo", "MemAvailable:   3000 kB\n");
  machine.write("proc/self/cgroup", "0::/jobs/mine\n");
  machine.write("sys/fs/cgroup/jobs/mine/memory.max", "max\n");
  EXPECT_EQ(machine.room().bytes, 3000 * 1024);
  machine.write("sys/fs/cgroup/jobs/memory.max", "1000000\n");
  machine.write("sys/fs/cgroup/jobs/memory.current", "700000\n");
  machine.write("sys/fs/cgroup/jobs/memory.stat", "anon 500000\nfile 200000\n");
  EXPECT_EQ(machine.room().bytes, 500000);  // what caches files can be had back
  EXPECT_EQ(machine.room().limit, "what the control group's limit leaves");
}

TEST(MemoryRoom, OfTheFirstVersionOfControlGroups) {
  const Machine machine;
  machine.write("proc/self/cgroup", "5:cpu:/x\n4:memory:/box\n");
  machine.write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "1000\n");
  machine.write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "1500\n");
  EXPECT_EQ(machine.room().bytes, 0);
}

TEST(MemoryRoom, OfAMachineThatSaysNothingIsNotKnown) {
  EXPECT_EQ(Machine().room().bytes, -1);
}

}  // namespace
}  // namespace penstock
