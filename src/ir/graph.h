// The step graph: SSA over tensors with static shapes. Plain data; what ops mean is in src/ops.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/id.h"
#include "penstock/types.h"

namespace penstock {

using Attribute = std::variant<bool, std::int64_t, double, DType, std::string, std::vector<std::int64_t>, std::vector<double>>;

// Sorted by name, so that equal attributes print and hash alike.
using Attributes = std::map<std::string, Attribute, std::less<>>;

enum class Phase : std::uint8_t { forward, backward };

struct Graph;

struct Op {
  std::string name;                    // ATen's, with its overload where there is one ("add", "sum", "aten::cumsum")
  std::vector<ValueId> operands;
  std::vector<ValueId> results;
  Attributes attributes;
  std::string stage;                   // the user's or planner's mark; empty: to be inferred
  Phase phase = Phase::forward;
  std::string origin;                  // path of the module that made it ("h.0.attn")
  std::int64_t sequence = -1;          // unique per forward op; a backward op carries its forward op's (PyTorch's seq_nr)
  std::shared_ptr<const Graph> body;   // of `accumulate` only
};

struct Value {
  TensorType type;
  std::string name;                    // inputs have one; of op results it is only a hint and not printed
};

// Ops stand in an order in which every operand is defined before its use.
struct Graph {
  std::string name;
  std::vector<Value> values;
  std::vector<ValueId> inputs;
  std::vector<Op> ops;
  std::vector<ValueId> outputs;
  // Of a step: the first `state` inputs are the training state, and output i is the next value of input i.
  int state = 0;
  // Names of the outputs after the state ("loss"); as many as there are, or none.
  std::vector<std::string> output_names;

  const TensorType& type(ValueId value) const { return values[value.index()].type; }
  ValueId add_value(TensorType type, std::string name = {});
  ValueId add_input(TensorType type, std::string name);
};

// Attribute access. The first form throws Error where it is missing or of another kind.
template <class T>
const T& attribute(const Op& op, std::string_view name);
template <class T>
T attribute_or(const Op& op, std::string_view name, T otherwise);

// The op that defines each value (none for inputs), indexed by ValueId.
std::vector<OpId> producers(const Graph& graph);
// How many times each value is read by ops and outputs, indexed by ValueId.
std::vector<int> use_counts(const Graph& graph);

// SSA order, ids in range, state and output names in number. Throws Error naming op and value.
// Types are checked by verify() of ops/verify.h, which calls this.
void verify_structure(const Graph& graph);

// A hash over structure, types and attributes: no names, no origin, sequence or stage.
std::uint64_t structural_hash(const Graph& graph);
// Equal structure, types and attributes (what structural_hash hashes).
bool structurally_equal(const Graph& a, const Graph& b);

// Text form. print(parse(print(g))) == print(g); op results are numbered in order, inputs keep their names.
std::string print(const Graph& graph);
// One graph without the "penstock graph 1" line (as it stands inside a program).
std::string print_body(const Graph& graph, int indent = 0);
// Throws Error with file:line:column. Checks only syntax and names: call verify() for the rest.
Graph parse_graph(std::string_view text, std::string_view file = "graph");

std::string text_of(const Attribute& attribute);

}  // namespace penstock
