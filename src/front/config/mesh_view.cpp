// SPDX-License-Identifier: Apache-2.0
#include "config/mesh_view.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"
#include "penstock/plan_file.h"
#include "stage/loop.h"

namespace penstock {
namespace {

// The step whose values have the numbers that layouts as text show.
struct SeenStep {
  Graph step;
  IdVector<StageId, std::string> stages;
  std::vector<AxisDecision> axes;

  const Graph& body() const { return *step.ops[loop_of(step)].body; }
};

SeenStep seen_step(const Config& config, const Prepared& prepared) {
  StagedStep staged = prepare_stages(training_graph(config, prepared), prepared.options.zero < 3, prepared.options.axes);
  SeenStep out{std::move(staged.step), std::move(staged.stages), training_layouts(config, prepared)};
  // A loss in parts has further values.
  if (!out.axes.empty() && !out.axes[0].own) out.step = out.axes[0].step;
  return out;
}

// Whether an op of this origin is of the module or of one inside of it.
bool is_inside(const std::string& origin, const std::string& module) {
  return origin == module || origin.starts_with(module + ".");
}

// The value of the body that the name stands for; none: no such.
ValueId value_named(const Graph& body, const std::string& name) {
  if (name.starts_with('%')) {
    std::int32_t number = -1;
    const auto [end, failure] = std::from_chars(name.data() + 1, name.data() + name.size(), number);
    const bool is_number = failure == std::errc() && end == name.data() + name.size();
    return is_number && number >= 0 && number < std::ssize(body.values) ? ValueId(number) : ValueId();
  }
  ValueId out;
  for (ValueId input : body.inputs)
    if (body.values[input].name == name) out = input;
  for (const Op& op : body.ops)
    if (!name.empty() && is_inside(op.origin, name) && op.phase == Phase::forward && !op.results.empty()) out = op.results.back();
  return out;
}

[[noreturn]] void fail_unknown_value(const SeenStep& seen, const std::string& name) {
  std::set<std::string> known;
  for (int s = 0; s < seen.step.state; ++s) known.insert(seen.step.values[seen.step.inputs[s]].name);
  for (const Op& op : seen.body().ops)
    for (std::size_t end = 0; end < op.origin.size(); ++end)
      if (end + 1 == op.origin.size() || op.origin[end + 1] == '.') known.insert(op.origin.substr(0, end + 1));
  throw Error(concat("--value ", name, ": the step has no such parameter, module or value"),
              {"a value without a name is %N, as penstock compile --emit layouts numbers those of each micro-batch"},
              did_you_mean(name, {known.begin(), known.end()}));
}

// The devices that run the stages which make the value, or read it.
std::vector<std::int32_t> devices_with(const SeenStep& seen, const Prepared& prepared, const MeshShape& mesh, ValueId value) {
  std::set<std::string> stages;
  const Graph& body = seen.body();
  const OpId made = producers(body)[value];
  for (const Op& op : body.ops)
    if (made ? &op == &body.ops[made] : std::find(op.operands.begin(), op.operands.end(), value) != op.operands.end())
      stages.insert(op.stage);
  std::vector<Schedule> tables = prepared.options.others;
  tables.insert(tables.begin(), prepared.plan ? renumbered(*prepared.plan, prepared.schedule, seen.stages) : prepared.schedule);
  std::vector<std::int32_t> out;
  for (std::int32_t d = 0; d < std::ssize(mesh.devices); ++d) {
    const MeshShape::Device& device = mesh.devices[d];
    const std::vector<Action>& row = tables[tables.size() > 1 ? device.replica : 0].actors[device.actor];
    if (std::any_of(row.begin(), row.end(), [&](const Action& action) {
          return action.stage < std::ssize(seen.stages) && stages.contains(seen.stages[StageId(action.stage)]);
        }))
      out.push_back(d);
  }
  return out;
}

}  // namespace

MeshShape mesh_of(const Config& config, const Prepared& prepared) {
  MeshShape out;
  const std::vector<int>& replicas = prepared.options.devices;
  const bool alike = std::all_of(replicas.begin(), replicas.end(), [&](int n) { return n == replicas[0]; });
  out.axes.push_back({axis_named(config, "pipe"), static_cast<int>(replicas.size())});
  const int most = *std::max_element(replicas.begin(), replicas.end());
  const bool has_data = most > prepared.options.local, has_local = prepared.options.local > 1;
  const auto [local, local_outside] = std::pair(prepared.options.local, prepared.options.local_outside);
  if (has_local && local_outside) out.axes.push_back({axis_named(config, "local"), local});
  if (has_data) out.axes.push_back({axis_named(config, "data"), alike ? replicas[0] / local : 0});
  if (has_local && !local_outside) out.axes.push_back({axis_named(config, "local"), local});
  int members = 1;
  for (const LayoutAxis& axis : prepared.options.axes) {
    out.axes.push_back({axis.name, axis.size});
    members *= axis.size;
  }
  for (std::int32_t actor = 0; actor < std::ssize(replicas); ++actor)
    for (std::int32_t replica = 0; replica < replicas[actor]; ++replica)
      for (std::int32_t member = 0; member < members; ++member) {
        MeshShape::Device& device = out.devices.emplace_back(MeshShape::Device{actor, replica, {actor}});
        const int inner = local_outside ? replicas[actor] / local : local;  // members of the inner of the two axes
        if (local_outside ? has_local : has_data) device.place.push_back(replica / inner);
        if (local_outside ? has_data : has_local) device.place.push_back(replica % inner);
        std::int32_t stride = members;
        for (const LayoutAxis& axis : prepared.options.axes) {
          stride /= axis.size;
          device.place.push_back(member / stride % axis.size);
        }
      }
  return out;
}

HeldValue held_value(const Config& config, const Prepared& prepared, const Program& program, const std::string& name) {
  const SeenStep seen = seen_step(config, prepared);
  for (int s = 0; s < seen.step.state; ++s) {
    const Value& state = seen.step.values[seen.step.inputs[s]];
    if (state.name != name) continue;
    const auto spec = std::find_if(prepared.parameters.begin(), prepared.parameters.end(),
                                   [&](const ParameterSpec& parameter) { return parameter.name == name; });
    return held_state(program, name, state.type, spec == prepared.parameters.end() ? std::vector<DimName>() : spec->dims);
  }
  const ValueId value = value_named(seen.body(), name);
  if (!value) fail_unknown_value(seen, name);
  const MeshShape mesh = mesh_of(config, prepared);
  HeldValue out = held_activation(seen.step, seen.axes, value, mesh, devices_with(seen, prepared, mesh, value));
  if (!name.starts_with('%')) out.name = concat(name, " (", out.name, ")");
  return out;
}

}  // namespace penstock
