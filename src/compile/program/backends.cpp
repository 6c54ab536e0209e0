// SPDX-License-Identifier: Apache-2.0
#include "program/backends.h"

#include <algorithm>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {

const std::vector<BackendInfo>& backends() {
  static const std::vector<BackendInfo> all = {
      {"threads", "of this process"},
      {.name = "gloo",
       .summary = "between processes, through the host's memory",
       .processes = true,
       .host_waits = true,
       .sums_in_any_order = true},
      {.name = "nccl", .summary = "between processes, from device to device, none a cpu", .processes = true, .between_devices = true},
  };
  return all;
}

std::vector<std::string> backend_names() {
  std::vector<std::string> out;
  for (const BackendInfo& row : backends()) out.push_back(row.name);
  return out;
}

const BackendInfo& find_backend(std::string_view name) {
  const auto found = std::ranges::find(backends(), name, &BackendInfo::name);
  if (found != backends().end()) return *found;
  throw Error(concat("there is no backend ", quote(name)), {}, concat("known: ", join(backend_names(), ", ")));
}

}  // namespace penstock
