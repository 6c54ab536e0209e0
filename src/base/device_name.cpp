#include "base/device_name.h"

#include <algorithm>
#include <limits>

#include "base/text.h"

namespace penstock {

const std::vector<std::string>& device_kinds() {
  static const std::vector<std::string> kinds = {"cpu", "cuda", "standin"};
  return kinds;
}

std::optional<DeviceName> parse_device_name(std::string_view text) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int8_t>::max();  // as many as libtorch can number
  const std::string_view kind = text.substr(0, text.find(':'));
  if (std::ranges::find(device_kinds(), kind) == device_kinds().end()) return std::nullopt;
  if (kind.size() == text.size()) return DeviceName{std::string(kind), std::nullopt};
  const std::string_view digits = text.substr(kind.size() + 1);
  const std::optional<std::int64_t> index = parse_number<std::int64_t>(digits);
  if (kind != "cuda" || !index || *index < 0 || *index > kMost || std::to_string(*index) != digits) return std::nullopt;
  return DeviceName{std::string(kind), static_cast<int>(*index)};
}

}  // namespace penstock
