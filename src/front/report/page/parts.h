// SPDX-License-Identifier: Apache-2.0
// The parts of a page: the files of this folder, as the build put them into the program.
#pragma once

#include <string_view>

namespace penstock::page_parts {

extern const std::string_view style, body, script;

}  // namespace penstock::page_parts
