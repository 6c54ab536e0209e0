// SPDX-License-Identifier: Apache-2.0
// The devices that stages compute on, by the names that configurations have for them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

struct DeviceName {
  std::string kind;          // of device_kinds()
  std::optional<int> index;  // of a card; none: which one, the process's own place on its host says
};

// "cpu", "cuda" and "standin". docs/gpu.md says what each is.
std::vector<std::string> device_kinds();

// A kind, or one of several cards: "cuda:1". nullopt: neither.
std::optional<DeviceName> parse_device_name(std::string_view text);

// Whether a device of that name is the host itself: its threads compute, and all tensors lie in its memory.
bool is_host(std::string_view text);

}  // namespace penstock
