// penstock verify of a folder.
#pragma once

#include <string>

namespace penstock {

// Prints of each checkpoint of a run, or of the one that `folder` is, whether it is intact or what is damaged; false where one is. Throws
// Error where there is none.
bool verify_checkpoints(const std::string& folder, bool json);

}  // namespace penstock
