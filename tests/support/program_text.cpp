// SPDX-License-Identifier: Apache-2.0
// Every program that lowering makes in a test goes through its text and back, as it does to another process.
#include <gtest/gtest.h>

#include "lower/passes.h"

namespace penstock::test {
namespace {

void expect_to_read_back(const Program& program) {
  const std::string text = print(program);
  try {
    const Program back = parse_program(text);
    EXPECT_EQ(hash(back), hash(program)) << program.name;
    EXPECT_TRUE(print(back) == text) << program.name;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "the text of " << program.name << " does not read back: " << error.what();
  }
}

const bool is_watched = (program_watch = expect_to_read_back, true);

}  // namespace
}  // namespace penstock::test
