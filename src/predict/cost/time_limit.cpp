// SPDX-License-Identifier: Apache-2.0
#include "cost/time_limit.h"

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {

void fail_late(const std::string& who, const std::string& graph, const TimeLimit& limit) {
  throw Error(concat(who, " has no plan of ", graph, " within ", number(limit.seconds()), " s"), {},
              "more --seconds, or planner best, which has one at any time");
}

}  // namespace penstock
