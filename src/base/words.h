// SPDX-License-Identifier: Apache-2.0
// The words that messages and reports have for things.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// A number and its noun in the plural where needed: "1 actor", "2 actors", "3 batches", "4 processes".
std::string counted(std::int64_t count, std::string_view thing);

// The hint for a name that is not known: the names that begin with it (`did you mean "a" or "ab"?`), else the nearest; empty if none is
// near enough to be a typo.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

}  // namespace penstock
