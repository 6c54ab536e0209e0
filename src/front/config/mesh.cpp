// SPDX-License-Identifier: Apache-2.0
#include "config/mesh.h"

#include <algorithm>
#include <limits>

#include "base/text.h"
#include "base/words.h"
#include "config/compile.h"
#include "ops/definition.h"
#include "penstock/error.h"
#include "penstock/step.h"
#include "transform/collectives.h"
#include "transform/layouts.h"

namespace penstock {
namespace {

struct NamedAxis {
  const char* name;
  const char* key;
};
constexpr NamedAxis kNamedAxes[] = {{"pipe", "pipeline.actors"},   {"data", "pipeline.data"},       {"local", "pipeline.local"},
                                    {"expert", "pipeline.expert"}, {"context", "pipeline.context"}, {"tensor", "pipeline.tensor"}};

bool is_layout_axis(const std::string& axis) {
  const std::vector<std::string>& axes = layout_axes();
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

// Which axis the name is; the name itself where it is no user's own.
std::string named(const std::map<std::string, std::string>& names, const std::string& name) {
  const auto own = names.find(name);
  return own == names.end() ? name : own->second;
}

// Throws Error where data or local stand behind an axis inside of them.
void check_nesting(std::string_view mesh, const std::vector<std::string>& written, const std::map<std::string, std::string>& names) {
  const auto is_inside = [&](const std::string& name) { return is_layout_axis(named(names, name)); };
  const auto inside = std::find_if(written.begin(), written.end(), is_inside);
  const auto outside = std::find_if(inside, written.end(), [&](const std::string& name) { return !is_inside(name); });
  if (outside == written.end()) return;
  throw Error(concat("--mesh ", mesh, ": ", *outside, " stands behind ", *inside),
              {"the last axis varies fastest: its members are next to each other"}, concat("write ", *outside, " before ", *inside));
}

// The axes of layouts as they are ordered, by `said` names: first those that it does not have.
std::vector<std::string> ordered_axes(const std::vector<std::string>& said, const std::map<std::string, std::string>& names) {
  std::vector<std::string> out;
  for (const std::string& axis : layout_axes()) {
    if (std::ranges::any_of(said, [&](const std::string& name) { return named(names, name) == axis; })) continue;
    const auto own = std::ranges::find(names, axis, [](const auto& entry) { return entry.second; });
    out.push_back(own == names.end() ? axis : own->first);
  }
  out.insert(out.end(), said.begin(), said.end());
  return out;
}

std::int64_t members_of(const Config& config, const std::string& name) {
  const Config::Pipeline& pipeline = config.pipeline;
  const std::string axis = axis_of(config, name);
  return axis == "tensor" ? pipeline.tensor : axis == "context" ? pipeline.context : pipeline.expert;
}

// Where a model has a dim of some name in the fewest units.
struct NamedDim {
  std::int64_t units = 0;
  std::string place;  // "h.0.attn.c_attn.weight", "an activation"
};
using NamedDims = std::map<std::string, NamedDim>;

void note_dim(NamedDims& dims, const std::string& name, std::int64_t units, const std::string& place) {
  if (name.empty()) return;
  const auto [at, added] = dims.try_emplace(name, NamedDim{units, place});
  if (!added && units < at->second.units) at->second = {units, place};
}

void note_constraints(NamedDims& dims, const Graph& graph) {
  for (const Op& op : graph.ops) {
    if (op.body) note_constraints(dims, *op.body);
    if (op.name != "constrain") continue;
    const std::vector<std::string> names = constrained_dims(op);
    const std::string place = op.origin.empty() ? "an activation" : concat("an activation of ", op.origin);
    for (std::size_t i = 0; i < names.size(); ++i) note_dim(dims, names[i], graph.type(op.operands[0]).shape[i], place);
  }
}

// The names that the model's parameters and constraints give to dims, and that of what stages give each other.
NamedDims dims_of_model(const Model& model, const Graph& step) {
  NamedDims dims;
  for (const ParameterSpec& spec : model.parameters())
    for (std::size_t i = 0; i < spec.dims.size(); ++i) {
      const DimName& dim = spec.dims[i];
      note_dim(dims, dim.name, dim.units > 0 ? dim.units : spec.type.shape[i] / dim.outer, spec.name);
    }
  note_constraints(dims, step);
  note_dim(dims, kLinks, std::numeric_limits<std::int64_t>::max(), "what stages give each other");
  return dims;
}

std::vector<std::string> dim_names(const NamedDims& dims) {
  std::vector<std::string> names;
  for (const auto& [name, dim] : dims) names.push_back(name);
  return names;
}

std::string shown_dims(const Config& config, const NamedDims& dims) {
  std::vector<std::string> own = dim_names(dims);
  std::erase(own, kLinks);
  const std::string names = join(own, ", ");
  return names.empty() ? concat("no dim of model ", quote(config.model.name), " has a name")
                       : concat("the dims of model ", quote(config.model.name), ": ", names);
}

// Throws Error for a dim of a section of layouts that the model does not have, unless `usual` says the same.
void check_dims_known(const Config& config, const std::string& section, const std::map<std::string, std::string>& layout,
                      const std::map<std::string, std::string>& usual, const NamedDims& dims) {
  for (const auto& [name, axis] : layout) {
    const std::string key = concat(section, ".", name, " = ", quote(axis));
    if (name == "batch") throw Error(concat(key, ": the batch is split over data"), {}, "--mesh data=N");
    const auto same = usual.find(name);
    if (dims.contains(name) || (same != usual.end() && same->second == axis)) continue;
    throw Error(concat(key, ": model ", quote(config.model.name), " has no dim ", quote(name)), {shown_dims(config, dims)},
                did_you_mean(name, dim_names(dims)));
  }
}

// Sets the dims that lie along the axis, in all stages and in those that have a layout of their own.
void set_dims(const Config& config, const NamedDims& dims, LayoutAxis& axis) {
  const auto along = [&](std::map<std::string, std::string> layout) {
    layout.insert(config.layout.begin(), config.layout.end());  // what it does not say
    std::set<std::string> out;
    for (const auto& [name, over] : layout)
      if (over == axis.name && dims.contains(name)) out.insert(name);
    return out;
  };
  axis.dims = along({});
  for (const auto& [stage, layout] : config.stage_layout) axis.stage_dims[stage] = along(layout);
}

// "pipeline.tensor = 2", or where the axis has a name of the user's "mesh.model = 2".
std::string size_text(const Config& config, const LayoutAxis& axis) {
  return concat(config.axis_names.contains(axis.name) ? "mesh." : "pipeline.", axis.name, " = ", axis.size);
}

void check_shared(const Config& config, const NamedDims& dims, const LayoutAxis& axis) {
  std::set<std::string> split = axis.dims;
  for (const auto& [stage, names] : axis.stage_dims) split.insert(names.begin(), names.end());
  if (split.empty())
    throw Error(concat(size_text(config, axis), ": nothing is split over axis ", axis.name), {shown_dims(config, dims)},
                concat("map a dim to it: --set layout.NAME=", axis.name));
  for (const std::string& name : split) {
    const NamedDim& dim = dims.at(name);
    if (dim.units < axis.size)
      throw Error(
          concat(size_text(config, axis), ": ", quote(name), " has ", dim.units, " in ", dim.place, ", fewer than members of the axis"), {},
          concat("use a smaller ", axis.name, ", or --set layout.", name, "="));
  }
}

}  // namespace

const std::vector<std::string>& layout_axes() {
  static const std::vector<std::string> axes = {"expert", "context", "tensor"};
  return axes;
}

std::vector<std::string> all_axes() {
  std::vector<std::string> out;
  for (const NamedAxis& axis : kNamedAxes) out.emplace_back(axis.name);
  return out;
}

std::string members_key(const std::string& axis) {
  for (const auto& [name, key] : kNamedAxes)
    if (axis == name) return key;
  return {};
}

void fail_unknown_axis(const std::string& place, const std::string& name, const std::map<std::string, std::string>& names) {
  std::vector<std::string> known = all_axes();
  for (const auto& [own, axis] : names) known.push_back(own);
  const std::string near = nearest(name, known);
  throw Error(concat(place, ": there is no axis ", quote(name)),
              {"there are pipe (actors), data (devices of each actor, or its hosts) and local (devices of each host)",
               "and inside of these tensor, context and expert, over which [layout] splits tensors",
               names.empty() ? "[axes] gives them other names"
                             : concat("[axes] names ",
                                      join(names, ", ", [](const auto& entry) { return concat(entry.second, " ", quote(entry.first)); }))},
              near.empty() ? "" : concat("did you mean ", near, "?"));
}

std::string axis_named(const Config& config, const std::string& axis) {
  for (const auto& [name, own] : config.axis_names)
    if (own == axis) return name;
  return axis;
}

std::string axis_of(const Config& config, const std::string& name) {
  return named(config.axis_names, name);
}

std::map<std::string, std::string> usual_layout(const Config& config) {
  std::map<std::string, std::string> out = Config().layout;
  for (auto& [dim, axis] : out) axis = axis_named(config, axis);
  return out;
}

Override mesh_override(std::string text) {
  return {"mesh", std::move(text), "--mesh"};
}

std::vector<Override> parse_mesh(std::string_view text, const std::map<std::string, std::string>& names) {
  std::map<std::string, std::string> values;
  std::vector<std::string> written;  // those of data, local and the axes of layouts
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view axis = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(axis.size() + 1, rest.size()));
    const std::size_t equal = axis.find('=');
    const std::string name(trim(axis.substr(0, equal)));
    if (equal == std::string_view::npos)
      throw Error(concat("--mesh ", text, ": ", quote(std::string(axis)), " has no size"), {}, "--mesh pipe=2,data=2");
    const std::string known = named(names, name);
    if (members_key(known).empty()) fail_unknown_axis(concat("--mesh ", text), name, names);
    if (!values.emplace(known, trim(axis.substr(equal + 1))).second)
      throw Error(concat("--mesh ", text, " names the axis ", name, " twice"));
    if (known != "pipe") written.push_back(name);
  }
  if (values.empty()) throw Error("--mesh names no axis", {}, "--mesh pipe=2,data=2");
  check_nesting(text, written, names);
  std::vector<Override> out;
  for (const auto& [name, key] : kNamedAxes) out.push_back({key, values.contains(name) ? values.at(name) : "1", concat("--mesh ", name)});
  if (values.contains("data") && values.contains("local")) {
    const auto place = [&](const std::string& axis) {
      return std::ranges::find(written, axis, [&](const auto& name) { return named(names, name); });
    };
    out.push_back({"pipeline.local_outside", place("local") < place("data") ? "true" : "false", "--mesh local"});
  }
  std::erase_if(written, [&](const std::string& name) { return !is_layout_axis(named(names, name)); });
  if (!written.empty()) out.push_back({"pipeline.axes", concat("[", join(ordered_axes(written, names), ", ", quote), "]"), "--mesh axes"});
  return out;
}

