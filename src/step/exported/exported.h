// SPDX-License-Identifier: Apache-2.0
// A module of another framework as its exporter wrote it: the joint forward and backward graph of one micro-batch as text, and a header
// that says what the graph's inputs and outputs are. docs/pytorch.md describes the form.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/graph.h"

namespace penstock {

struct ExportedInput {
  enum class Role : std::uint8_t {
    parameter,
    buffer,  // state that is no parameter: running statistics, tables, constants
    split,   // of the batch's samples, which lie along dim 0
    whole,   // of the batch, and the same for all its micro-batches
  };
  std::string name;  // of state as in the module's state_dict()
  Role role = Role::parameter;
  bool trained = false;              // a parameter: whether there is a gradient for it
  std::vector<std::string> aliases;  // other names of the same tensor

  bool is_data() const { return role == Role::split || role == Role::whole; }
};

struct ExportedOutput {
  enum class Role : std::uint8_t { loss, buffer, output, gradient };
  std::string name;  // of the state that it is the next value or the gradient of, or of a result
  Role role = Role::loss;
};

// A size that an export left open: that of one dim of an input.
struct ExportedSymbol {
  std::string name;  // as in the text: "s0"
  std::string input;
  std::int64_t dim = 0;
  std::int64_t example = 1;  // the size with which the module was exported
  std::int64_t least = 0, most = 0;
};

// A condition on sizes that the export assumed beside their bounds: two expressions and the relation between them (==, !=, <, <=, > or >=).
struct ExportedCondition {
  std::string left, relation, right;
};

struct Exported {
  std::string model;      // the module's class, for messages
  std::string framework;  // "2.13.0", of torch
  std::vector<ExportedSymbol> symbols;
  std::vector<ExportedCondition> conditions;
  std::string samples;       // of a micro-batch: a number, or an expression of symbols
  bool loss_is_sum = false;  // the losses of micro-batches add up to the batch's; else that is their mean
  std::vector<ExportedInput> inputs;
  std::vector<ExportedOutput> outputs;
  std::string text;     // the graph, with expressions of symbols in braces for sizes
  bool growth = false;  // in the text, a number that depends on the samples stands beside that of twice as many: {6.0|12.0}
};

using Sizes = std::map<std::string, std::int64_t, std::less<>>;  // by symbol

// Throws Error, with the place in `file`, for a header that is not of this form.
Exported read_exported(std::string_view header, std::string text, const std::string& file = "exported");

// The sizes at which the module was exported.
Sizes example_sizes(const Exported& exported);
// The value of an expression of + - * // % max min, parentheses, whole numbers and symbols, as Python computes it. Throws Error.
std::int64_t evaluate_size(std::string_view expression, const Sizes& sizes);
// Which of two numbers: that of the samples of the export, or of twice as many.
enum class Samples : std::uint8_t { once, twice };
// The text with numbers in place of its expressions, and one in place of two. Throws Error naming the expression.
std::string with_sizes(std::string_view text, const Sizes& sizes, Samples samples = Samples::once);
// The graph for these sizes, whose inputs and outputs are checked against the header. Throws Error also for sizes that the export does not
// allow.
Graph joint_graph(const Exported& exported, const Sizes& sizes, Samples samples = Samples::once);

}  // namespace penstock
