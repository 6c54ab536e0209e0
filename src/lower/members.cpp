#include "lower/members.h"

#include <algorithm>
#include <map>
#include <ranges>
#include <utility>

#include "base/invariant.h"
#include "base/text.h"
#include "base/words.h"
#include "ops/verify.h"
#include "penstock/error.h"
#include "program/piece.h"
#include "transform/collectives.h"
#include "transform/layouts.h"
#include "transform/passes.h"

namespace penstock {
namespace {

// --- steps

// One member's step while the axes are worked on, one after the other.
struct MemberStep {
  Graph step;
  std::vector<std::int64_t> place;        // along the axes so far, in the mesh's order
  std::vector<bool> is_copy;              // by state: a member of a lower place has the same
  std::vector<std::uint32_t> apart = {};  // by result of the loop: StagedStep's
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
                  concat("use at most ", counted(units, "member"), ", or leave the dim whole in [layout]"));
    out = split_layout(static_cast<std::int64_t>(d), dim.outer, units, axis.size);
  }
  return out;
}

// Layouts of the parameters by the names of their dims. No dim is cut by two axes, as a name lies along one.
AxisWishes wishes_of(const LayoutAxis& axis, const Graph& step, const std::map<std::string, std::vector<DimName>>& dims) {
  AxisWishes out{axis.name, axis.size, {}, axis.dims};
  for (int s = 0; s < step.state; ++s) {
    const Value& state = step.values[step.inputs[s]];
    const auto named = dims.find(parse_piece(state.name).tensor);
    if (named != dims.end()) out.states[state.name] = wished(axis, state.name, state.type, named->second);
  }
  return out;
}

// Notes the loop's results of which the members have parts of different sizes; `all_parts`: those of which they have parts at all, which
// must not lie beside what is summed whole over devices, and then along another axis.
void note_apart(const GraphLayouts& layouts, const AxisWishes& wishes, bool all_parts, MemberStep& out) {
  const std::vector<Layout>& results = layouts.body->outputs;
  out.apart.resize(results.size());
  for (std::size_t r = 0; r < results.size(); ++r)
    if (results[r].is_split() && (all_parts || results[r].units % wishes.members != 0)) out.apart[r] |= 1u << out.place.size();
}

