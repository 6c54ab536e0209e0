// SPDX-License-Identifier: Apache-2.0
// The text of devices.toml, put into the program by the build (cmake/embed.cmake).
#pragma once

#include <string_view>

namespace penstock {

extern const std::string_view kDevicesToml;

}  // namespace penstock
