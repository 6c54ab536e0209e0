// SPDX-License-Identifier: Apache-2.0
// Chains: ops that follow each other in a task, of which one generated kernel computes all (docs/gpu.md). Their values have the same number
// of elements. A sum, mean or largest over the last dims makes rows of these: then some values have one element for each row.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "torch/kernel.h"
#include "torch/kernel_compiler.h"

namespace penstock {

// Where elements lie that are numbered in row-major order: dims, the slowest first, of which none has the size 1 and none can be merged.
struct Spread {
  struct Dim {
    std::int64_t size = 0, stride = 0;
    bool operator==(const Dim&) const = default;
  };
  std::vector<Dim> dims;
  bool operator==(const Spread&) const = default;
};
Spread spread_of(const at::Tensor& x);

// An op as it would be bound by itself.
struct ChainOp {
  const Op* op = nullptr;
  std::size_t index = 0;  // of the graph's ops
  std::vector<at::Tensor> operands;
  std::vector<ValueId> roots;  // by operand: the value that it is a view of, or itself
  at::Tensor result;
  enum class Kind : std::uint8_t { number, formula, sum, mean, amax } kind = Kind::formula;
  std::string formula = {};  // chain_formulas.h; of a number itself
  bool by_row = false;       // one element of the result for each row
};

// Ops of which a chain may be made, as they are bound.
struct ChainOps {
  std::vector<ChainOp> ops;
  std::int64_t elements = 0, width = 0;  // of a row; 0: not known yet
};
// Adds the op, of which the first six fields are given; false, and nothing is changed, where it does not fit behind those before it.
bool extend(ChainOps& chain, ChainOp next);

// One value that the kernel of a chain computes. Operands come before what reads them.
struct ChainNode {
  enum class Kind : std::uint8_t { operand, number, formula, sum, mean, amax } kind;
  std::string op, formula = {};
  std::vector<std::size_t> operands = {};  // nodes
  at::ScalarType type = at::kFloat;        // to which it is rounded
  bool by_row = false;
  std::optional<Spread> place = {};  // operands: where it is read; others: where it is written, none: nowhere
};
struct Chain {
  std::vector<ChainNode> nodes;
  std::int64_t elements = 0, width = 0;  // 0: no rows
  int at_once = 1;                       // elements that a thread has at a time, where they lie one behind the other
};
struct PlacedChain {
  Chain chain;
  std::size_t ops = 0;             // of which it is made
  std::vector<at::Tensor> memory;  // of nodes with a place, in order
};
// The longest chain of the first ops, of two at least. `last_read`: by value, the last op that reads it. Written is what an op behind the
// chain reads, and only where no thread can read what another has written: a result lies over an operand where each thread writes what it
// alone reads, or not at all. None: the first op is to be bound by itself.
std::optional<PlacedChain> longest_chain(const ChainOps& chain, std::span<const std::size_t> last_read);

// The call that launches the chain's kernel; none where the device has no compiler. Throws c10::Error with that compiler's words.
Bound bind_chain(const PlacedChain& placed, KernelCompiler& compiler, c10::Device device);

}  // namespace penstock
