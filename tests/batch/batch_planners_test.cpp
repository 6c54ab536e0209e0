// SPDX-License-Identifier: Apache-2.0
#include "batch/batch_planners.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/text.h"
#include "config/config.h"
#include "support/errors.h"
#include "support/paths.h"

namespace penstock {
namespace {

TEST(BatchPlanners, ARowSaysWhatIsAskedOfIt) {
  for (const BatchPlannerInfo& row : batch_planners()) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(&find_batch_planner(row.name), &row);
    EXPECT_EQ(row.plan != nullptr, row.batches == BatchesOf::sequences);
    EXPECT_EQ(row.plan_modules != nullptr, row.batches == BatchesOf::images && !row.given_table);
  }
  EXPECT_EQ(test::message_of([] { find_batch_planner("dynapip"); }),
            "there is no batch planner \"dynapip\"\n  hint: did you mean \"dynapipe\"?");
}

TEST(BatchPlanners, TheFirstIsTheDefault) {
  Config config;
  EXPECT_EQ(config.batch.planner, batch_planners().front().name);
  EXPECT_FALSE(plans_batches(config));
  config.batch.planner = "searched";
  EXPECT_TRUE(plans_batches(config));
}

TEST(BatchPlanners, TheManualHasALineForEach) {
  const auto manual = std::filesystem::path(test::tests_folder()).parent_path() / "docs/batches.md";
  std::vector<std::string> found, expected = {"| `batch.planner` | |", "|---|---|"};
  for (const BatchPlannerInfo& row : batch_planners()) expected.push_back(concat("| `", row.name, "` | ", row.summary, " |"));
  for (const std::string& line : split(read_file(manual.string()), '\n')) {
    if (line == expected[0] || (!found.empty() && found.size() < expected.size())) found.push_back(line);
  }
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace penstock
