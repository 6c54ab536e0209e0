// SPDX-License-Identifier: Apache-2.0
// The places of samples in the rows of a batch, and the ports that say so (Model::Batch).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace penstock {

// Where a sample stands in a row of tokens and, of a pair, in one of inputs.
struct RowPlace {
  std::int64_t begin = 0, length = 0;
  std::int64_t input_begin = 0, input_length = 0;
};

// Fills the row of port "positions", "ranges", "input_ranges" or "memory_ranges", in which these samples stand; what is behind them is
// padding. False for any other port. Throws Error where the samples have no room in it.
bool fill_row_port(std::string_view port, std::span<const RowPlace> places, std::span<std::int64_t> out);

}  // namespace penstock
