// SPDX-License-Identifier: Apache-2.0
// Formulas of what ops compute of one element, as expressions of C (cuda/chain.cuh).
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "penstock/op.h"

namespace penstock {

// The expression of one element of the op's result, of operands called a, b, c and so on, of these dtypes: in f32, of bool and integers in
// their own, and not yet rounded to `type`, the result's. None: generated kernels do not compute it.
std::optional<std::string> formula_of(const Op& op, std::span<const c10::ScalarType> operands, c10::ScalarType type);

// The expression with the operands' own expressions, names or literals, in the place of a, b, c and so on.
std::string with_operands(std::string_view formula, std::span<const std::string> operands);

// The expression, of f32, rounded to the dtype where that has lower precision.
std::string rounded(const std::string& expression, c10::ScalarType type);

// Returns the name in C of the type of an element of the dtype in memory.
std::string element_name(c10::ScalarType type);
bool is_real(c10::ScalarType type);  // f32, bf16 or f16

}  // namespace penstock
