// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace penstock {
namespace {

TEST(Process, HasEndedAlsoBeforeItsParentHasAsked) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string name = this_process();
    if (::write(ends[1], name.data(), name.size()) < 0) ::_exit(1);
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string name(1000, ' ');
  name.resize(static_cast<std::size_t>(::read(ends[0], name.data(), name.size())));
  ::close(ends[0]);
  while (!has_ended(name)) std::this_thread::yield();
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(has_ended(name));
}

TEST(Process, OfOthersNothingIsKnown) {
  EXPECT_FALSE(has_ended(this_process()));
  EXPECT_FALSE(has_ended(""));
  EXPECT_FALSE(has_ended("another-machine pid:[1] 1 1"));
}

}  // namespace
}  // namespace penstock
