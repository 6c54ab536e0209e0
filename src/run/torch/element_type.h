// SPDX-License-Identifier: Apache-2.0
// The numbers that tell a kernel what its data are; nvcc reads this, too.
#pragma once

enum ElementType : int { kF32, kBf16, kF16 };
