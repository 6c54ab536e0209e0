// The papers, a file for each group.
#pragma once

#include "base/papers/papers.h"

namespace penstock {

PaperGroup table_papers();
PaperGroup sequence_papers();
PaperGroup batch_papers();
PaperGroup window_papers();
PaperGroup planner_papers();
PaperGroup peer_tables();
PaperGroup peer_systems();

}  // namespace penstock
