// SPDX-License-Identifier: Apache-2.0
// This test program once more, as a process of its own: what is killed, or ends by itself, is one.
#pragma once

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::test {

// Runs the one test of that name with these variables ("NAME=VALUE") beside the present ones.
inline pid_t spawn_test(const std::string& name, std::vector<std::string> variables) {
  for (char** entry = environ; *entry; ++entry)
    if (!std::string_view(*entry).starts_with("GTEST_")) variables.emplace_back(*entry);  // the share of the tests that this process has
  std::vector<char*> environment;
  for (std::string& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  std::string program = std::filesystem::read_symlink("/proc/self/exe"), filter = "--gtest_filter=" + name;
  char* arguments[] = {program.data(), filter.data(), nullptr};
  pid_t child = 0;
  EXPECT_EQ(::posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environment.data()), 0);
  return child;
}

// Waits for its end; 128 + the signal that ended it.
inline int exit_code(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace penstock::test
