// SPDX-License-Identifier: Apache-2.0
// The joint forward-and-backward graph of a PyTorch model, run by op name and by ops of ours: as a whole, and cut into stages with I and W.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "base/text.h"
#include "exported/rename.h"
#include "formats/safetensors.h"
#include "ops/verify.h"
#include "stage/stages.h"
#include "support/file_tensors.h"
#include "support/paths.h"
#include "support/temporary.h"
#include "torch/kernel.h"
#include "torch/run_graph.h"

namespace penstock {
namespace {

using T = at::Tensor;

constexpr std::size_t kData = 2;  // tokens and targets come before the parameters

struct ExportedModel {
  Graph graph;
  std::map<std::string, T> tensors;  // inputs, and PyTorch's results

  std::vector<T> inputs() const {
    std::vector<T> out;
    for (ValueId input : graph.inputs) out.push_back(tensors.at(graph.values[input.index()].name));
    return out;
  }
};

ExportedModel export_model() {
  const test::TemporaryFolder folder;
  const std::string command =
      concat(test::python_with_torch(), " ", test::tests_folder(), "/torch_python/export_joint.py ", folder.path().string());
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
  ExportedModel model{parse_graph(read_file(folder.file("graph.txt")), "graph.txt"), {}};
  const auto file = SafetensorsFile::open(folder.file("tensors.safetensors"));
  for (const auto& [name, stored] : file.tensors()) model.tensors[name] = tensor_at(test::bytes_of(stored).data(), stored.type).clone();
  return model;
}

// Loss, then the gradients in the parameters' order.
void expect_pytorchs(const ExportedModel& model, const std::vector<T>& results) {
  ASSERT_EQ(results.size(), 1 + model.graph.inputs.size() - kData);
  EXPECT_LT(test::relative_difference(results[0], model.tensors.at("loss")), 1e-12);
  for (std::size_t i = 1; i < results.size(); ++i) {
    const std::string& name = model.graph.values[model.graph.inputs[kData + i - 1].index()].name;
    EXPECT_LT(test::relative_difference(results[i], model.tensors.at("grad:" + name)), 1e-11) << name;
  }
}

// A step that is nothing but the loop around the graph, with one micro-batch.
Graph step_around(const Graph& body, std::size_t data) {
  Graph step;
  step.name = "step";
  Op loop;
  loop.name = "accumulate";
  loop.attributes = {{"microbatches", std::int64_t{1}}, {"split", static_cast<std::int64_t>(data)}};
  loop.body = std::make_shared<const Graph>(body);
  for (ValueId input : body.inputs) loop.operands.push_back(step.add_input(body.type(input), body.values[input.index()].name));
  for (ValueId output : body.outputs) loop.results.push_back(step.add_value(body.type(output)));
  step.outputs = loop.results;
  step.ops.push_back(std::move(loop));
  return step;
}

// Runs the tasks one after the other; what flows between them is kept by bundle.
class TaskRunner {
 public:
  TaskRunner(const StageDag& dag, const std::vector<T>& loop_operands) : dag_(dag), bundles_(dag.bundles.size()) {
    for (std::size_t b = 0; b < dag.bundles.size(); ++b) {
      const Bundle& bundle = dag.bundles[b];
      if (bundle.source == Bundle::Source::data || bundle.source == Bundle::Source::invariant)
        for (std::int32_t member : bundle.members) bundles_[b].push_back(loop_operands[static_cast<std::size_t>(member)]);
    }
  }

  void run(StageTaskId number) {
    const StageTask& task = dag_.tasks[number];
    std::vector<T> operands;
    for (BundleId read : task.reads)
      for (const T& part : bundles_[read]) operands.push_back(part);
    const std::vector<T> results = test::run_graph(task.graph, operands);
    std::size_t next = 0;
    for (BundleId write : task.writes) {
      std::vector<T>& bundle = bundles_[write];
      const bool first = bundle.empty();
      for (std::size_t part = 0; part < dag_.bundles[write].types.size(); ++part, ++next)
        first ? bundle.push_back(results[next]) : static_cast<void>(bundle[part].add_(results[next]));
    }
  }

  std::vector<T> loop_results(std::size_t count) const {
    std::vector<T> out(count);
    for (std::size_t b = 0; b < bundles_.size(); ++b)
      if (dag_.bundles[b].source == Bundle::Source::accumulator)
        for (std::size_t i = 0; i < bundles_[b].size(); ++i) out[static_cast<std::size_t>(dag_.bundles[b].members[i])] = bundles_[b][i];
    return out;
  }

 private:
  const StageDag& dag_;
  IdVector<BundleId, std::vector<T>> bundles_;
};

void run_in_stages(const ExportedModel& model) {
  const Graph step = step_around(model.graph, kData);
  verify(step);
  const StagedStep staged = assign_stages(step);
  ASSERT_EQ(staged.stages, (std::vector<std::string>{"0", "1"}));
  const StageDag dag = cut(staged, {true, true});
  TaskRunner runner(dag, model.inputs());
  for (auto [stage, kind] : {std::pair{0, Kind::F}, {1, Kind::F}, {1, Kind::I}, {0, Kind::I}, {1, Kind::W}, {0, Kind::W}}) {
    const StageTaskId task = dag.task(StageId(stage), kind);
    EXPECT_TRUE(task || (stage == 0 && kind == Kind::I)) << "stage " << stage;  // nobody waits for stage 0's input gradients
    if (task) runner.run(task);
  }
  expect_pytorchs(model, runner.loop_results(model.graph.outputs.size()));
}

// One test, because PyTorch takes seconds to trace.
TEST(ExportedModel, GivesPyTorchsGradientsAsAWholeAndInStages) {
  if (!std::filesystem::exists(test::python_with_torch())) GTEST_SKIP() << "no Python with PyTorch";
  const ExportedModel model = export_model();
  verify(model.graph);
  EXPECT_EQ(print(parse_graph(print(model.graph))), print(model.graph));
  expect_pytorchs(model, test::run_graph(model.graph, model.inputs()));
  run_in_stages(model);
  const ExportedModel renamed{rename_ops(model.graph), model.tensors};
  EXPECT_EQ(print(renamed.graph).find("::"), std::string::npos) << "an op of a GPT stays by name";
  expect_pytorchs(renamed, test::run_graph(renamed.graph, renamed.inputs()));
  run_in_stages(renamed);
}

}  // namespace
}  // namespace penstock
