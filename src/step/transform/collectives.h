// SPDX-License-Identifier: Apache-2.0
// Collectives that a user writes into a model (penstock/ops.h). Along their axis no layout is decided: the user has said what each member
// does, on values of its own. Other axes of the mesh treat these ops as any other.
#pragma once

#include <span>
#include <vector>

#include "penstock/graph.h"
#include "penstock/layout.h"
#include "penstock/ops.h"

namespace penstock {

// The axes along which a step has collectives of its own. Throws Error where two of them give an axis two sizes.
std::vector<MeshAxis> axes_of_collectives(const Graph& step);

// Throws Error unless each of these axes is one of the mesh's, of that size, over which nothing is split by layouts, and its collectives
// can be run: they stand in the loop or depend on it.
void check_collectives(const Graph& step, std::span<const LayoutAxis> mesh);

// The step of all members of an axis as one step without these collectives: what is the same for all members is computed once, all else
// once for each. This is what the collectives mean. Outputs are the first member's. Throws Error where a state does not stay the same on
// all.
Graph of_all_members(const Graph& step, const MeshAxis& axis);
// The same for all axes.
Graph of_all_members(Graph step);

// The step of one member, in which the collectives among devices are left. Every member's step has the same ops.
Graph of_member(const Graph& step, const MeshAxis& axis, std::int64_t member);

// Writes the collectives that of_member() leaves along these axes as devices do them (transform/conversions.h). `place`: the member's along
// each.
Graph pack_collectives(const Graph& step, std::span<const MeshAxis> axes, std::span<const std::int64_t> place);

}  // namespace penstock
