// SPDX-License-Identifier: Apache-2.0
#include "schedule/options.h"

#include <gtest/gtest.h>

#include <set>

#include "config/config_keys.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

// A member without a row would be said by no key and no flag, and a table in a file would not be checked for it.
TEST(ScheduleOptionRows, EveryMemberHasOne) {
  const auto& [actors, microbatches, window, chunks, slices, head_shards, forward_only, self_conditioning, frozen, balance, in_flight,
               group, unit, transfers, split_backward] = ScheduleOptions();
  EXPECT_EQ(schedule_options().size(), 15);
  std::set<std::string> flags;
  for (const ScheduleOption& row : schedule_options()) {
    EXPECT_FALSE(row.is_given({})) << row.name;
    EXPECT_TRUE(flags.insert(row.flag()).second) << row.name;
    EXPECT_EQ(&option_of(row.flag()), &row);
  }
}

TEST(ScheduleOptionRows, OnlySomeSchedulesTakeWhatTheyName) {
  for (const ScheduleInfo& info : schedules())
    for (const std::string& flag : info.takes)
      EXPECT_TRUE(option_of(flag).taken_by == ScheduleOption::TakenBy::some || flag == "--window") << info.name << " " << flag;
}

TEST(ScheduleOptionRows, AreKeysOfConfigurations) {
  Config config;
  std::set<std::string> keys;
  for (const ConfigKey& key : fixed_keys(config)) keys.insert(key.path());
  for (const ScheduleOption& row : schedule_options())
    EXPECT_EQ(keys.contains("pipeline." + std::string(row.name)),
              row.configured == ScheduleOption::Configured::here || row.name == "slices")
        << row.name;
}

TEST(ScheduleOptionRows, AreSetByName) {
  ScheduleOptions options;
  set_option(options, "in_flight", 3);
  set_option(options, "split_backward", true);
  set_option(options, "transfers", std::vector<double>{0, 0.5});
  EXPECT_EQ(options.in_flight, 3);
  EXPECT_TRUE(options.split_backward);
  EXPECT_EQ(options.transfers, (std::vector<double>{0, 0.5}));
  const auto refused = [&](const std::string& name, const OptionValue& value) {
    return message_of([&] { set_option(options, name, value); });
  };
  EXPECT_EQ(refused("in_fligth", 3), "there is no option \"in_fligth\" of schedules\n  hint: did you mean \"in_flight\"?");
  EXPECT_EQ(refused("in_flight", 2.5), "option \"in_flight\" needs a whole number");
  EXPECT_EQ(refused("in_flight", true), "option \"in_flight\" needs a whole number");
  EXPECT_EQ(refused("in_flight", -1), "option \"in_flight\" is -1; it must be at least 0 and at most 1e+06");
  EXPECT_EQ(refused("split_backward", 1), "option \"split_backward\" needs true or false");
  EXPECT_EQ(refused("transfers", 1.0), "option \"transfers\" needs a list of numbers");
}

}  // namespace
}  // namespace penstock
