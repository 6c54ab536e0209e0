// SPDX-License-Identifier: Apache-2.0
#include "penstock/graph.h"
#include "fuzz/fixpoint.h"
#include "transform/passes.h"

using namespace penstock;

namespace {

// False where it throws Error.
bool is_sound(const Graph& graph) {
  try {
    verify_structure(graph);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto graph = fuzz::read_back(
      fuzz::as_text(data, size), [](std::string_view text) { return parse_graph(text); }, [](const Graph& g) { return print(g); });
  if (!graph || !is_sound(*graph)) return 0;
  // A sound graph stays sound, whatever its ops are called.
  invariant(structural_hash(*graph) == structural_hash(parse_graph(print(*graph))), "the structural hash depends on the text");
  invariant(is_sound(eliminate_dead_code(*graph)), "dead code elimination broke a graph");
  invariant(is_sound(eliminate_common_subexpressions(*graph)), "common subexpression elimination broke a graph");
  return 0;
}
