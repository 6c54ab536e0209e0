// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace penstock {

void bind_plan_requests(pybind11::module_& module);

}  // namespace penstock
