// SPDX-License-Identifier: Apache-2.0
// penstock verify of a run's or a checkpoint's folder.
#pragma once

#include <string>

namespace penstock {

// Prints for each checkpoint of a run, or for the one at `folder`, whether it is intact or what is damaged. Returns false where one is
// damaged. Throws Error where there is none.
bool verify_checkpoints(const std::string& folder, bool json);

}  // namespace penstock
