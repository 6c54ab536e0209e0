// SPDX-License-Identifier: Apache-2.0
// Checks of what must hold whatever the user does.
#pragma once

#include <source_location>
#include <string_view>

namespace penstock {

// Ends the process with file, line and `what` where `condition` is false: a bug in Penstock, never a user's mistake.
void invariant(bool condition, std::string_view what, std::source_location where = std::source_location::current());

}  // namespace penstock
