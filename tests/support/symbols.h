// SPDX-License-Identifier: Apache-2.0
// Steps and programs executed with symbols instead of numbers: each element of a tensor is a hash of how it came to be. What adds, adds
// hashes, so that neither the order of terms matters nor who adds them; what is done element by element is done so of a piece as of the
// whole. So a program has the symbols of its step if it computes the same.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "penstock/program.h"

namespace penstock::test {

using Symbols = std::vector<std::uint64_t>;  // of the elements, row-major

struct StepSymbols {
  std::map<std::string, Symbols> outputs, states;  // states: as the step leaves them
};
StepSymbols symbols_of(const Graph& step);

// Tells where the program's outputs, or a piece of a state or a copy of one when the step is over, differ from the step's; empty: nowhere.
std::string difference(const Program& program, const StepSymbols& step);

}  // namespace penstock::test
