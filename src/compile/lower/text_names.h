// SPDX-License-Identifier: Apache-2.0
// The words of the text form of drafts that stand for enumerators, in their order.
#pragma once

#include <array>
#include <string_view>

namespace penstock::draft_text {

inline constexpr std::array<std::string_view, 3> kSources = {"computed", "data", "state"};
inline constexpr std::array<std::string_view, 2> kHoldings = {"whole", "flat"};
inline constexpr std::array<std::string_view, 3> kModes = {"store", "add", "update"};
inline constexpr std::string_view kPlaceholder = "place";
inline constexpr std::string_view kTogether = "together";

}  // namespace penstock::draft_text
