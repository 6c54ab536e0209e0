// SPDX-License-Identifier: Apache-2.0
// Dims of a step that are one dim: what a user would give one name, found from what ops do.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "penstock/graph.h"
#include "penstock/layout.h"

namespace penstock {

// Tensors that can be split along an axis as one: the parameters with a dim of one name, or the activations that constraints name so.
struct LayoutClass {
  std::string name;                        // the model's name of the dim, "mlp of w" for some of that name, or "dim 1 of w"
  std::map<std::string, Layout> states{};  // how the parameters lie that have it; none: it is of activations, which constraints name so
};

// The step in which classes are looked for.
struct ClassSource {
  const Graph& step;  // a training step
  std::int64_t members = 1;
  // The dims' names of all parameters, or of none at all; a dim whose name is "" stays whole.
  std::map<std::string, std::vector<DimName>> parameters;
  std::set<std::string> taken = {};  // names of dims that are not to be split: they lie along other axes
};

// A dim of a parameter that could be split.
struct StateDim {
  ValueId state;
  std::string parameter;
  std::string name;  // "": the model names none of the parameter's dims
  Layout layout;
  bool has_units = true;  // as many as members
};
std::vector<StateDim> state_dims(const ClassSource& source);

// Each name of the model that enough units have, with all parameters' dims of that name; then, for each dim of a parameter, the dims that
// rules of ops (ops/layouts.h) have split where it is, on whatever way through the forward, the backward and the optimiser, unless a name
// says the same; then the names of constraints. Classes of the same types and layouts that share no parameter are one: equal layers are
// split alike. `batch` is no class: it lies along data.
std::vector<LayoutClass> layout_classes(const ClassSource& source);

}  // namespace penstock
