// SPDX-License-Identifier: Apache-2.0
#include "data/row_ports.h"

#include <algorithm>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// Writes value(place, i) for token i of each sample, of `width` numbers; `inputs`: in a row of inputs.
template <class Value>
void fill_tokens(std::span<const RowPlace> places, bool inputs, std::span<std::int64_t> out, std::int64_t width, Value value) {
  std::ranges::fill(out, 0);
  for (const RowPlace& place : places) {
    const std::int64_t begin = inputs ? place.input_begin : place.begin, length = inputs ? place.input_length : place.length;
    if ((begin + length) * width > std::ssize(out))
      throw Error(concat("samples of ", begin + length, " tokens stand in a row of ", std::ssize(out) / width));
    for (std::int64_t i = 0; i < length; ++i) value(place, i, out.subspan((begin + i) * width, width));
  }
}

}  // namespace

bool fill_row_port(std::string_view port, std::span<const RowPlace> places, std::span<std::int64_t> out) {
  using Out = std::span<std::int64_t>;
  if (port == "positions") {
    fill_tokens(places, false, out, 1, [](const RowPlace&, std::int64_t i, Out to) { to[0] = i; });
  } else if (port == "ranges") {
    fill_tokens(places, false, out, 2, [](const RowPlace& place, std::int64_t i, Out to) {
      to[0] = place.begin;
      to[1] = place.begin + i + 1;
    });
  } else if (port == "input_ranges" || port == "memory_ranges") {
    fill_tokens(places, port == "input_ranges", out, 2, [](const RowPlace& place, std::int64_t, Out to) {
      to[0] = place.input_begin;
      to[1] = place.input_begin + place.input_length;
    });
  } else {
    return false;
  }
  return true;
}

}  // namespace penstock
