// SPDX-License-Identifier: Apache-2.0
// The names that other systems have for a configuration's keys.
#pragma once

#include <string>
#include <string_view>

namespace penstock {

// The name of the key, "learning_rate", that the word means elsewhere: "lr"; also with '-' for '_'. "" where none is known.
std::string key_called_elsewhere(std::string word);

// The value that the word means elsewhere: "fp32" -> "f32", "gpu" -> "cuda". "" where none is known.
std::string value_called_elsewhere(const std::string& word);

}  // namespace penstock
