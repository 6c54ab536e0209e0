// SPDX-License-Identifier: Apache-2.0
// Every command of the program, for a user's own models.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "penstock/trace.h"

namespace penstock {

// Runs the command line over these models and the ones Penstock brings. Returns the exit code: 0, 1 (the user's
// mistake, printed) or 2 (wrong usage).
int run(int argc, char** argv, const ModelRegistry& models = {});

}  // namespace penstock
