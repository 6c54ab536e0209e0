// Reading one graph with a cursor that stands inside a larger text (a program).
#pragma once

#include "base/cursor.h"
#include "penstock/graph.h"

namespace penstock {

Graph parse_graph(Cursor& cursor);

}  // namespace penstock
