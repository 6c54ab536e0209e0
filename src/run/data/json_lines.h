// SPDX-License-Identifier: Apache-2.0
// Files named *.jsonl, whose lines are objects of JSON. Lines may have further keys than are read.
#pragma once

#include <functional>
#include <string>

#include "base/json.h"
#include "base/steady_file.h"

namespace penstock {

// Calls `read` with each line that is not blank and its place, "FILE:LINE". `form` says for hints what a line is. Throws Error (file and
// line) for a line that is no JSON.
void read_lines(const SteadyFile& file, const std::string& form,
                const std::function<void(const JsonNode& line, const std::string& place)>& read);

// Throws Error where the line has no such key, but one that is nearly it.
void check_misspelt(const JsonNode& line, const char* key);

}  // namespace penstock
