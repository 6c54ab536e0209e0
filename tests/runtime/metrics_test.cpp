#include "runtime/metrics.h"

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

TEST(Metrics, OneLinePerStepAndResumedStepsAreRewritten) {
  const test::TemporaryFolder folder;
  const std::string path = folder.file("metrics.jsonl");
  {
    MetricsFile file(path, 0);
    for (std::int64_t step : {1, 2, 3}) file.append(at(step));
  }
  write_file(path, read_file(path) + "{\"step\": 4, \"lo");  // killed while writing
  MetricsFile file(path, 2);
  StepMetrics third = at(3);
  third.validation_loss = 2.5;
  file.append(third);
  EXPECT_EQ(read_file(path), concat(to_json(at(1)), "\n", to_json(at(2)), "\n", to_json(third), "\n"));
  EXPECT_EQ(to_json(third),
            "{\"step\":3,\"loss\":1.5,\"validation_loss\":2.5,\"gradient_norm\":0.0,\"learning_rate\":0.0,\"seconds\":0.0,"
            "\"tokens_per_second\":0.0,\"bubble\":0.0,\"peak_bytes\":[10,20]}");
}

TEST(Metrics, AnUnwritablePlaceIsNamed) {
  EXPECT_EQ(test::message_of([] { MetricsFile("/nonexistent/metrics.jsonl", 0); }),
            "cannot write /nonexistent/metrics.jsonl: No such file or directory");
}

}  // namespace
}  // namespace penstock
