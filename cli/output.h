// Every command prints its JSON by this one function.
#pragma once

#include <nlohmann/json.hpp>

namespace penstock {

// The format of all objects on standard output. A key that is renamed, dropped or gets another type makes it one more; a new key does not.
inline constexpr int kJsonFormat = 1;

// The object with "format" ahead of its own keys, in one line on standard output. Text that is not UTF-8 is made so.
void print_json(const nlohmann::ordered_json& object);
void print_json(const nlohmann::json& object);

}  // namespace penstock
