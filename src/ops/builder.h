// Appends ops to a graph under the current marks (stage, phase, origin, sequence).
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace penstock {

// The marks that new ops get. Scopes save and restore them.
struct Marks {
  std::string stage;
  std::string origin;
  Phase phase = Phase::forward;
  std::int64_t sequence = -1;          // -1: number new ops on
};

class Builder {
 public:
  explicit Builder(std::string name) { graph.name = std::move(name); }

  // Appends the op, with result types as inferred by its definition. Throws Error (types, attributes, unknown op).
  std::vector<ValueId> append(std::string_view name, std::vector<ValueId> operands, Attributes attributes = {});
  // The same for an op without definition, or a loop: result types given.
  std::vector<ValueId> append_typed(Op op, std::vector<TensorType> types);

  Graph graph;
  Marks marks;
  // The builder of the enclosing graph while a loop body is traced. Values of it that the body uses become
  // invariant inputs of the body, in order of first use.
  Builder* parent = nullptr;
  std::int64_t next_sequence = 0;
  // Invariants of a loop body: value of the parent -> input of this graph.
  std::vector<std::pair<ValueId, ValueId>> captured;
};

}  // namespace penstock
