// What one member of a group computes of a graph when it holds only shares of some tensors.
#pragma once

#include <compare>
#include <cstdint>
#include <span>

#include "penstock/graph.h"

namespace penstock {

// How much of one input or output a member holds: the whole tensor, or the elements begin <= i < end of it, row-major, as a tensor of one
// dim; none where begin == end. `stands_in`: where none are held but a tensor has to be there, it is one element of no meaning.
struct Share {
  bool whole = true;
  std::int64_t begin = 0, end = 0;
  bool stands_in = false;

  auto operator<=>(const Share&) const = default;
};

// The graph on the member's shares. An elementwise op is done on the smallest share that it reads (what is held beyond that is cut off); a
// sum over all elements becomes the sum over the share's. The graph must have no other op on partly held values, and no loop. Of two shares
// that an op reads, or of the share of a result and that of its operands, one must lie in the other.
Graph take_share(const Graph& graph, std::span<const Share> inputs, std::span<const Share> outputs);

// How take_share can do the op on partly held operands: `elementwise`, its result is then partly held too; `sum`, its result is a term of
// the sum over the members; or not at all.
enum class ShareRule : std::uint8_t { none, elementwise, sum };
ShareRule share_rule(const Graph& graph, const Op& op);

}  // namespace penstock
