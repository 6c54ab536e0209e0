// SPDX-License-Identifier: Apache-2.0
// The check of `penstock check`: one step sequentially and one pipelined, from the same state and batch, must have equal loss and
// gradients.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config/compile.h"
#include "config/config.h"
#include "devices/cluster.h"
#include "penstock/trace.h"

namespace penstock {

// A batch of random tokens. Every sequence has its own stretch of targets that count, so that micro-batches have unequal token counts;
// other ports are drawn as in training, and pairs are as long as their rows. It is a function of the run's seed and the row: every device
// makes its own rows.
class RandomBatch : public DataSource {
 public:
  RandomBatch(std::vector<DataPort> ports, std::int64_t vocabulary) : ports_(std::move(ports)), vocabulary_(vocabulary) {}
  void fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows, std::span<std::byte> out) const override;

 private:
  void fill_pair(const std::string& port, std::int64_t seed, std::int64_t row, std::span<std::int64_t> out) const;
  void fill_text(const DataPort& port, std::int64_t seed, std::int64_t row, std::span<std::int64_t> out) const;
  // `place`: of the row in the micro-batch. The first tokens stand for some of the sample's entries.
  void fill_slots(const DataPort& port, std::int64_t seed, std::int64_t row, std::size_t place, std::span<std::int64_t> out) const;

  std::vector<DataPort> ports_;
  std::int64_t vocabulary_;
};

// One step's loss (mean) and its gradients by parameter, in the model's order.
struct StepGradients {
  double loss = 0;
  std::vector<std::pair<std::string, std::vector<double>>> gradients;
};
// Runs `program`, which compile_gradients made (config/compile.h), on a cluster whose state is set. `seed`: of the run.
StepGradients step_gradients(const Program& program, Cluster& cluster, const std::vector<ParameterSpec>& parameters, std::int64_t seed);
// The same of a step that reads samples of its own.
StepGradients step_gradients(const Program& program, Cluster& cluster, const std::vector<ParameterSpec>& parameters,
                             const StepInput& input);

double relative_difference(double a, double b);  // |a - b| / |b|

struct Comparison {
  double loss_difference = 0;  // relative
  // The largest of max|a - b| / max(max|b|, 0.01 * the model's largest gradient entry) over the parameters. The second term is there
  // because some gradients, such as a key bias's, are zero in exact arithmetic.
  double gradient_difference = 0;
  std::string worst;  // the parameter with that difference
};
Comparison compare(const StepGradients& pipelined, const StepGradients& sequential);
// The larger differences of both.
Comparison larger(const Comparison& a, const Comparison& b);

// The difference that is still accepted, by dtype of the computation: f64 1e-10, f32 1e-4, bf16 2e-2.
double tolerance_of(const std::string& dtype);

// Writes what anyone needs to do the same step in another framework: parameters, batch and both gradients as safetensors, and losses.json
// with the model's configuration. `input`: what the sequential step read. Throws Error (a folder that cannot be written).
void dump_check(const std::string& folder, const Config& config, const Prepared& prepared, Cluster& sequential_cluster,
                const DataSource& data, const StepInput& input, const StepGradients& sequential, const StepGradients& pipelined);

}  // namespace penstock
