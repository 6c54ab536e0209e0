// SPDX-License-Identifier: Apache-2.0
// Graph -> graph passes, one per file.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "penstock/graph.h"
#include "penstock/ops.h"

namespace penstock {

// Reverse-mode differentiation at the builder's end: appends backward ops for the ops in builder.graph.ops that lie between
// `with_respect_to` and `loss` (a scalar). A backward op has phase backward and its forward op's stage, origin and sequence.
// Cotangents of one value are joined by one n-ary add_n that carries the marks of the value's producer. A tensor the loss does not depend
// on gets zeros.
std::vector<Tensor> gradients(Tensor loss, std::span<const Tensor> with_respect_to);

// Removes ops whose results nobody reads. In a loop it removes results that nobody reads, what only they need, and operands that the body
// then does not read. Inputs of the graph stay.
Graph eliminate_dead_code(const Graph& graph);

// Merges ops of equal name, operands, attributes, result types, stage and phase; in loop bodies too, but not loops. Random ops are pure in
// their key and merge too. A backward op whose forward op was merged takes the sequence of the one that stays.
Graph eliminate_common_subexpressions(const Graph& graph);

// Recomputation. Of forward ops that are computed `again`, and of views of what these make, the backward ops of the same stage read copies,
// so that the results need not be kept from F to B; copies read copies where there are any, else what the forward made. Works on a loop
// body in which every op but constants has its stage (stage/stages.h). A copy stands before the first op that needs it, has phase backward
// and the other marks of its op. Neither has the attribute kRecompute.
Graph recompute(const Graph& body, const std::function<bool(const Op&)>& again);

// The attribute of forward ops of a loop that are to be computed again: true.
inline constexpr const char* kRecompute = "recompute";
// The attribute of forward ops of a loop whose results OFFLOAD moves where a stage has any such op: true. The rest then stays on the
// device.
inline constexpr const char* kOffload = "offload";

// Selective recomputation (Korthikanti et al., 2205.05198): gives kRecompute to the forward ops of the loop that make their results for no
// more flops a byte than the forward needs for what it keeps, as scores of attention, softmax and dropout do, where the stage then keeps no
// more. The loop's ops but constants have stages.
Graph mark_cheap(Graph step);

// The graph without its constrain ops, in loop bodies too: every reader reads what was constrained. It is the graph of the model
// without constraints, down to the sequence numbers, where each value that is constrained is read by its constraint alone; otherwise its
// cotangents are joined by two add_n instead of one.
Graph drop_constraints(const Graph& graph);

// Moves body ops that depend on loop invariants only (casts of parameters, random keys) before the loop, which gets their results as
// operands. Constants (no operands) and views stay: moving them would cost memory and save nothing. Runs after stages are assigned, as it
// takes forward ops away from their backward ops; dead code is left to eliminate_dead_code.
Graph hoist_invariants(const Graph& step);

// The graph without tensors of no element, of which a sum is zero: without such inputs and outputs, but for those that are to be there
// anyway; these are one element of no meaning.
Graph drop_empty(const Graph& graph, const std::vector<bool>& kept_inputs, const std::vector<bool>& kept_outputs);

// A training step whose tables of embeddings are updated by rows: those of more rows than a step has indices, of which lookups by the
// data's indices alone are read, and which sgd without momentum and decay updates. All states have the bits that they would have, but for
// the last gradients of these tables, which stay as they were; the gradients' norm is added up in another order. `lazy`: of all tables that
// are looked up only the rows that the step names move, and what is kept of them, as torch.optim.SparseAdam has it; throws Error where a
// table or its optimiser does not allow that, and where there is none.
Graph update_by_rows(Graph step, bool lazy = false);

// Joins the small all_reduces of what the loop gives, those of one axis and of one stage of the loop, into one right behind the loop.
Graph join_sums(const Graph& step);

}  // namespace penstock
