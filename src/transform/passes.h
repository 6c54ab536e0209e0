// Graph -> graph passes, one per file.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "penstock/ops.h"

namespace penstock {

// Reverse-mode differentiation at the builder's end: appends backward ops for the ops in builder.graph.ops that lie between
// `with_respect_to` and `loss` (a scalar). A backward op has phase backward and its forward op's stage, origin and sequence.
// Cotangents of one value are joined by one n-ary add_n that carries the marks of the value's producer. A tensor the loss does not depend on gets zeros.
std::vector<Tensor> gradients(Tensor loss, std::span<const Tensor> with_respect_to);

// Removes ops whose results nobody reads, in loop bodies too (and loop results nobody reads). Inputs stay.
Graph eliminate_dead_code(const Graph& graph);

// Merges ops of equal name, operands, attributes, stage and phase; in loop bodies too. Random ops are pure in their key and merge too.
Graph eliminate_common_subexpressions(const Graph& graph);

// For each stage named: backward ops of the stage read copies of its forward ops, so that only what enters the stage is kept
// from F to B. Works on a loop body in which every op has its stage (stage/assign.h). Copies have phase backward.
Graph recompute(const Graph& body, const std::vector<std::string>& stages);

// Moves body ops that depend on invariants only (casts of parameters, random keys) before the loop. Constants (no operands) stay.
Graph hoist_invariants(const Graph& step);

}  // namespace penstock
