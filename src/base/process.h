// SPDX-License-Identifier: Apache-2.0
// Processes of this machine, by a text that names one for good.
#pragma once

#include <string>

namespace penstock {

// Names this process, to whoever is on the same machine; empty where the system has no /proc.
std::string this_process();
// Whether the process that this text names has ended. False for one of another machine or container, of which nothing is known.
bool has_ended(const std::string& process);

}  // namespace penstock
