// SPDX-License-Identifier: Apache-2.0
// `penstock check` of a configuration: the step that `train` would do next, from the same state, on the same data, cut as `train` cuts it,
// beside one on a single device.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver/check.h"
#include "driver/training.h"

namespace penstock {

struct CheckOptions {
  const Config& config;
  const ModelRegistry& models;
  std::function<TrainingStart(const Prepared&)> start;  // where `train` would begin
  // A cluster of the configuration's devices, of so many for each actor; null in a process that has served the one that checks.
  std::function<std::unique_ptr<Cluster>(const std::vector<int>& groups, std::shared_ptr<const DataSource>)> cluster;
  // One of so many threads of this process.
  std::function<std::unique_ptr<Cluster>(int devices, std::shared_ptr<const DataSource>)> local;
  std::function<void(Program&)> choose_kernels = [](Program&) {};
  std::string dump = {};  // dump_check's folder; "": nothing is written
};

struct CheckResult {
  std::string compared = "gradient";  // beside the loss; or "parameter", behind a window of steps
  Comparison comparison;
  double tolerance = 0;
  bool is_equal() const { return comparison.loss_difference <= tolerance && comparison.gradient_difference <= tolerance; }
};

// Compares on the batch that `train` would read next, where the configuration names data or plans batches, and on a drawn one whose
// micro-batches have unequal numbers of targets, where batches are not planned. None in a process that has served another one. Throws
// Error wherever `train` would before its first step, and for a folder to write of a window.
std::optional<CheckResult> check_configuration(const CheckOptions& options);

}  // namespace penstock
