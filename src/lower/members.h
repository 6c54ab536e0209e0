// The members of the mesh's axes inside of an actor: each gets a step of its own on what it has (transform/layouts.h), which is lowered as
// if it were alone as far as its devices' runs. Then all drafts become one, in which it is settled who sends what when.
#pragma once

#include <string>
#include <vector>

#include "lower/draft.h"

namespace penstock {

// The inputs of all members' lowering, the last axis varying fastest; one where the mesh has no such axes. Throws Error as lower() does.
std::vector<LowerInput> member_inputs(const Graph& step, const Schedule& schedule, const LowerOptions& options);

// The layouts along each axis as text (transform/layouts.h); of an axis behind the first: of what its first member has.
std::string layouts_text(const Graph& step, const Schedule& schedule, const LowerOptions& options);

// The members' drafts after the pass `devices` as one: the device d of member m is device d * members + m.
Draft join_members(const std::vector<LowerInput>& inputs, std::vector<Draft> drafts);

}  // namespace penstock
