// SPDX-License-Identifier: Apache-2.0
// Traits of the schedules in the registry, by name. Throws Error for an unknown one.
#pragma once

#include <string_view>

namespace penstock {

// Its tables have I and W in place of B.
bool splits_backward(std::string_view schedule);
// Its tables are of models that are cut around their attentions, each of which is a stage: of one more than twice as many stages.
bool has_attention_apart(std::string_view schedule);
// Whether it takes an option, by its flag: "--unit".
bool takes(std::string_view schedule, std::string_view flag);

}  // namespace penstock
