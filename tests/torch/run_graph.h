// SPDX-License-Identifier: Apache-2.0
// One graph as a program of one device and one task, run by the libtorch executor.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "devices/executor.h"
#include "penstock/program.h"
#include "torch/kernel_compiler.h"

namespace penstock::test {

class GraphRunner {
 public:
  // modes: how each output is written; none given: store.
  // With a compiler chains of ops are one kernel each.
  explicit GraphRunner(Graph graph, std::vector<ResultMode> modes = {}, c10::Device device = c10::DeviceType::CPU,
                       std::shared_ptr<KernelCompiler> compiler = {});

  // The memory of an input or output, as a tensor over it.
  at::Tensor input(std::size_t i);
  at::Tensor output(std::size_t i);
  void run();
  const Executor& executor() const { return *executor_; }

 private:
  void bind_elsewhere();
  at::Tensor slot(SlotId id);
  const DeviceProgram& device() const { return program_->devices[0]; }

  c10::Device on_;
  std::shared_ptr<Program> program_;
  std::unique_ptr<Executor> executor_;
  std::size_t run_ = 0;  // its instruction
};

// Outputs (copies on the host) of the graph on these inputs.
std::vector<at::Tensor> run_graph(const Graph& graph, const std::vector<at::Tensor>& inputs, c10::Device device = c10::DeviceType::CPU,
                                  std::shared_ptr<KernelCompiler> compiler = {});
std::vector<at::Tensor> run_graph(std::string_view text, const std::vector<at::Tensor>& inputs);

at::Tensor random_tensor(std::mt19937_64& random, const TensorType& type, double low = -1, double high = 1, double gap = 0);

// max |a - b| / max(max |b|, floor)
double relative_difference(const at::Tensor& a, const at::Tensor& b, double floor = 1e-3);

}  // namespace penstock::test
