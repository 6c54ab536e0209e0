// SPDX-License-Identifier: Apache-2.0
// Elements of tensors, put one behind the other by slices, reshapes and cats.
#pragma once

#include <vector>

#include "penstock/ops.h"
#include "program/piece.h"

namespace penstock {

// Elements from <= i < from + count of the flattened tensor `piece` of a list, one copy behind the other: `to` does not count. Copies of
// one tensor ascend in it. Returns them in this shape. Where copies repeat in equal steps, as the rows of a piece of columns do, one slice
// takes all of them.
Tensor gather_elements(const std::vector<Tensor>& tensors, const std::vector<PieceCopy>& copies, const Shape& shape);

}  // namespace penstock
