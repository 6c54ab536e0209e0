// Slices of stages (penstock/schedule.h): what the files that make and check such tables share.
#pragma once

#include <string>

namespace penstock {

// Throws the Error of an UNSHARD, RESHARD or REDUCE_GRAD in a table of slices: gathered once for each slice, parameters would travel as
// often. `what`: which one, and where.
[[noreturn]] void fail_sharded_slices(const std::string& what);

}  // namespace penstock
