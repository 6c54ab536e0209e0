// SPDX-License-Identifier: Apache-2.0
// The choice of what is split along the axes of layout.choose. It ends in names: what it splits gets one, as if the user had named it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "lower/choose_layouts.h"
#include "penstock/layout.h"

namespace penstock {

// The input of a choice: a training step, and what its program is made with.
struct ChoiceInput {
  const Graph& step;  // whose ops have their stages
  std::vector<LayoutAxis>& axes;
  std::vector<ParameterSpec>& parameters;
  std::map<std::string, std::string> usual =
      Config().layout;  // the axis over which dims of each name lie by default: a start of the search
};

struct ChosenLayouts {
  std::string axis;
  LayoutChoice choice;
};
std::string class_name(const LayoutClass& found);  // "mlp", "sequence of activations"
// A line for each axis: "chosen along tensor: heads, mlp; each sends 16.0 MiB in a step, the best found of 135".
std::string text_of(const std::vector<ChosenLayouts>& choices);

// Chooses what is split along each of these axes, the last of the mesh first, as if it were the only one, and names it: in the axes and in
// the parameters' dims. What lies along another axis by its name stays there. Throws Error for an axis that the mesh has not, or that the
// model's own collectives need, and as choose_layouts().
std::vector<ChosenLayouts> choose_along(const std::vector<std::string>& chosen, const ChoiceInput& input);

}  // namespace penstock
