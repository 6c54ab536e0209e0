// SPDX-License-Identifier: Apache-2.0
// The kernels of cuda/kernels.cu, emulated.
#pragma once

#include <cstdint>
#include <span>

#include "torch/kernel_argument.h"

namespace penstock::emulate {
struct Kernel;
}

namespace penstock::standin {

// Throws c10::Error where there is none of that name.
void* find_kernel(const char* name);
// One that was compiled as the program runs.
void* enter_compiled(const emulate::Kernel& kernel, const char* name);
// Launches a kernel as work of the stream, which keeps the memory that the arguments name until it has run. Throws c10::Error for a grid
// that no GPU takes, or for arguments that are not the kernel's.
void launch_kernel(void* kernel, const KernelGrid& grid, std::span<const KernelArgument> arguments, int stream);

}  // namespace penstock::standin

// Returns how often a kernel was launched, for tests.
extern "C" std::int64_t penstock_standin_launches(const char* name);
