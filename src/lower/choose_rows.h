// The layouts of a small step that send the least of all there are: any split of any parameter, moments as a parameter of their type lies,
// and for each op any of its rows.
#pragma once

#include <optional>

#include "lower/choose_layouts.h"
#include "lower/layout_classes.h"
#include "transform/layouts.h"

namespace penstock {

struct ChosenRows {
  std::optional<GraphLayouts> layouts;  // none: nothing better was found
  LayoutScore score;                    // of them
  bool all = false;                     // whether all were looked at, but for what cannot be better: these, or else `best`, are the least
};
// Depth first, the cheapest row first, as long as what is decided so far costs less than `best` and whatever was found since. Of at most so
// many decisions. Losses of split classes are not computed in parts.
ChosenRows choose_rows(const ClassSource& source, const LayoutScore& best, int decisions);

}  // namespace penstock