std::vector<LayoutAxis> axes_of(const Config& config, const Model& model) {
  std::vector<LayoutAxis> axes;
  for (const std::string& name : ordered_axes(config.pipeline.axes, config.axis_names))
    if (const std::int64_t members = members_of(config, name); members > 1) axes.push_back({name, static_cast<int>(members), {}});
  std::map<std::string, std::string> usual = usual_layout(config);
  for (auto& [dim, axis] : usual)
    if (is_chosen(config, axis)) axis = "";
  if (axes.empty() && config.layout == usual && config.stage_layout.empty()) return {};
  const bool text = reads_text(data_of(config, model));
  // With the whole batch as one micro-batch, which the model's own collectives may cut into as many pieces as any.
  const Graph step = evaluation_step(model, {static_cast<int>(config.train.batch), text ? static_cast<int>(context_of(config)) : 0, 1});
  const NamedDims dims = dims_of_model(model, step);
  const std::vector<MeshAxis> own = axes_of_collectives(step);
  check_dims_known(config, "layout", config.layout, usual, dims);
  for (const auto& [stage, layout] : config.stage_layout) check_dims_known(config, concat("layout.", stage), layout, {}, dims);
  for (LayoutAxis& axis : axes) {
    set_dims(config, dims, axis);
    if (!is_chosen(config, axis.name) &&
        std::none_of(own.begin(), own.end(), [&](const MeshAxis& of_model) { return of_model.name == axis.name; }))
      check_shared(config, dims, axis);
  }
  return axes;
}

}  // namespace penstock
