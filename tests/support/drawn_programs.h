// SPDX-License-Identifier: Apache-2.0
// Programs that lowering makes of what is drawn: the same of the same random numbers.
#pragma once

#include <optional>

#include "penstock/program.h"
#include "support/random_schedule.h"

namespace penstock::test {

// A random table for tied weights or branches, some of whose micro-batches run on other actors, which then have copies of states.
Program of_random_table(Random& random);
// Groups of devices that hold state alike, in shares, or both.
Program of_groups(Random& random);
// A window of steps, or one, on a mesh, maybe with slices, shares, workers or recomputation. Nothing where what was drawn does not fit.
std::optional<Program> of_mesh(Random& random);
// Micro-batches of two shapes.
Program of_classes(Random& random);

}  // namespace penstock::test
