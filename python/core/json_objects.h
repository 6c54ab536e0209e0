// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <nlohmann/json_fwd.hpp>

namespace penstock {

// The value as Python's own dicts, lists, numbers and texts; null is None. Throws as pybind11 does for text that is not UTF-8.
pybind11::object object_of(const nlohmann::ordered_json& value);

}  // namespace penstock
