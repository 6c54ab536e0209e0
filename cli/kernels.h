// Which library computes each matrix product of a command's programs.
#pragma once

#include "program/program.h"
#include "runtime/config.h"

namespace penstock {

// As config.run.kernels says, on the controller and before anyone loads the program: its hash then holds what was chosen.
void choose_kernels(const Config& config, Program& program);

}  // namespace penstock
