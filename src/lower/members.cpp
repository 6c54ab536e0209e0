#include "lower/members.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/invariant.h"
#include "base/text.h"
#include "ops/verify.h"
#include "penstock/error.h"
#include "program/piece.h"
#include "transform/layouts.h"
#include "transform/passes.h"

namespace penstock {
namespace {

// --- steps

// One member's step while the axes are worked on, one after the other.
struct MemberStep {
  Graph step;
  std::vector<std::int64_t> place;  // along the axes so far
  std::vector<bool> is_copy;        // by state: a member of a lower place has the same
};

// The dims' layout for one axis. Throws Error where the axis is to split two of them, or more ways than there are units.
Layout wished(const LayoutAxis& axis, const std::string& name, const TensorType& whole, const std::vector<DimName>& dims) {
  Layout out = kWhole;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const DimName& dim = dims[d];
    if (!axis.dims.contains(dim.name)) continue;
    const std::int64_t units = dim.units > 0 ? dim.units : whole.shape[d] / dim.outer;
    if (out.is_split())
      throw Error(concat("axis ", quote(axis.name), " is asked to split two dims of ", quote(name), ", ", whole.text()),
                  {concat(quote(dims[out.dim].name), " and ", quote(dim.name))}, "give one of them another axis in [layout]");
    if (units < axis.size)
      throw Error(concat("axis ", quote(axis.name), " has ", axis.size, " members, ", quote(dim.name), " of ", quote(name), " is ", units,
                         units == 1 ? " unit" : " units"),
                  {concat(quote(name), " is ", whole.text())},
                  concat("use at most ", units, " members, or leave the dim whole in [layout]"));
    out = split_layout(static_cast<std::int64_t>(d), dim.outer, units, axis.size);
  }
  return out;
}

// Layouts of the parameters by the names of their dims; what other axes have cut has its units cut too.
AxisWishes wishes_of(const LayoutAxis& axis, const Graph& step, const std::map<std::string, std::vector<DimName>>& dims) {
  AxisWishes out{axis.name, axis.size, {}, axis.dims};
  for (int s = 0; s < step.state; ++s) {
    const Value& state = step.values[step.inputs[s]];
    const auto named = dims.find(parse_piece(state.name).tensor);
    if (named != dims.end()) out.states[state.name] = wished(axis, state.name, state.type, named->second);
  }
  return out;
}

// The member's step along one more axis.
MemberStep along(const MemberStep& from, const GraphLayouts& layouts, const AxisWishes& wishes, std::int64_t member) {
  MemberStep out{localise(from.step, layouts, wishes, member), from.place, from.is_copy};
  out.place.push_back(member);
  for (int s = 0; s < out.step.state; ++s) {
    const Layout& layout = layouts.values[from.step.inputs[s]];
    Value& state = out.step.values[out.step.inputs[s]];
    if (layout.is_split())
      state.name = piece_name(state.name, cut_of(layout, from.step.type(from.step.inputs[s]).shape, wishes.members, member));
    else if (member > 0)
      out.is_copy[s] = true;
  }
  return out;
}

// `text`: takes the layouts as text, if asked for.
std::vector<MemberStep> steps_of(Graph step, const LowerOptions& options, std::string* text = nullptr) {
  const auto states = static_cast<std::size_t>(step.state);
  std::vector<MemberStep> members{{std::move(step), {}, std::vector<bool>(states)}};
  for (const LayoutAxis& axis : options.axes) {
    // Decided once: members differ in sizes only.
    const AxisWishes wishes = wishes_of(axis, members[0].step, options.dims);
    const GraphLayouts layouts = decide_layouts(members[0].step, wishes);
    if (text) *text += layouts_text(members[0].step, layouts, wishes);
    std::vector<MemberStep> next;
    for (const MemberStep& member : members)
      for (std::int64_t m = 0; m < axis.size; ++m) next.push_back(along(member, layouts, wishes, m));
    members = std::move(next);
  }
  return members;
}

// --- drafts

struct JoiningMembers {
  const std::vector<LowerInput>& inputs;
  std::map<std::vector<std::int32_t>, std::int32_t> groups{};
  Draft draft{};

