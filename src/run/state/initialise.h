// SPDX-License-Identifier: Apache-2.0
// Initial values of parameters: draws that depend on the run's seed and the parameter's name only, never on the device that holds it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "penstock/trace.h"

namespace penstock {

// Fills `out` with the elements of the flattened parameter from `begin` on: all of them, or a range. Normal draws are counter-based:
// element i of a parameter is a function of (seed, name, i), drawn in f64 and rounded to the dtype, so f32 and f64 runs start alike. Throws
// Error for normal draws of a dtype that is not floating.
void initialise(const ParameterSpec& spec, std::int64_t seed, std::span<std::byte> out, std::int64_t begin = 0);

// Stores `value`, rounded to nearest even, as element `index` of `out`.
void store_element(DType dtype, double value, std::span<std::byte> out, std::size_t index);
double load_element(DType dtype, std::span<const std::byte> bytes, std::size_t index);

}  // namespace penstock
