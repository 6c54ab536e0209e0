// SPDX-License-Identifier: Apache-2.0
// The version that the program tells, which the build writes (cmake/version.cmake).
#pragma once

namespace penstock {

extern const char* const kVersion;  // "0.2 (commit 0123456789, libtorch 2.13)"

}  // namespace penstock
