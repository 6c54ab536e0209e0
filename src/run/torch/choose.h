// SPDX-License-Identifier: Apache-2.0
// Chooses the library that computes each matrix product: it is measured once per machine, kept in a file, and written into the program.
#pragma once

#include <map>
#include <string>

#include "penstock/program.h"

namespace penstock {

// The kernel ("mkl", "onednn" or "penstock") for each product. A key such as "f32 256x192x64 nt bias" is rows x columns x inner size, which
// operands are transposed, and what the result starts from.
using KernelChoices = std::map<std::string, std::string>;

// The choices kept for this machine's processor; none where there is no such file or it was made on another processor. Throws Error with
// file:line:column where the file has another form.
KernelChoices read_kernel_choices(const std::string& file);
void write_kernel_choices(const std::string& file, const KernelChoices& choices);

// Floating-point operations that one core does in a second in a square product, by the fastest library: what a step's are a share of.
// Measures for some tens of milliseconds.
double product_rate(DType dtype);

// Sets the attribute "kernel" of every f32 product of the tasks, and measures products that `choices` does not have yet (milliseconds
// each). Returns whether something was measured.
bool choose_kernels(Program& program, KernelChoices& choices);
// The same with choices kept in `file`, whose folder is made where it is missing.
void choose_kernels(Program& program, const std::string& file);

}  // namespace penstock
