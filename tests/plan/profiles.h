// The measured graphs beside the project, with the results of published planners.
#pragma once

#include <filesystem>
#include <string>

#include "base/text.h"
#include "penstock/plan.h"

namespace penstock::test {

inline std::string profile_path(const std::string& name) {
  return concat(PENSTOCK_PROFILES, "/", name);
}
inline bool has_profiles() {
  return std::filesystem::exists(PENSTOCK_PROFILES);
}
inline PlanGraph profile(const std::string& name) {
  return parse_plan_graph(read_file(profile_path(name)), name);
}

}  // namespace penstock::test
