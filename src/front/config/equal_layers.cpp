// SPDX-License-Identifier: Apache-2.0
#include "config/equal_layers.h"

#include <algorithm>
#include <cctype>

#include "base/invariant.h"
#include "config/plan_model.h"
#include "lower/lower.h"

namespace penstock {
namespace {

constexpr std::int64_t kFewLayers = 3;

// "h.12.attn" and "h.3.attn" are alike.
std::string without_numbers(const std::string& name) {
  std::string out;
  for (const char c : name) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!digit) out += c;
    if (digit && (out.empty() || out.back() != '0')) out += '0';
  }
  return out;
}

// The node of few layers that node i of the whole model is like.
std::size_t like(const EqualLayers& layers, std::size_t i) {
  const std::size_t more = layers.names.size() - layers.few_names.size();
  if (i < layers.begin) return i;
  if (i >= layers.begin + layers.period + more) return i - more;
  return layers.begin + (i - layers.begin) % layers.period;
}

// The nodes in the order in which the step's stages are numbered where each node is one.
std::vector<std::string> nodes_in_order(const Graph& step) {
  MergedNodes own;
  for (const std::string& name : nodes_of(step)) own[name] = name;
  return prepare_stages(mark_stages(step, own)).stages;
}

}  // namespace

std::optional<EqualLayers> equal_layers(const Config& config, const ModelRegistry& models) {
  const auto found = config.model.numbers.find("layers");
  if (found == config.model.numbers.end() || found->second <= kFewLayers) return {};
  const auto more = static_cast<std::size_t>(found->second) - kFewLayers;
  EqualLayers out{.few = config};
  out.few.model.numbers["layers"] = kFewLayers;
  out.names = nodes_of(planning_step(config, models, config.train.batch));
  out.few_names = nodes_in_order(planning_step(out.few, models, config.train.batch));
  const std::size_t added = out.names.size() - out.few_names.size();
  if (out.names.size() <= out.few_names.size() || added % more != 0 || out.names.size() > kMostNodes) return {};
  out.period = added / more;
  if (out.few_names.size() < 3 * out.period) return {};
  out.begin = (out.few_names.size() - out.period) / 2;
  // Nodes before the layers have their own names, but need not be traced in the order in which stages are numbered.
  const auto begin = static_cast<std::ptrdiff_t>(out.begin);
  if (!std::is_permutation(out.names.begin(), out.names.begin() + begin, out.few_names.begin())) return {};
  std::copy(out.few_names.begin(), out.few_names.begin() + begin, out.names.begin());
  for (std::size_t i = 0; i < out.names.size(); ++i)
    if (without_numbers(out.names[i]) != without_numbers(out.few_names[like(out, i)])) return {};
  return out;
}

PlanGraph expanded(const EqualLayers& layers, const PlanGraph& few) {
  std::vector<std::vector<PlanEdge>> into(few.nodes.size());  // by node
  for (const PlanEdge& edge : few.edges) into[edge.to].push_back(edge);
  PlanGraph out = few;
  out.nodes.clear();
  out.edges.clear();
  for (std::size_t i = 0; i < layers.names.size(); ++i) {
    const std::size_t of = like(layers, i);
    invariant(few.nodes[of].name == layers.few_names[of], "few layers have the nodes that all were held against");
    out.nodes.push_back(few.nodes[of]);
    out.nodes.back().name = layers.names[i];
    for (const PlanEdge& edge : into[of]) {
      const int from = static_cast<int>(i) - (edge.to - edge.from);
      invariant(from >= 0, "an edge comes from a node before");
      out.edges.push_back({from, static_cast<int>(i), edge.bytes});
    }
  }
  return out;
}

}  // namespace penstock
