// SPDX-License-Identifier: Apache-2.0
// Every row of the table of names: the ops by name and what they become give the same values on random inputs, in f32 and f64.
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "base/text.h"
#include "exported/rename.h"
#include "exported/rename_rows.h"
#include "ops/verify.h"
#include "torch/kernel.h"
#include "torch/run_graph.h"

namespace penstock {
namespace {

using T = at::Tensor;

// Ops by name on some inputs; F stands for the floating dtype, S for that of its statistics.
struct Sample {
  std::string inputs;
  std::vector<std::string> ops;
  bool stays = false;                      // whether an op stays by name
  std::vector<std::string> compared = {};  // results; none given: all of them
};

const std::vector<Sample>& samples() {
  static const std::vector<Sample> all = {
#include "torch/exported_rename_samples.inc"
  };
  return all;
}

// The graph of a sample, which returns what is compared.
Graph graph_of(const Sample& sample, const std::string& dtype) {
  std::vector<std::string> types, values;
  for (const std::string& op : sample.ops) {
    const std::string left = op.substr(0, op.find(" = "));
    const std::regex result("(%\\w+): (\\w+\\[[^\\]]*\\])");
    for (std::sregex_iterator it(left.begin(), left.end(), result), end; it != end; ++it) {
      if (!sample.compared.empty() && std::ranges::count(sample.compared, (*it)[1].str()) == 0) continue;
      values.push_back((*it)[1]);
      types.push_back((*it)[2]);
    }
  }
  const std::string text = concat("penstock graph 1\ngraph @sample(", sample.inputs, ") -> (", join(types, ", "), ") {\n  ",
                                  join(sample.ops, "\n  "), "\n  return ", join(values, ", "), "\n}\n");
  const std::string real = std::regex_replace(text, std::regex("\\bF\\b"), dtype);
  return parse_graph(std::regex_replace(real, std::regex("\\bS\\b"), dtype == "f64" ? "f64" : "f32"));
}

// Numbers from 0 to 2 for integers and bools, which all samples take as classes and indices.
std::vector<T> random_inputs(const Graph& graph, std::mt19937_64& random) {
  std::vector<T> out;
  for (ValueId input : graph.inputs) {
    const TensorType& type = graph.type(input);
    const bool real = is_floating(type.dtype), truth = type.dtype == DType::boolean;
    const bool positive = graph.values[input].name.starts_with("positive");
    out.push_back(test::random_tensor(random, type, real && !positive ? -2 : positive ? 0.5 : 0, truth ? 2 : 3, 0.01));
  }
  return out;
}

bool is_by_name(const Op& op) {
  return op.name.find("::") != std::string::npos;
}

void expect_same_values(const Sample& sample, const std::string& dtype, double tolerance) {
  const Graph graph = graph_of(sample, dtype), renamed = rename_ops(graph);
  verify(renamed);
  EXPECT_EQ(std::ranges::any_of(renamed.ops, is_by_name), sample.stays) << print(renamed);
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    std::mt19937_64 random(seed);
    const std::vector<T> inputs = random_inputs(graph, random);
    const std::vector<T> wanted = test::run_graph(graph, inputs), found = test::run_graph(renamed, inputs);
    for (std::size_t i = 0; i < wanted.size(); ++i)
      EXPECT_LT(test::relative_difference(found[i], wanted[i], 1), tolerance) << "seed " << seed << ", result " << i << "\n"
                                                                              << print(graph);
  }
}

TEST(RenamedOps, GiveTheValuesOfTheOpsByNameInF32) {
  for (const Sample& sample : samples()) expect_same_values(sample, "f32", 1e-6);
}

TEST(RenamedOps, GiveTheValuesOfTheOpsByNameInF64) {
  for (const Sample& sample : samples()) expect_same_values(sample, "f64", 1e-11);
}

// ATen rounds some results that ours keep in f32.
TEST(RenamedOps, GiveTheValuesOfTheOpsByNameInBf16) {
  for (const Sample& sample : samples()) expect_same_values(sample, "bf16", 0.05);
}

TEST(RenamedOps, EveryRowHasASample) {
  std::string text;
  for (const Sample& sample : samples()) text += join(sample.ops, "\n");
  for (const RenameRow& row : rename_rows()) EXPECT_NE(text.find(concat(row.name, "(")), std::string::npos) << row.name;
}

}  // namespace
}  // namespace penstock
