// What a member of a group does of a graph some of whose tensors it holds in part.
#pragma once

#include <compare>
#include <cstdint>
#include <span>

#include "ir/graph.h"

namespace penstock {

// How much of one input or output a member holds.
struct Share {
  bool whole = true;
  std::int64_t begin = 0,
               end = 0;    // else: these elements of the tensor, row-major, as a tensor of one dim; none of it where both are equal,
  bool stands_in = false;  // and then one element of no meaning where it has to be there, else nothing at all

  auto operator<=>(const Share&) const = default;
};

// The graph on the member's shares. Elementwise ops are done of the smallest share that they read (what there is more of beside it is cut);
// a sum over all elements is that over the share's. `graph` has no other op on what is held in part, and no loop. Of two shares that an op
// reads, or of one that it gives and what that is made of, one lies in the other.
Graph take_share(const Graph& graph, std::span<const Share> inputs, std::span<const Share> outputs);

// Whether take_share does the op where its operands marked are held in part: what it gives is then in part too, or, of a sum over all
// elements, a term of the sum over the members.
enum class ShareRule : std::uint8_t { none, elementwise, sum };
ShareRule share_rule(const Graph& graph, const Op& op);

}  // namespace penstock
