// SPDX-License-Identifier: Apache-2.0
#include "penstock/error.h"

namespace penstock {
namespace {

std::string message(const std::string& what, const std::vector<std::string>& details, const std::string& hint) {
  std::string out = what;
  for (const std::string& detail : details) out += "\n  " + detail;
  if (!hint.empty()) out += "\n  hint: " + hint;
  return out;
}

}  // namespace

Error::Error(const std::string& what, const std::vector<std::string>& details, const std::string& hint)
    : std::runtime_error(message(what, details, hint)) {}

}  // namespace penstock
