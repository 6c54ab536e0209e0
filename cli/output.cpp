// SPDX-License-Identifier: Apache-2.0
#include "cli/output.h"

#include <cstdio>

namespace penstock {

void print_json(const nlohmann::ordered_json& object) {
  nlohmann::ordered_json out = {{"format", kJsonFormat}};
  out.update(object);
  std::printf("%s\n", out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

void print_json(const nlohmann::json& object) {
  print_json(nlohmann::ordered_json(object));
}

}  // namespace penstock
