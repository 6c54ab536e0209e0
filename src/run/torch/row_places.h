// SPDX-License-Identifier: Apache-2.0
// Where the elements of a member's part of a row stand in the whole row, as attributes of dropout say.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/infer.h"

namespace penstock {

class RowPlaces {
 public:
  explicit RowPlaces(const Op& op)
      : inner_(attribute_or(op, "inner", Integers{})),
        whole_(attribute_or(op, "whole", Integers{})),
        begin_(attribute_or(op, "begin", Integers{})) {}

  bool is_whole() const { return inner_.empty(); }

  // Elements of the whole row of which a member has `width`.
  std::int64_t whole_width(std::int64_t width) const {
    for (std::size_t a = inner_.size(); a-- > 0;) width = width / inner_[a] * whole_[a];
    return width;
  }

  // Calls f(element, place, count) for ranges of the part that are ranges of the row, too. The last axis has cut what those before it left.
  template <class F>
  void for_ranges(std::int64_t width, F f) const {
    for (std::int64_t e = 0, count = 0; e < width; e += count) {
      std::int64_t place = e;
      count = width - e;
      for (std::size_t a = inner_.size(); a-- > 0;) {
        count = std::min(count, inner_[a] - place % inner_[a]);
        place = place / inner_[a] * whole_[a] + begin_[a] + place % inner_[a];
      }
      f(e, place, count);
    }
  }

 private:
  using Integers = std::vector<std::int64_t>;
  Integers inner_, whole_, begin_;
};

}  // namespace penstock
