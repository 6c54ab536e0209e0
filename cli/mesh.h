// SPDX-License-Identifier: Apache-2.0
// JSON that compile --explain and mesh share.
#pragma once

#include <nlohmann/json.hpp>

#include "report/mesh_traffic.h"

namespace penstock {

nlohmann::ordered_json json_of(const AxisTraffic& axis);

}  // namespace penstock
