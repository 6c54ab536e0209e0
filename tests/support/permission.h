// SPDX-License-Identifier: Apache-2.0
// Actions on files that may not be read.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "support/errors.h"

namespace penstock::test {

// message_of while nobody may read what is at `place`, nor this process where it is root's, who may read everything.
template <class Action>
std::string message_without_permission(const std::filesystem::path& place, Action&& action) {
  const std::filesystem::perms before = std::filesystem::status(place).permissions();
  std::filesystem::permissions(place, std::filesystem::perms::none);
  const bool was_root = ::geteuid() == 0 && ::seteuid(65534) == 0;
  const std::string message = message_of(action);
  if (was_root) {
    EXPECT_EQ(::seteuid(0), 0);
  }
  std::filesystem::permissions(place, before);
  return message;
}

}  // namespace penstock::test
