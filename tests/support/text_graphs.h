// Pass tests: graph text in, graph text out.
#pragma once

#include <string>

#include "ir/graph.h"

namespace penstock::test {

// A graph from text without the first line.
inline Graph graph_of(const std::string& text) {
  Graph graph = parse_graph("penstock graph 1\n" + text);
  verify_structure(graph);
  return graph;
}

// Text without the first line, of a graph that a pass made.
inline std::string text_of(const Graph& graph) {
  verify_structure(graph);
  return print_body(graph);
}

}  // namespace penstock::test
