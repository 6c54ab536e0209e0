// SPDX-License-Identifier: Apache-2.0
// The expected result of a collective, computed directly.
#pragma once

#include <cstddef>
#include <vector>

#include "penstock/program.h"

namespace penstock::test {

// The result of member `member`, where member m gave given[m]; empty for the member that gives a broadcast. `dtype`: the type that is
// summed, f32, f64, i32 or i64, in the order of the members. `root`: the member that gives a broadcast.
std::vector<std::byte> collective_result(Opcode opcode, DType dtype, std::size_t root, std::size_t member,
                                         const std::vector<std::vector<std::byte>>& given);

}  // namespace penstock::test
