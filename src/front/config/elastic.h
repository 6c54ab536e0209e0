// SPDX-License-Identifier: Apache-2.0
// A run's layout on fewer devices than it was configured for.
#pragma once

#include <string>
#include <vector>

#include "config/compile.h"
#include "config/config.h"

namespace penstock {

// How a run can be laid out: another configuration, and the devices that share the work of each of its actors, without the members of the
// axes; none: as it is configured.
struct RunLayout {
  Config config;
  std::vector<int> groups;
};

// The ways of `config` on at most so many devices, with the same batch: as it is configured where these are enough; else actors with fewer
// devices each, or fewer actors. Which of them can be compiled is for who tries. None: each needs more devices.
// A layout by a plan or by workers of their own stays as it is, however many devices there are.
std::vector<RunLayout> layouts_on(const Config& config, int devices);

// prepare() of this layout. Throws Error where model, schedule and batch do not fit it.
Prepared prepare(const RunLayout& layout, const ModelRegistry& models);

// "2 actors of 2, 1 devices".
std::string text_of(const RunLayout& layout);

}  // namespace penstock
