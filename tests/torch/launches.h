// SPDX-License-Identifier: Apache-2.0
// The launches of our own kernels that the stand-in was given.
#pragma once

#include <cstdint>

namespace penstock::test {

// How often the kernel of that name was launched in this process; a replay launches none.
std::int64_t launches(const char* kernel);

}  // namespace penstock::test