  std::int32_t members() const { return static_cast<std::int32_t>(inputs.size()); }
  ActorId device(ActorId of_member, std::int32_t member) const { return ActorId(of_member.value * members() + member); }
};

std::int32_t group(JoiningMembers& j, std::vector<std::int32_t> devices) {
  const auto [it, added] = j.groups.try_emplace(devices, static_cast<std::int32_t>(j.groups.size()));
  if (added) j.draft.groups.push_back(std::move(devices));
  return it->second;
}

// The devices beside one along an axis.
std::vector<std::int32_t> beside(const JoiningMembers& j, ActorId of_member, std::int32_t member, std::int32_t axis) {
  const LowerInput& input = j.inputs[member];
  std::int32_t stride = 1;
  for (std::size_t a = axis + 1; a < input.axes.size(); ++a) stride *= static_cast<std::int32_t>(input.axes[a].size);
  const auto place = static_cast<std::int32_t>(input.place[axis]);
  std::vector<std::int32_t> out;
  for (std::int32_t m = 0; m < input.axes[axis].size; ++m) out.push_back(j.device(of_member, member + (m - place) * stride).value);
  return out;
}

Run joined(JoiningMembers& j, Run run, const std::vector<std::vector<std::int32_t>>& groups, const IdVector<TaskId, TaskId>& tasks,
           std::int32_t first, ActorId actor, std::int32_t member) {
  if (run.task) run.task = tasks[run.task];
  for (InstanceId& read : run.reads) read.value += first;
  for (Write& write : run.writes) write.instance.value += first;
  if (run.axis >= 0) {
    run.group = group(j, beside(j, actor, member, run.axis));
  } else if (run.group >= 0) {
    std::vector<std::int32_t> devices;
    for (std::int32_t d : groups[run.group]) devices.push_back(j.device(ActorId(d), member).value);
    run.group = group(j, std::move(devices));
  }
  return run;
}

void join_member(JoiningMembers& j, Draft from, std::int32_t member) {
  const LowerInput& input = j.inputs[member];
  const auto first = static_cast<std::int32_t>(j.draft.instances.size()), blocks = static_cast<std::int32_t>(j.draft.blocks.size());
  IdVector<TaskId, TaskId> tasks;
  for (Task& task : from.tasks) {
    std::string name = member > 0 ? concat(task.name, ".member", member) : task.name;
    tasks.push_back(add_task(j.draft, std::move(name), std::move(task.graph)));
  }
  for (ShareBlock& block : from.blocks) j.draft.blocks.push_back(std::move(block));
  for (Instance& instance : from.instances) {
    if (instance.home) instance.home = j.device(instance.home, member);
    if (instance.block) instance.block.value += blocks;
    if (instance.source == Instance::Source::state && input.is_copy[instance.input]) instance.owned = false;
    j.draft.instances.push_back(std::move(instance));
  }
  for (const ActorId actor : from.actors.ids()) {
    std::vector<Run>& row = j.draft.actors[j.device(actor, member)];
    for (Run& run : from.actors[actor])
      if (run.opcode != Opcode::output || member == 0) row.push_back(joined(j, std::move(run), from.groups, tasks, first, actor, member));
  }
  for (InstanceId state : from.refreshed) j.draft.refreshed.emplace_back(state.value + first);
}

}  // namespace

std::vector<LowerInput> member_inputs(const Graph& traced, const Schedule& schedule, const LowerOptions& options) {
  if (options.axes.empty()) return {lower_input(traced, schedule, options)};
  StagedStep staged = staged_step(traced, schedule, options);
  std::vector<LowerInput> out;
  for (MemberStep& member : steps_of(std::move(staged.step), options)) {
    verify(member.step);
    Graph step = eliminate_common_subexpressions(eliminate_dead_code(member.step));
    LowerInput& input = out.emplace_back(staged_input({std::move(step), staged.stages}, schedule, options));
    for (const LayoutAxis& axis : options.axes) input.axes.push_back({axis.name, axis.size});
    input.place = std::move(member.place);
    input.is_copy.assign(member.is_copy.begin(), member.is_copy.end());
  }
  return out;
}

std::string layouts_text(const Graph& step, const Schedule& schedule, const LowerOptions& options) {
  std::string out = "penstock layouts 1\n";
  steps_of(staged_step(step, schedule, options).step, options, &out);
  return out;
}

Draft join_members(const std::vector<LowerInput>& inputs, std::vector<Draft> drafts) {
  JoiningMembers j{inputs};
  const std::size_t devices = drafts[0].actors.size();
  j.draft.actors.resize(devices * drafts.size());
  j.draft.after = drafts[0].after;
  j.draft.sharded_states = drafts[0].sharded_states;
  j.draft.sharded_results = drafts[0].sharded_results;
  for (std::size_t m = 0; m < drafts.size(); ++m) {
    invariant(drafts[m].actors.size() == devices, "all members have as many devices");
    join_member(j, std::move(drafts[m]), static_cast<std::int32_t>(m));
  }
  return std::move(j.draft);
}

}  // namespace penstock
