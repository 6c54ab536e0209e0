// SPDX-License-Identifier: Apache-2.0
// The measured graphs beside the project, with the results of published planners, and small ones of the same forms that are always there.
#pragma once

#include <filesystem>
#include <string>

#include "base/text.h"
#include "penstock/plan.h"
#include "support/paths.h"

namespace penstock::test {

inline std::string profile_path(const std::string& name) {
  return concat(profiles_folder(), "/", name);
}
inline bool has_profiles() {
  return std::filesystem::exists(profiles_folder());
}
inline PlanGraph profile(const std::string& name) {
  return parse_plan_graph(read_file(profile_path(name)), name);
}

inline std::string stand_in_path(const std::string& name) {
  return concat(tests_folder(), "/golden/plan/graphs/", name);
}
inline PlanGraph stand_in(const std::string& name) {
  return parse_plan_graph(read_file(stand_in_path(name)), name);
}

}  // namespace penstock::test
