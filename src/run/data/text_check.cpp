// SPDX-License-Identifier: Apache-2.0
#include "data/text_check.h"

#include <algorithm>

#include "base/text.h"
#include "report/table.h"

namespace penstock {
namespace {

// Whether the file begins with the length of a JSON header in eight bytes, least significant first, and the header: no text has so many
// zero bytes there.
bool is_safetensors(std::span<const std::byte> begin) {
  return begin.size() > 9 && begin[8] == std::byte{'{'} && begin[9] == std::byte{'"'} && begin[6] == std::byte{0} &&
         begin[7] == std::byte{0};
}

// Whether the byte is a control character that text has no use for; it does use line breaks, tabs, form feeds, backspaces and escapes (for
// terminals' colours).
bool is_control(std::byte byte) {
  const auto c = static_cast<unsigned char>(byte);
  return c < 0x08 || (c > 0x0d && c < 0x20 && c != 0x1b) || c == 0x7f;
}

}  // namespace

std::string why_no_text(std::span<const std::byte> begin) {
  constexpr double kMostControls = 0.02;  // share of control characters; random bytes have 0.1
  if (is_safetensors(begin)) return "it is a safetensors file";
  if (std::find(begin.begin(), begin.end(), std::byte{0}) != begin.end()) return "it has zero bytes";
  const auto controls = static_cast<double>(std::count_if(begin.begin(), begin.end(), is_control));
  const double share = begin.empty() ? 0 : controls / static_cast<double>(begin.size());
  return share <= kMostControls ? "" : concat(fixed(100 * share, 0), " % of its bytes are control characters");
}

}  // namespace penstock
