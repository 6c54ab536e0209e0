// SPDX-License-Identifier: Apache-2.0
#include "program/graph_facts.h"

#include <utility>

#include "base/hash.h"
#include "ops/verify.h"

namespace penstock {

TaskGraph::TaskGraph(Graph graph) : graph_(std::make_shared<const Graph>(std::move(graph))), facts_(std::make_shared<const GraphFacts>()) {}

std::uint64_t structural_hash(const TaskGraph& graph) {
  return graph.facts().structural_hash.get([&] { return structural_hash(*graph); });
}

void verify(const TaskGraph& graph) {
  graph.facts().verified.get([&] {
    verify(*graph);
    return true;
  });
}

std::uint64_t text_hash(const TaskGraph& graph) {
  return graph.facts().text_hash.get([&] {
    Hash hash;
    hash.add(print_body(*graph));
    return hash.value();
  });
}

const ScratchPlan& plan_scratch(const TaskGraph& graph) {
  return graph.facts().scratch.get([&] { return plan_scratch(*graph); });
}

}  // namespace penstock
