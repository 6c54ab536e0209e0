// Which library computes each matrix product: measured once per machine, kept in a file, and written into the program.
#pragma once

#include <map>
#include <string>

#include "program/program.h"

namespace penstock {

// Kernel ("mkl", "onednn" or "penstock") by product: "f32 256x192x64 nt bias" is rows x columns x inner size, which operands are
// transposed, and what the result starts from.
using KernelChoices = std::map<std::string, std::string>;

// The choices kept for this machine's processor; none where there is no such file or it is another processor's. Throws Error with
// file:line:column where it is no such file.
KernelChoices read_kernel_choices(const std::string& file);
void write_kernel_choices(const std::string& file, const KernelChoices& choices);

// Sets the attribute "kernel" of every f32 product of the tasks, measuring what `choices` does not have yet (milliseconds per product).
// Returns whether something was measured.
bool choose_kernels(Program& program, KernelChoices& choices);
// The same with the choices kept in `file`, whose folder is made where it is missing.
void choose_kernels(Program& program, const std::string& file);

}  // namespace penstock
