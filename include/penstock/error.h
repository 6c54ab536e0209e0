// SPDX-License-Identifier: Apache-2.0
// The one way Penstock reports a user's mistake.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace penstock {

// A user's mistake. what() is the whole message without the leading "error: ":
//   <what>
//     <detail>            one line each: where it was found, the values, the rule
//     hint: <way out>
// `what` starts with the place where there is one ("plan.csv:3:7: ...").
class Error : public std::runtime_error {
 public:
  // Joins the three to the message above; the hint stands without its "hint: ".
  explicit Error(const std::string& what, const std::vector<std::string>& details = {}, const std::string& hint = {});
};

}  // namespace penstock
