// SPDX-License-Identifier: Apache-2.0
// Prints the JSON of all commands.
#pragma once

#include <nlohmann/json.hpp>

namespace penstock {

// The version of the format of all objects on standard output. It grows by one when a key is renamed, dropped or gets another type, not for
// a new key.
inline constexpr int kJsonFormat = 1;

// Prints the object, with "format" ahead of its own keys, in one line on standard output. Text that is not UTF-8 is made so.
void print_json(const nlohmann::ordered_json& object);
void print_json(const nlohmann::json& object);

}  // namespace penstock
