// SPDX-License-Identifier: Apache-2.0
// Random valid graphs, and the expressions that their outputs compute.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "penstock/graph.h"

namespace penstock::test {

// Ops of made-up names with random attributes, marks and numbers of results, drawn from so few choices that equal ops occur; with
// `loops`, accumulate too. Forward ops come first, then backward ones; every op with operands has a stage, "a", "b" or "c".
Graph random_graph(std::mt19937_64& random, bool loops);

// For each output a hash of its expression: op names, attributes and result types down to the inputs. A pass keeps it if it only removes,
// merges, copies or moves ops.
std::vector<std::uint64_t> output_expressions(const Graph& graph);

}  // namespace penstock::test
