// SPDX-License-Identifier: Apache-2.0
// Values that view others: what is converted of a view can be converted of what it views, which lies in memory and may be converted anyway.
#pragma once

#include <optional>

#include "transform/layouts.h"

namespace penstock {

// A value, and a layout that is asked of it.
struct Asked {
  ValueId value;
  Layout layout;
};

// Whether what is converted of its result can be converted of its operand instead.
bool is_seen_through(const Op& op);

// Asks the same of the value that `asked.value` reshapes or transposes; none: it is no view, or one that is cut along
// the axis itself. `made`: the op that makes it, if any; its row in `layouts` is decided.
std::optional<Asked> viewed(const Graph& graph, OpId made, const GraphLayouts& layouts, std::int64_t members, const Asked& asked);
// The same for a view of a view and so on: what is converted in the end.
Asked converted_for(const Graph& graph, const IdVector<ValueId, OpId>& producers, const GraphLayouts& layouts, std::int64_t members,
                    Asked asked);

// The conversion that localise() makes where `reader` asks for it; no reader: the graph gives it away.
LayoutConversion asked_conversion(const Graph& graph, const IdVector<ValueId, OpId>& producers, const GraphLayouts& layouts,
                                  std::int64_t members, const Asked& asked, OpId reader);

}  // namespace penstock
