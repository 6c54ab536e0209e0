// SPDX-License-Identifier: Apache-2.0
// The transfers of a table that says where they start.
#pragma once

#include <vector>

#include "schedule/work.h"

namespace penstock {

// A parcel is all that an actor needs of what one send sends; it is received where the first that needs it is.
struct Parcel {
  Position send, receive;  // receive nowhere: the table does not say
  std::int32_t to = -1;
};
// In the order of sends, row by row, and of actors. Empty where the table has no sends.
std::vector<Parcel> parcels_of(const WorkIndex& work);

// The table without its sends and receives.
Schedule without_transfers(Schedule schedule);
// The table, of one step and a chain, with a send right behind each output that another actor needs, and no receives. It takes the same
// time as without, and is valid once it has its receives. An action that is not one micro-batch's, or a W that is not where its I is, has
// no sends: then it is the table itself.
Schedule with_sends(const Schedule& schedule, const StageShape& shape);
// A table of sends with its receives, each ahead of what its actor does at `time` (the table's) when the send starts. So no transfer waits
// for its receive, and both ends of a pair start its transfers in one order.
Schedule with_receives(const Schedule& schedule, const StageShape& shape, const TableTime& time);

// Throws Error unless the table has no sends and receives, or all that it needs, each where it can be (validate). Cycles are not looked
// for.
void check_transfers(const WorkIndex& work);

}  // namespace penstock
