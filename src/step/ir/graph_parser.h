// SPDX-License-Identifier: Apache-2.0
// Reading one graph with a cursor that stands inside a larger text (a program).
#pragma once

#include "base/cursor.h"
#include "penstock/graph.h"

namespace penstock {

Graph parse_graph(Cursor& cursor);
// "f32[2,3]". Fails where that has more bytes than 63 bits count.
TensorType parse_type(Cursor& in);

}  // namespace penstock
