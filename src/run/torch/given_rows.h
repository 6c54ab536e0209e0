// Rows of tensors that are given by name, as data sources hand them out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "devices/cluster.h"
#include "penstock/session.h"

namespace penstock {

// Copies rows of the port's tensor, from `first_row` on, as many as `out` has bytes for. A port of one micro-batch has a tensor of its own,
// which holds no rows of others.
inline void copy_rows(const HostTensor& tensor, const Port& port, std::int64_t first_row, std::span<std::byte> out) {
  if (port.row >= 0) first_row -= port.row;
  const std::size_t row = port.type.shape.empty() ? 0 : tensor.bytes.size() / static_cast<std::size_t>(port.type.shape[0]);
  std::ranges::copy(std::span(tensor.bytes).subspan(static_cast<std::size_t>(first_row) * row, out.size()), out.begin());
}

}  // namespace penstock
