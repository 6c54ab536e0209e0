// SPDX-License-Identifier: Apache-2.0
#include "driver/metrics.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/text.h"
#include "support/errors.h"
#include "support/temporary.h"

namespace penstock {
namespace {

StepMetrics at(std::int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = 1.5;
  metrics.peak_bytes = {10, 20};
  return metrics;
}

TEST(Metrics, LinesAreAppendedAndNoneIsLost) {
  const test::TemporaryFolder folder;
  const std::string path = folder.file("metrics.jsonl");
  {
    MetricsFile file(path);
    for (std::int64_t step : {1, 2, 3}) file.append(at(step));
  }
  const std::string three = concat(to_json(at(1)), "\n", to_json(at(2)), "\n", to_json(at(3)), "\n");
  StepMetrics third = at(3);
  third.validation_loss = 2.5;
  write_file(path, three + "{\"step\": 4, \"lo");  // killed while writing
  MetricsFile(path).append(third);
  EXPECT_EQ(read_file(path), concat(three, to_json(third), "\n"));
  write_file(path, three + to_json(at(4)));  // all but the end of the line
  MetricsFile(path).append(third);
  EXPECT_EQ(read_file(path), concat(three, to_json(at(4)), "\n", to_json(third), "\n"));
  EXPECT_EQ(to_json(third),
            "{\"step\":3,\"loss\":1.5,\"validation_loss\":2.5,\"gradient_norm\":0.0,\"learning_rate\":0.0,\"seconds\":0.0,"
            "\"tokens_per_second\":0.0,\"flops_per_second\":0.0,\"bubble\":0.0,\"peak_bytes\":[10,20]}");
}

TEST(Metrics, OfAPlannedBatchSayWhatItsProgramTook) {
  StepMetrics metrics = at(7);
  metrics.planned = BatchMetrics{.seconds = 0.5, .waited = 0.25, .predicted = 2, .microbatches = 9, .classes = 4, .new_classes = 1};
  EXPECT_EQ(
      to_json(metrics),
      "{\"step\":7,\"loss\":1.5,\"gradient_norm\":0.0,\"learning_rate\":0.0,\"seconds\":0.0,\"tokens_per_second\":0.0,"
      "\"planning_seconds\":0.5,\"waited_seconds\":0.25,\"predicted_seconds\":2.0,\"micro_batches\":9,\"classes\":4,\"new_classes\":1,"
      "\"class_hits\":0.75,\"flops_per_second\":0.0,\"bubble\":0.0,\"peak_bytes\":[10,20]}");
  metrics.planned->slices = 3;
  EXPECT_NE(to_json(metrics).find("\"micro_batches\":9,\"slices\":3,\"classes\":4"), std::string::npos);
  metrics.planned->predicted = 0;
  EXPECT_EQ(to_json(metrics).find("predicted"), std::string::npos);
}

TEST(Metrics, AnUnwritablePlaceIsNamed) {
  EXPECT_EQ(test::message_of([] { MetricsFile("/nonexistent/metrics.jsonl"); }),
            "cannot write /nonexistent/metrics.jsonl: No such file or directory");
}

}  // namespace
}  // namespace penstock
