// SPDX-License-Identifier: Apache-2.0
// The step graph: SSA over tensors with static shapes. Plain data; what ops mean is in src/step/ops.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "penstock/id.h"
#include "penstock/types.h"

namespace penstock {

// The value of an op's attribute: a number, a dtype, a word, or a list of numbers.
using Attribute = std::variant<bool, std::int64_t, double, DType, std::string, std::vector<std::int64_t>, std::vector<double>>;

// Sorted by name, so that equal attributes print and hash alike.
using Attributes = std::map<std::string, Attribute, std::less<>>;

// Whether an op was traced as itself or made by differentiation.
enum class Phase : std::uint8_t { forward, backward };

struct Graph;

// One operation of a graph, with the marks that stages are cut by. Its meaning is the OpDefinition of its name.
struct Op {
  std::string name;                   // ATen's, with its overload where there is one ("add", "sum", "aten::cumsum")
  std::vector<ValueId> operands;      // in the order of the op's definition; a value may stand twice
  std::vector<ValueId> results;       // no other op has these
  Attributes attributes;              // what else the op's meaning depends on
  std::string stage;                  // the user's or planner's mark; empty: to be inferred
  Phase phase = Phase::forward;       // backward: differentiation made it
  std::string origin;                 // path of the module that made it ("h.0.attn")
  std::int64_t sequence = -1;         // unique per forward op; a backward op carries its forward op's (PyTorch's seq_nr)
  std::shared_ptr<const Graph> body;  // the loop body; only for `accumulate`
};

// A tensor of a graph: an input, or the result of one op.
struct Value {
  TensorType type;   // static: known when the graph is made
  std::string name;  // an input's name; of op results it is only a hint and not printed
};

// Ops stand in an order in which every operand is defined before its use.
struct Graph {
  std::string name;                 // stands in the text form and in errors
  IdVector<ValueId, Value> values;  // inputs and results, by id
  std::vector<ValueId> inputs;      // in the order in which the caller gives them
  IdVector<OpId, Op> ops;           // in order of execution
  std::vector<ValueId> outputs;     // what the graph gives, in order; an input may be one
  // In a step graph the first `state` inputs are the training state, and output i is the next value of input i. 0 in other graphs.
  int state = 0;
  // Names of the outputs after the state ("loss"); one for each, or none at all.
  std::vector<std::string> output_names;

  const TensorType& type(ValueId value) const { return values[value].type; }  // of a value of this graph
  ValueId add_value(TensorType type, std::string name = {});                  // appends a value, for an op that is still to be added
  ValueId add_input(TensorType type, std::string name);                       // appends a value that is the last input
};

// Attribute access. Throws Error where the attribute is missing (attribute only) or of another kind.
template <class T>
const T& attribute(const Op& op, std::string_view name);
template <class T>
T attribute_or(const Op& op, std::string_view name, T otherwise);

// A graph of the same name, number of states and names of outputs, without values.
Graph empty_like(const Graph& graph);
// The types of these values, in order.
std::vector<TensorType> types_of(const Graph& graph, const std::vector<ValueId>& values);
// The op that defines each value (none for inputs).
IdVector<ValueId, OpId> producers(const Graph& graph);
// Returns how many times each value is read by ops and outputs.
IdVector<ValueId, int> use_counts(const Graph& graph);

// By value: whether `wanted` are made of it, themselves among them. The walk back stops at what is `given` (by value; empty: at inputs).
IdVector<ValueId, bool> needed_for(const Graph& graph, const std::vector<ValueId>& wanted, const IdVector<ValueId, bool>& given = {});

// Checks SSA order, that ids are in range, shapes countable and attributes printable, and the number of operands and results of loops and
// of states. Throws Error naming graph, op and value. Types are checked by verify() of ops/verify.h, which calls this.
void verify_structure(const Graph& graph);

// A hash over structure, types and attributes: no names of graphs, values and outputs, no marks (stage, phase, origin, sequence).
std::uint64_t structural_hash(const Graph& graph);
// Equal structure, types and attributes (what structural_hash hashes).
bool structurally_equal(const Graph& a, const Graph& b);

// Text form. print(parse(print(g))) == print(g); op results are numbered in order, inputs keep their names.
std::string print(const Graph& graph);
// One graph without the "penstock graph 1" line (as it stands inside a program); every line but the first is indented by `indent` blanks.
std::string print_body(const Graph& graph, int indent = 0);
// Throws Error with file:line:column. Checks only syntax and names: call verify() for the rest.
Graph parse_graph(std::string_view text, std::string_view file = "graph");

std::string text_of(const Attribute& attribute);         // as it stands in the text form
std::string_view kind_name(const Attribute& attribute);  // "bool", "i64", ..., "list of f64"
// Whether `name` stands for a mark in the text form, so that no attribute can have it.
bool is_mark(std::string_view name);
// "%x" or, where the name has other characters than Cursor::name() reads, "%\"x y\"".
std::string shown_name(std::string_view name);
// Whether all sizes are at least 0 and the bytes fit into 63 bits.
bool is_countable(const TensorType& type);

// Throws attribute()'s Error: the attribute is missing (`found` null), or of another kind than `wanted`.
[[noreturn]] void fail_attribute(const Op& op, std::string_view name, std::string_view wanted, const Attribute* found);

template <class T>
const T& attribute(const Op& op, std::string_view name) {
  const auto it = op.attributes.find(name);
  const Attribute* found = it == op.attributes.end() ? nullptr : &it->second;
  if (!found || !std::holds_alternative<T>(*found)) fail_attribute(op, name, kind_name(Attribute(T())), found);
  return std::get<T>(*found);
}

template <class T>
T attribute_or(const Op& op, std::string_view name, T otherwise) {
  return op.attributes.contains(name) ? attribute<T>(op, name) : otherwise;
}

}  // namespace penstock
