// SPDX-License-Identifier: Apache-2.0
// The parts of a tensor that the members of an axis have.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "penstock/layout.h"

namespace penstock::test {

// The part that a member has of a tensor that is no term.
at::Tensor cut(const at::Tensor& x, const Layout& layout, std::int64_t members, std::int64_t member);
// The tensor of which the members have these; of what lies flat its elements.
at::Tensor joined(const std::vector<at::Tensor>& parts, const Layout& layout);

}  // namespace penstock::test
