// Keys of the lines of .jsonl files. Lines may have further ones than are read.
#pragma once

#include "base/json.h"

namespace penstock {

// Throws Error where the line has no such key, but one that is nearly it.
void check_misspelt(const JsonNode& line, const char* key);

}  // namespace penstock