// The member's step along one more axis.
MemberStep along(const MemberStep& from, const GraphLayouts& layouts, const AxisWishes& wishes, std::int64_t member, bool all_parts) {
  MemberStep out{localise(from.step, layouts, wishes, member), from.place, from.is_copy, from.apart};
  note_apart(layouts, wishes, all_parts, out);
  out.place.insert(out.place.begin(), member);
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

// Whether values and ops have the same numbers.
bool are_alike(const Graph& a, const Graph& b) {
  if (a.values.size() != b.values.size() || a.ops.size() != b.ops.size()) return false;
  for (const OpId i : a.ops.ids())
    if (bool(a.ops[i].body) != bool(b.ops[i].body) || (a.ops[i].body && !are_alike(*a.ops[i].body, *b.ops[i].body))) return false;
  return true;
}

// The layouts of all members along one more axis.
std::vector<GraphLayouts> decided(const std::vector<MemberStep>& members, const std::vector<AxisWishes>& wishes) {
  std::vector<const Graph*> steps;
  for (const MemberStep& member : members) {
    invariant(are_alike(members[0].step, member.step), "members differ in sizes only");
    steps.push_back(&member.step);
  }
  return decide_layouts(steps, wishes);
}

// The same; losses of split classes are computed in parts then.
std::vector<GraphLayouts> decided_with_losses(std::vector<MemberStep>& members, const std::vector<AxisWishes>& wishes) {
  std::vector<GraphLayouts> layouts = decided(members, wishes);
  if (!has_split_loss(members[0].step, layouts[0])) return layouts;
  for (std::size_t m = 0; m < members.size(); ++m) members[m].step = losses_in_parts(members[m].step, layouts[m], wishes[m].members);
  return decided(members, wishes);
}

// All members' steps along one more axis, of the model's own collectives: each has all states.
std::vector<MemberStep> along_own(const std::vector<MemberStep>& from, const MeshAxis& axis) {
  std::vector<MemberStep> out;
  for (const MemberStep& member : from)
    for (std::int64_t m = 0; m < axis.size; ++m) {
      out.push_back({of_member(member.step, axis, m), member.place, member.is_copy, member.apart});
      out.back().place.insert(out.back().place.begin(), m);
      if (m > 0) out.back().is_copy.assign(out.back().is_copy.size(), true);
    }
  return out;
}

// The last axis first: its members have the fastest links and the most to say to each other, and find the step as the model has it, not
// what other axes have packed. In the order of the members' devices. `text`: takes the layouts as text, if asked for.
std::vector<MemberStep> steps_of(Graph step, const LowerOptions& options, std::string* text = nullptr) {
  const auto states = static_cast<std::size_t>(step.state);
  std::vector<MemberStep> members{{std::move(step), {}, std::vector<bool>(states)}};
  const std::vector<MeshAxis> own = axes_of_collectives(members[0].step);
  for (const LayoutAxis& axis : options.axes | std::views::reverse) {
    if (const auto of_model = std::ranges::find(own, axis.name, &MeshAxis::name); of_model != own.end()) {
      if (text) *text += concat("axis ", axis.name, " of ", axis.size, " members: the model's own collectives\n");
      members = along_own(members, *of_model);
      continue;
    }
    std::vector<AxisWishes> wishes;
    for (const MemberStep& member : members) wishes.push_back(wishes_of(axis, member.step, options.dims));
    const std::vector<GraphLayouts> layouts = decided_with_losses(members, wishes);
    if (text) *text += layouts_text(members[0].step, layouts[0], wishes[0]);
    std::vector<MemberStep> next;
    for (std::size_t of = 0; of < members.size(); ++of)
      for (std::int64_t m = 0; m < axis.size; ++m) next.push_back(along(members[of], layouts[of], wishes[of], m, options.axes.size() > 1));
    members = std::move(next);
  }
  std::ranges::sort(members, {}, &MemberStep::place);
  return members;
}

// The model's own collectives as devices do them, when all axes are worked on: packing flattens tensors, which no axis could split.
Graph packed_step(const MemberStep& member, const std::vector<MeshAxis>& own, const LowerOptions& options) {
  std::vector<std::int64_t> place;
  for (const MeshAxis& axis : own)
    place.push_back(member.place[std::ranges::find(options.axes, axis.name, &LayoutAxis::name) - options.axes.begin()]);
  return own.empty() ? member.step : pack_collectives(member.step, own, place);
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

// The member that gives a broadcast has a copy of what it gives.
void push_broadcast(const LowerInput& input, Run run, std::int32_t axis, std::vector<Run>& row) {
  if (input.place[axis] != run.root) {
    run.reads.clear();
    return row.push_back(std::move(run));
  }
  Run copy = run;
  copy.opcode = Opcode::copy;
  copy.axis = copy.group = copy.root = -1;
  run.writes.clear();
  row.push_back(std::move(run));
  row.push_back(std::move(copy));
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
    for (Run& run : from.actors[actor]) {
      if (run.opcode == Opcode::output && member > 0) continue;
      const std::int32_t axis = run.axis;
      Run here = joined(j, std::move(run), from.groups, tasks, first, actor, member);
      if (here.opcode == Opcode::broadcast)
        push_broadcast(input, std::move(here), axis, row);
      else
        row.push_back(std::move(here));
    }
  }
  for (InstanceId state : from.refreshed) j.draft.refreshed.emplace_back(state.value + first);
}

}  // namespace

std::vector<LowerInput> member_inputs(const Graph& traced, const Schedule& schedule, const LowerOptions& options) {
  if (options.axes.empty()) return {lower_input(traced, schedule, options)};
  StagedStep staged = staged_step(traced, schedule, options);
  const std::vector<MeshAxis> own = axes_of_collectives(staged.step);
  // Devices that share rows sum the same gradients, too, each maybe its share alone, which a joined tensor does not have. Along one of
  // several axes a joined tensor would mix what is whole along another with parts. A model's own collectives stay as it has them.
  const bool joins =
      own.empty() && options.axes.size() == 1 && std::ranges::all_of(options.devices, [](int devices) { return devices == 1; });
  std::vector<LowerInput> out;
  for (MemberStep& member : steps_of(std::move(staged.step), options)) {
    if (joins) member.step = join_sums(member.step);
    verify(member.step);
    Graph step = eliminate_common_subexpressions(eliminate_dead_code(drop_constraints(packed_step(member, own, options))));
    LowerInput& input = out.emplace_back(staged_input({std::move(step), staged.stages, std::move(member.apart)}, schedule, options));
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
