// SPDX-License-Identifier: Apache-2.0
// Where the devices of a run are, and what they send each other over (pipeline.backend): a list with a row for each.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock {

struct BackendInfo {
  std::string name;
  std::string summary;             // a few words
  bool processes = false;          // each device is a process of its own; else all are threads of this one
  bool host_waits = false;         // the host waits for every transfer
  bool sums_in_any_order = false;  // of three and more members: one device that adds up alone has other bits
  bool between_devices = false;    // tensors go from a device's own memory to another's, so none is a cpu
};
const std::vector<BackendInfo>& backends();  // the first is the default
std::vector<std::string> backend_names();
// The one of that name. Throws Error for an unknown name.
const BackendInfo& find_backend(std::string_view name);

}  // namespace penstock
