// SPDX-License-Identifier: Apache-2.0
// Helpers for tests of passes: graph text in, graph text out.
#pragma once

#include <string>

#include "penstock/graph.h"

namespace penstock::test {

// The graph that the text, without its first line, describes.
inline Graph graph_of(const std::string& text) {
  Graph graph = parse_graph("penstock graph 1\n" + text);
  verify_structure(graph);
  return graph;
}

// A step whose loop has this body, over x (split) and w (invariant).
inline Graph step_with(const std::string& body) {
  return parse_graph(
      "penstock graph 1\n"
      "graph @step(%x: f32[4,3], %w: f32[3]) -> (f32[]) {\n"
      "  %0: f32[] = accumulate(%x, %w) {microbatches=2, split=1} (%x: f32[2,3], %w: f32[3]) -> (f32[]) {\n" +
      body + "  }\n  return %0\n}\n");
}

// The text, without its first line, of a graph that a pass made.
inline std::string text_of(const Graph& graph) {
  verify_structure(graph);
  return print_body(graph);
}

}  // namespace penstock::test
