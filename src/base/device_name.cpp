// SPDX-License-Identifier: Apache-2.0
#include "base/device_name.h"

#include <algorithm>
#include <limits>

#include "base/text.h"

namespace penstock {
namespace {

struct DeviceKind {
  std::string_view name;
  bool is_host = false;
  bool has_numbers = false;  // a machine may have several
};
constexpr DeviceKind kDeviceKinds[] = {{.name = "cpu", .is_host = true}, {.name = "cuda", .has_numbers = true}, {.name = "standin"}};

// The kind in front of a colon; null: there is no such kind.
const DeviceKind* kind_of(std::string_view text) {
  const DeviceKind* const found = std::ranges::find(kDeviceKinds, text.substr(0, text.find(':')), &DeviceKind::name);
  return found == std::end(kDeviceKinds) ? nullptr : found;
}

}  // namespace

std::vector<std::string> device_kinds() {
  std::vector<std::string> out;
  for (const DeviceKind& kind : kDeviceKinds) out.emplace_back(kind.name);
  return out;
}

std::optional<DeviceName> parse_device_name(std::string_view text) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int8_t>::max();  // as many as libtorch can number
  const DeviceKind* const kind = kind_of(text);
  if (!kind) return std::nullopt;
  if (kind->name.size() == text.size()) return DeviceName{std::string(text), std::nullopt};
  const std::string_view digits = text.substr(kind->name.size() + 1);
  const std::optional<std::int64_t> index = parse_number<std::int64_t>(digits);
  if (!kind->has_numbers || !index || *index < 0 || *index > kMost || std::to_string(*index) != digits) return std::nullopt;
  return DeviceName{std::string(kind->name), static_cast<int>(*index)};
}

bool is_host(std::string_view text) {
  const std::optional<DeviceName> name = parse_device_name(text);
  return name && kind_of(name->kind)->is_host;
}

}  // namespace penstock
