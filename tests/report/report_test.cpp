// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/text.h"
#include "report/progress.h"
#include "report/table.h"

namespace penstock {
namespace {

TEST(Table, ColumnsAlign) {
  EXPECT_EQ(table({"actor", "busy", "peak"}, {{"0", "1.5 s", "12 MiB"}, {"10", "0.5 s", "9 MiB"}}),
            "actor   busy    peak\n"
            "0      1.5 s  12 MiB\n"
            "10     0.5 s   9 MiB\n");
}

TEST(Table, NumbersForPeople) {
  EXPECT_EQ(short_number(950), "950");
  EXPECT_EQ(short_number(31250), "31.2 k");
  EXPECT_EQ(short_number(1.25e6), "1.2 M");
}

TEST(Table, WhatAModelWroteIsPrintable) {
  EXPECT_EQ(printable("a\tb\n\xc3\xa4\xe2\x82\xac\xf0\x9f\x99\x82"), "a\tb\n\xc3\xa4\xe2\x82\xac\xf0\x9f\x99\x82");
  const std::string bad = "\xef\xbf\xbd";
  EXPECT_EQ(printable("\033[31m"), bad + "[31m");
  EXPECT_EQ(printable("\xff|\xc3|\xed\xa0\x80|\xc0\x80"), concat(bad, "|", bad, "|", bad, bad, bad, "|", bad, bad));
}

StepMetrics metrics(std::int64_t step) {
  StepMetrics out;
  out.step = step;
  out.loss = 2.3456;
  out.rate = 31250;
  out.seconds = 0.064;
  out.seen = 2000 * static_cast<double>(step);
  out.flops = 38e9;
  out.bubble = 0.123;
  return out;
}

TEST(Progress, TheLineSaysWhatMatters) {
  EXPECT_EQ(progress_text(metrics(12), 400, {.validation_loss = 2.4, .seconds_left = 3661, .peak = 100e9}),
            "step 12/400  loss 2.346  validation 2.400  31.2 k tokens/s  38 % of peak  bubble 12 %  24.0 k tokens seen  1 h 1 min left");
  EXPECT_EQ(progress_text(metrics(12), 400), "step 12/400  loss 2.346  31.2 k tokens/s  bubble 12 %  24.0 k tokens seen");
}

TEST(Progress, DurationsAreRough) {
  EXPECT_EQ(rough_duration(0.2), "0 s");
  EXPECT_EQ(rough_duration(59.4), "59 s");
  EXPECT_EQ(rough_duration(59.6), "1 min");
  EXPECT_EQ(rough_duration(3599), "1 h 0 min");
  EXPECT_EQ(rough_duration(100000), "27 h 47 min");
}

std::string shown(Terminal terminal) {
  char* buffer = nullptr;
  std::size_t size = 0;
  std::FILE* stream = ::open_memstream(&buffer, &size);
  {
    Progress progress(stream, terminal, 3);
    for (std::int64_t step : {1, 2, 3}) progress.show(metrics(step));
  }
  std::fclose(stream);
  const std::string out(buffer, size);
  std::free(buffer);
  return out;
}

TEST(Progress, PlainLinesWithoutATerminal) {
  // The first step, then none until some seconds have passed, and the last.
  EXPECT_EQ(shown({}), concat(progress_text(metrics(1), 3), "\n", progress_text(metrics(3), 3), "\n"));
}

TEST(Progress, ABarOnATerminal) {
  EXPECT_TRUE(shown({true, false})
                  .ends_with("[========================] step 3/3  loss 2.346  31.2 k tokens/s  bubble 12 %  6.0 k tokens seen\033[K\n"));
  EXPECT_NE(shown({true, false}).find("4.0 k tokens seen  0 s left\033[K"), std::string::npos);  // once it knows what a step takes
  EXPECT_EQ(shown({true, false}).find("\033[36m"), std::string::npos);
  EXPECT_NE(shown({true, true}).find("\033[36m"), std::string::npos);
}

}  // namespace
}  // namespace penstock
