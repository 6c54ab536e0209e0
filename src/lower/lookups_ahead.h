// Rows of embeddings that are looked up a step before they are read (NestPipe, 2604.06956): in a table for a window of steps the keys of
// all of them are there, so while a step computes, what the next one names of a table is taken from the table as it is. Behind the update
// the rows of keys that both steps have are read again: "gather, U, patch dirty rows". An update that leaves all other rows as they
// are makes this the same to the bit.
#pragma once

#include <vector>

#include "lower/draft.h"

namespace penstock {

// In a device's row, whose reads have their versions: for each `embedding` of a table as it is in an F, behind the F of the same
// micro-batch of the step before a run that looks the rows up, and in the F's task `embedding_patched` instead. Throws Error where an
// update may change rows that no sample of its step names. Any device can read any part of the data, so it knows all keys of its step,
// also those of other devices; of a table whose rows lie along an axis it has its own rows ahead, and zeros for others.
void look_up_ahead(const LowerInput& step, std::vector<Run>& row, ActorId device, Draft& draft);

}  // namespace penstock
