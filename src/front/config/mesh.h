// SPDX-License-Identifier: Apache-2.0
// The axes of the mesh inside an actor, and which dims of a model are split over them.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "penstock/layout.h"
#include "penstock/trace.h"

namespace penstock {

// The axes over which tensors are split, in the order in which they are put if the configuration does not say another.
const std::vector<std::string>& layout_axes();
// All axes, from the outermost on: pipe, data, local and those; and the key of [pipeline] that says how many members one has.
std::vector<std::string> all_axes();
std::string members_key(const std::string& axis);
[[noreturn]] void fail_unknown_axis(const std::string& place, const std::string& name, const std::map<std::string, std::string>& names);

// The axes of more than one member, in the order of the mesh, with the dims of the model that are split over each. Where there is one, or
// where [layout] is not the default (an axis that is chosen has no dims yet), throws Error: a dim that the model does not have, an axis
// over which nothing is split, a dim with fewer units than members. Stages of the names that [layout.STAGE] says need not be there.
std::vector<LayoutAxis> axes_of(const Config& config, const Model& model);

}  // namespace penstock
