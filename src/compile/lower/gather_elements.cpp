// SPDX-License-Identifier: Apache-2.0
#include "lower/gather_elements.h"

#include <algorithm>
#include <span>

namespace penstock {
namespace {

using Copies = std::span<const PieceCopy>;

std::int64_t elements_in(Tensor x) {
  return TensorType{x.dtype(), x.shape()}.elements();
}

Tensor in_shape(Tensor x, const Shape& shape) {
  return x.shape() == shape ? x : reshape(x, shape);
}

Tensor range_of(Tensor x, int dim, std::int64_t begin, std::int64_t end) {
  return begin == 0 && end == x.size(dim) ? x : slice(x, dim, begin, end);
}

Tensor joined(const std::vector<Tensor>& parts, int dim) {
  return parts.size() == 1 ? parts[0] : cat(parts, dim);
}

// How often the first `period` copies come, each time as much further in their tensors as the time before.
std::int64_t repeats(Copies copies, std::size_t period) {
  std::size_t same = period;
  for (; same < copies.size(); ++same) {
    const PieceCopy &copy = copies[same], &before = copies[same - period];
    if (copy.piece != before.piece || copy.count != before.count) break;
    if (same >= 2 * period && copy.from - before.from != before.from - copies[same - 2 * period].from) break;
  }
  return static_cast<std::int64_t>(same / period);
}

// One row for each repeat: what `first` takes, `rows` times `step` elements on.
Tensor rows_of(Tensor x, const PieceCopy& first, std::int64_t step, std::int64_t rows) {
  const std::int64_t elements = elements_in(x), begin = std::min(first.from, elements - step * rows), offset = first.from - begin;
  const Tensor table = in_shape(range_of(in_shape(x, {elements}), 0, begin, begin + step * rows), {rows, step});
  return range_of(table, 1, offset, offset + first.count);
}

// Copies at the begin of the list that are taken as one.
struct Group {
  std::size_t period = 1;
  std::int64_t rows = 1;

  std::size_t size() const { return period * static_cast<std::size_t>(rows); }
};

// Whether the tensors that the first `period` copies are of have so many whole steps.
bool has_room(const std::vector<Tensor>& tensors, Copies copies, std::size_t period, std::int64_t rows) {
  for (std::size_t i = 0; i < period; ++i)
    if ((copies[i + period].from - copies[i].from) * rows > elements_in(tensors[copies[i].piece])) return false;
  return true;
}

// The longest group. Its last row may lie at a tensor's end, where no whole step is left: it is no part of the group then.
Group first_group(const std::vector<Tensor>& tensors, Copies copies) {
  constexpr std::size_t kLongest = 64;
  Group best;
  for (std::size_t period = 1; period <= std::min(kLongest, copies.size() / 2) && best.size() < copies.size(); ++period) {
    std::int64_t rows = repeats(copies, period);
    if (rows > 1 && !has_room(tensors, copies, period, rows)) --rows;
    if (const Group group{period, rows}; rows > 1 && group.size() > best.size()) best = group;
  }
  return best;
}

Tensor gathered(const std::vector<Tensor>& tensors, Copies copies, const Group& group) {
  std::vector<Tensor> columns;
  std::int64_t width = 0;
  for (std::size_t i = 0; i < group.period; ++i) {
    const PieceCopy& first = copies[i];
    const std::int64_t step = group.rows > 1 ? copies[i + group.period].from - first.from : first.count;
    columns.push_back(rows_of(tensors[first.piece], first, step, group.rows));
    width += first.count;
  }
  return in_shape(joined(columns, 1), {group.rows * width});
}

}  // namespace

Tensor gather_elements(const std::vector<Tensor>& tensors, const std::vector<PieceCopy>& copies, const Shape& shape) {
  std::vector<Tensor> parts;
  for (Copies left = copies; !left.empty();) {
    const Group group = first_group(tensors, left);
    parts.push_back(gathered(tensors, left, group));
    left = left.subspan(group.size());
  }
  return in_shape(joined(parts, 0), shape);
}

}  // namespace penstock
