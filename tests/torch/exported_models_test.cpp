// SPDX-License-Identifier: Apache-2.0
// The joint graphs of models as they come from transformers: few ops stay by name, and the values stay.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "base/text.h"
#include "exported/rename.h"
#include "formats/safetensors.h"
#include "ops/verify.h"
#include "support/file_tensors.h"
#include "support/paths.h"
#include "support/seed.h"
#include "support/temporary.h"
#include "torch/kernel.h"
#include "torch/run_graph.h"

namespace penstock {
namespace {

using T = at::Tensor;

struct JointGraph {
  Graph graph;
  std::vector<T> inputs;
};

JointGraph read_joint(const std::string& path) {
  const auto file = SafetensorsFile::open(path);
  JointGraph out{parse_graph(file.metadata().at("graph"), path), {}};
  const auto& tensors = file.tensors();
  for (ValueId input : out.graph.inputs) {
    const std::string& name = out.graph.values[input].name;
    const auto stored = std::ranges::find_if(tensors, [&](const auto& entry) { return entry.first == name; });
    out.inputs.push_back(tensor_at(test::bytes_of(stored->second).data(), stored->second.type).clone());
  }
  return out;
}

// The difference of all tensors together, over the size of the second ones.
double relative_l2(const std::vector<T>& found, const std::vector<T>& wanted) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const T x = found[i].to(at::kDouble), y = wanted[i].to(at::kDouble);
    difference += (x - y).square().sum().item().toDouble();
    size += y.square().sum().item().toDouble();
  }
  return std::sqrt(difference / size);
}

// At most 2 of 100 ops.
void expect_few_by_name(const Graph& graph, const std::string& model) {
  std::vector<std::string> by_name;
  for (const Op& op : graph.ops)
    if (op.name.find("::") != std::string::npos) by_name.push_back(op.name);
  EXPECT_LE(50 * by_name.size(), graph.ops.size()) << model << ": " << join(by_name, ", ");
}

// Two of four models, as PyTorch takes seconds to trace each; one test, as it takes seconds to begin.
TEST(ExportedModels, HaveFewOpsByNameAndKeepTheirValues) {
  if (!std::filesystem::exists(test::python_with_torch())) GTEST_SKIP() << "no Python with PyTorch";
  std::vector<std::string> names = {"gpt2", "llama", "bert", "t5"};
  std::mt19937_64 random(test::drawn_seed());
  std::ranges::shuffle(names, random);
  if (!test::is_soak()) names.resize(2);
  const test::TemporaryFolder folder;
  const std::string command = concat(test::python_with_torch(), " -W ignore ", test::tests_folder(), "/python/write_exported.py ",
                                     folder.path().string(), " ", join(names, " "));
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  for (const std::string& name : names) {
    const std::string path = folder.file(name + ".safetensors");
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "no transformers";
    const JointGraph joint = read_joint(path);
    const Graph renamed = rename_ops(joint.graph);
    verify(renamed);
    expect_few_by_name(renamed, name);
    EXPECT_LT(relative_l2(test::run_graph(renamed, joint.inputs), test::run_graph(joint.graph, joint.inputs)), 5e-6) << name;
  }
}

}  // namespace
}  // namespace penstock
