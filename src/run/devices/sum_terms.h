// SPDX-License-Identifier: Apache-2.0
// Sums of what the members of a group hold, with the same bits wherever they are made.
#pragma once

#include <cstddef>
#include <span>

#include "penstock/types.h"

namespace penstock {

// total = terms[0] + terms[1] + ..., in this order, of the `bytes` of each term from `begin` on: numbers of f32, f64, bf16, i32 or i64.
// bf16 is added up in f32 and rounded once. begin and bytes are multiples of kAlignment. `total` may be the same part of one of the terms.
void sum_terms(DType dtype, std::span<const std::byte* const> terms, std::size_t begin, std::size_t bytes, std::byte* total);

}  // namespace penstock
