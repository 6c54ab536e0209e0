// SPDX-License-Identifier: Apache-2.0
#include "driver/metrics.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/durable.h"
#include "base/text.h"

namespace penstock {

using nlohmann::json;

std::string to_json(const StepMetrics& metrics) {
  nlohmann::ordered_json line = {{"step", metrics.step}, {"loss", metrics.loss}};
  if (metrics.validation_loss) line["validation_loss"] = *metrics.validation_loss;
  line["gradient_norm"] = metrics.gradient_norm;
  line["learning_rate"] = metrics.learning_rate;
  line["seconds"] = metrics.seconds;
  line[metrics.counted + "_per_second"] = metrics.rate;
  if (const auto& planned = metrics.planned) {
    line["planning_seconds"] = planned->seconds;
    line["waited_seconds"] = planned->waited;
    if (planned->predicted > 0) line["predicted_seconds"] = planned->predicted;
    line["micro_batches"] = planned->microbatches;
    if (planned->slices > 0) line["slices"] = planned->slices;
    if (!planned->recompute.empty()) line["recompute"] = planned->recompute;
    if (planned->layers_again > 0) line["layers_again"] = planned->layers_again;
    line["classes"] = planned->classes;
    line["new_classes"] = planned->new_classes;
    line["class_hits"] = 1 - static_cast<double>(planned->new_classes) / static_cast<double>(planned->classes);
  }
  line["flops_per_second"] = metrics.flops;
  if (std::isfinite(metrics.bubble)) line["bubble"] = metrics.bubble;
  line["peak_bytes"] = metrics.peak_bytes;
  return line.dump();
}

MetricsFile::MetricsFile(std::string path) : path_(std::move(path)) {
  AppendedFile file(path_);
  const std::string text = read_file(path_);
  const std::size_t whole = text.rfind('\n') + 1;  // 0 where there is no newline, as npos + 1 is 0
  if (whole == text.size()) return;
  if (json::accept(text.substr(whole)))
    file.append("\n");
  else
    file.cut(whole);
}

void MetricsFile::append(const StepMetrics& metrics) {
  AppendedFile(path_).append(to_json(metrics) + "\n");
}

}  // namespace penstock
