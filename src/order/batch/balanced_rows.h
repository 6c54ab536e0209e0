// SPDX-License-Identifier: Apache-2.0
// Divides samples that share rows, in any number, into rows of nearly equal work.
#pragma once

#include <cstddef>
#include <vector>

namespace penstock {

// Indices of the samples of each row: the longest first into the row with the least, and then samples leave the longest row, alone or in
// exchange for a shorter one, as long as that makes the longer of the two rows shorter. No row is empty where there are enough samples.
std::vector<std::vector<std::size_t>> balanced_rows(const std::vector<double>& work, std::size_t rows);

}  // namespace penstock
