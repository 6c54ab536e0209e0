// SPDX-License-Identifier: Apache-2.0
#include "report/metrics_svg.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "support/errors.h"

namespace penstock {
namespace {

std::vector<StepMetrics> falling(int steps) {
  std::vector<StepMetrics> out;
  for (int i = 1; i <= steps; ++i) {
    out.emplace_back();
    out.back().step = i;
    out.back().loss = 1 + 4.0 / i;
    out.back().rate = 1000.0 + i % 7;
  }
  return out;
}

std::ptrdiff_t occurrences(const std::string& text, char letter) {
  return std::count(text.begin(), text.end(), letter);
}

// The path of a line: d="...".
std::string path_of(const std::string& svg, const std::string& look) {
  const std::size_t at = svg.find("d=\"", svg.find("class=\"line " + look)) + 3;
  return svg.substr(at, svg.find('"', at) - at);
}

TEST(MetricsSvg, LinesAreRead) {
  const auto steps = parse_metrics(
      "{\"step\":1,\"loss\":5.5,\"seconds\":2,\"tokens_per_second\":100}\n"
      "{\"step\":2,\"loss\":5,\"validation_loss\":5.25,\"seconds\":3,\"tokens_per_second\":300}\n"
      "{\"step\":2,\"loss\":4,\"seconds\":1,\"tokens_per_second\":200,\"more\":[]}\n",
      "m.jsonl");
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[0].loss, 5.5);
  EXPECT_EQ(steps[1].loss, 4);  // done again: the last line counts
  EXPECT_FALSE(steps[1].validation_loss);
  EXPECT_EQ(median_of(steps, &StepMetrics::rate), 200);
  EXPECT_EQ(median_of(steps, &StepMetrics::seconds), 2);
  EXPECT_EQ(median_of({}, &StepMetrics::rate), 0);
  EXPECT_EQ(parse_metrics("{\"step\":1,\"loss\":5,\"seconds\":1,\"samples_per_second\":100}\n", "m.jsonl")[0].counted, "samples");
}

TEST(MetricsSvg, BrokenLinesAreNamed) {
  const std::string good = "{\"step\":1,\"loss\":5.5,\"seconds\":2,\"tokens_per_second\":100}\n";
  for (const char* bad :
       {"{\"step\":2,\"lo", "[1]", "{\"step\":2,\"loss\":5,\"seconds\":2}", "{\"step\":2,\"loss\":5,\"tokens_per_second\":1}",
        "{\"step\":2,\"loss\":\"low\",\"seconds\":2,\"tokens_per_second\":1}"})
    EXPECT_NE(
        test::message_of([&] { parse_metrics(concat(good, bad, "\n", good), "m.jsonl"); }).find("m.jsonl:2: the line is no step's metrics"),
        std::string::npos)
        << bad;
}

TEST(MetricsSvg, ShowsLossesAndRate) {
  std::vector<StepMetrics> steps = falling(50);
  steps[24].validation_loss = 2;
  steps[49].validation_loss = 1.5;
  const std::string svg = metrics_svg(steps);
  for (const char* part :
       {"<title>Loss and tokens/s of 50 steps</title>", "from 5 at step 1 to 1.08 at step 50; the last validation loss is 1.5",
        "loss (line), nats per token", ">tokens/s</text>", ">20</text>", ">step</text>", "prefers-color-scheme: dark"})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  EXPECT_EQ(occurrences(path_of(svg, "loss"), 'L'), 49);
  EXPECT_EQ(occurrences(path_of(svg, "rate"), 'L'), 49);
  EXPECT_NE(svg.find("cy=\"", svg.find("circle")), std::string::npos);
}

TEST(MetricsSvg, ManyStepsAreThinnedAndKeepTheirExtremes) {
  std::vector<StepMetrics> steps = falling(200'000);
  steps[100'000].loss = 9;  // the only one so high: at the top but for the room above it
  const std::string path = path_of(metrics_svg(steps), "loss");
  EXPECT_LT(occurrences(path, 'L'), 4 * 1100);
  EXPECT_NE(path.find(" 44."), std::string::npos);
}

TEST(MetricsSvg, OneStepAndEqualLosses) {
  std::vector<StepMetrics> steps = falling(1);
  for (int count = 0; count < 2; ++count) {
    const std::string svg = metrics_svg(steps);
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
    steps.push_back(steps[0]);
    steps.back().step = 2;
    steps.back().counted = "samples";
  }
  EXPECT_NE(metrics_svg(steps).find("loss (line), mean of the batch"), std::string::npos);
}

}  // namespace
}  // namespace penstock
