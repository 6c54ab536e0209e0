// SPDX-License-Identifier: Apache-2.0
#include "config/chosen_layouts.h"

#include <algorithm>
#include <ranges>

#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"
#include "transform/collectives.h"

namespace penstock {
namespace {

// A name that no model has: parameters of what is split, where constraints may or may not name the same.
std::string name_along(const std::string& axis) {
  return concat("chosen along ", axis);
}

void check_choice(const std::string& chosen, const ChoiceInput& input) {
  const std::string what = concat("layout.choose = ", quote(chosen));
  if (std::ranges::find(input.axes, chosen, &LayoutAxis::name) == input.axes.end())
    throw Error(concat(what, ": the mesh has no axis ", chosen), {}, concat("--mesh ", chosen, "=2, or --set layout.choose=[]"));
  const std::vector<MeshAxis> own = axes_of_collectives(input.step);
  if (std::ranges::find(own, chosen, &MeshAxis::name) != own.end())
    throw Error(concat(what, ": the model has collectives of its own along ", chosen), {"along their axis nothing else is split"},
                "--set layout.choose=[]");
}

// The names of dims along the other axes.
std::set<std::string> taken_by_others(const std::vector<LayoutAxis>& axes, const std::string& chosen) {
  std::set<std::string> out;
  for (const LayoutAxis& axis : axes) {
    if (axis.name == chosen) continue;
    out.insert(axis.dims.begin(), axis.dims.end());
    for (const auto& [stage, dims] : axis.stage_dims) out.insert(dims.begin(), dims.end());
  }
  return out;
}

// Names what is split along this axis. Dims without a name stay whole along all others; and a constraint's name must not split a parameter
// that stays whole.
void name_dims(const AxisWishes& wishes, const std::set<std::string>& taken, std::vector<ParameterSpec>& parameters) {
  for (ParameterSpec& parameter : parameters) {
    parameter.dims.resize(parameter.type.shape.size());
    for (DimName& dim : parameter.dims)
      if (wishes.dims.contains(dim.name) && !taken.contains(dim.name)) dim = {};
    const Layout& layout = wishes.states.at(parameter.name);
    if (layout.is_split()) parameter.dims[layout.dim] = {name_along(wishes.axis), layout.outer, layout.units};
  }
}

ChosenLayouts chosen_along(LayoutAxis& axis, const ChoiceInput& input) {
  ClassSource source{input.step, axis.size, {}, taken_by_others(input.axes, axis.name)};
  for (const ParameterSpec& parameter : input.parameters) source.parameters[parameter.name] = parameter.dims;
  std::set<std::string> named;
  for (const auto& [dim, usual] : input.usual)
    if (usual == axis.name) named.insert(dim);
  LayoutChoice choice = choose_layouts(axis.name, source, named);
  name_dims(choice.wishes, source.taken, input.parameters);
  axis.dims = choice.wishes.dims;
  axis.dims.insert(name_along(axis.name));
  axis.stage_dims.clear();
  return {axis.name, std::move(choice)};
}

}  // namespace

std::string class_name(const LayoutClass& found) {
  return concat(found.name, found.states.empty() ? " of activations" : "");
}

std::string text_of(const std::vector<ChosenLayouts>& choices) {
  std::string out;
  for (const auto& [axis, choice] : choices)
    out += concat("chosen along ", axis, ": ", join(choice.classes, ", ", class_name), "; each sends ", bytes_text(choice.score.bytes),
                  " in a step, the best found of ", choice.tried, "\n");
  return out;
}

std::vector<ChosenLayouts> choose_along(const std::vector<std::string>& chosen, const ChoiceInput& input) {
  for (const std::string& axis : chosen) check_choice(axis, input);
  std::vector<ChosenLayouts> out;
  for (LayoutAxis& axis : input.axes | std::views::reverse)
    if (std::ranges::find(chosen, axis.name) != chosen.end()) out.push_back(chosen_along(axis, input));
  return out;
}

}  // namespace penstock
