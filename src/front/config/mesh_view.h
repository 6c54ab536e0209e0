// SPDX-License-Identifier: Apache-2.0
// A view of a configuration's mesh: its devices' places, and who holds what of a value by name.
#pragma once

#include <string>

#include "config/compile.h"
#include "report/held_value.h"

namespace penstock {

// `config`: names its axes.
MeshShape mesh_of(const Config& config, const Prepared& prepared);

// `name`: a parameter or another state; a module, whose last forward value is meant; an input of the loop; or "%12", a value of the loop's
// body by the number that layouts as text have. `program`: the training program. Throws Error for anything else (nearest named).
HeldValue held_value(const Config& config, const Prepared& prepared, const Program& program, const std::string& name);

}  // namespace penstock
