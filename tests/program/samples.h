// SPDX-License-Identifier: Apache-2.0
// Programs that the tests of this folder start from.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "base/text.h"
#include "support/paths.h"

namespace penstock::test {

// Two stages, two micro-batches, forward only: tests/golden/program/two_devices.txt.
inline std::string two_devices() {
  return read_file(tests_folder() + "/golden/program/two_devices.txt");
}

// A value over the host's memory and back: tests/golden/program/host_copies.txt.
inline std::string host_copies() {
  return read_file(tests_folder() + "/golden/program/host_copies.txt");
}

// A state that goes to the host's memory and to that of another device, and from there to a step slot and over another state:
// tests/golden/program/snapshots.txt.
inline std::string snapshots() {
  return read_file(tests_folder() + "/golden/program/snapshots.txt");
}

// All five collectives in two groups that share devices 1 and 2: tests/golden/program/collectives.txt.
inline std::string collectives() {
  return read_file(tests_folder() + "/golden/program/collectives.txt");
}

// `text` with the one place that reads `from` changed into `to`.
inline std::string with(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  EXPECT_EQ(text.find(from, at + 1), std::string::npos) << from << " is not unique";
  return text.replace(at, from.size(), to);
}

}  // namespace penstock::test
