// SPDX-License-Identifier: Apache-2.0
#include "lower/member_inputs.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <tuple>
#include <utility>

#include "base/invariant.h"
#include "base/text.h"
#include "base/words.h"
#include "ops/definition.h"
#include "ops/verify.h"
#include "penstock/error.h"
#include "program/piece.h"
#include "stage/loop.h"
#include "transform/attention_in_parts.h"
#include "transform/collectives.h"
#include "transform/layouts.h"
#include "transform/passes.h"

namespace penstock {
namespace {

// One member's step while the axes are worked on, one after the other.
struct MemberStep {
  Graph step;
  std::vector<std::int64_t> place;         // along the axes so far, in the mesh's order
  std::vector<bool> is_copy;               // by state: a member of a lower place has the same
  std::vector<std::uint32_t> split_along;  // by state: LowerInput's
  std::vector<std::uint32_t> apart = {};   // by result of the loop: StagedStep's
};

// The dims' layout for one axis, over which those of these names are split. Throws Error where the axis is to split two of them, or more
// ways than there are units.
Layout wished(const LayoutAxis& axis, const std::set<std::string>& names, const std::string& name, const TensorType& whole,
              const std::vector<DimName>& dims) {
  Layout out = kWhole;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const DimName& dim = dims[d];
    if (!names.contains(dim.name)) continue;
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

// For each state the stages of the loop that read it, or what is computed of it before the loop.
std::vector<std::set<std::string>> reading_stages(const Graph& step) {
  IdVector<ValueId, std::set<int>> of(step.values.size());  // the states that a value is computed of
  for (int s = 0; s < step.state; ++s) of[step.inputs[s]] = {s};
  std::vector<std::set<std::string>> out(step.state);
  for (const Op& op : step.ops) {
    if (!op.body) {
      for (ValueId result : op.results)
        for (ValueId operand : op.operands) of[result].insert(of[operand].begin(), of[operand].end());
      continue;
    }
    IdVector<ValueId, std::set<int>> inside(op.body->values.size());
    for (std::size_t o = 0; o < op.operands.size(); ++o) inside[op.body->inputs[o]] = of[op.operands[o]];
    for (const Op& reader : op.body->ops)
      for (ValueId operand : reader.operands)
        for (int s : inside[operand]) out[s].insert(reader.stage);
  }
  return out;
}

// The layout that a parameter's dims have in all stages that read it. Throws Error where they say different things of it.
Layout wished_by_stages(const LayoutAxis& axis, const AxisWishes& wishes, const Value& state, const std::vector<DimName>& dims,
                        const std::set<std::string>& stages) {
  std::optional<Layout> out;
  std::string first;
  for (const std::string& stage : stages) {
    const Layout layout = wished(axis, wishes.dims_in(stage), state.name, state.type, dims);
    if (!out) first = stage;
    if (out && *out != layout)
      throw Error(concat(quote(state.name), " would lie in two ways along axis ", quote(axis.name), ": stage ", quote(first), " reads it ",
                         text_of(*out), ", stage ", quote(stage), " ", text_of(layout)),
                  {concat(quote(state.name), " is ", state.type.text(), ", its dims ",
                          join(dims, ", ", [](const DimName& dim) { return quote(dim.name); })),
                   "a parameter lies in one way, whoever reads it"},
                  concat("say the same of its dims for stages ", quote(first), " and ", quote(stage), " in [layout]"));
    out = layout;
  }
  return out ? *out : wished(axis, axis.dims, state.name, state.type, dims);
}

[[noreturn]] void fail_beside_sequence(const LayoutAxis& axis) {
  std::set<std::string> others = axis.dims;
  others.erase("sequence");
  throw Error(
      concat("attention in parts along axis ", quote(axis.name), ": ",
             others.empty() ? "stages have layouts of their own" : concat("beside \"sequence\" it has ", join(others, ", ", quote))),
      {"parts of a sequence are for members that have nothing else in parts"},
      "give the sequence an axis of its own (--mesh context=N), or set pipeline.attention = \"heads\"");
}

// Whether attention over sequences split along the axis is computed in parts: where nothing else lies along it, as parts of a sequence do
// not follow each other then. Members do different ops for it, so no other axis can be worked on behind this one.
bool takes_parts(const LayoutAxis& axis, const Graph& step, const CompileOptions& options) {
  const bool is_last = axis.name == options.axes.front().name;
  const bool only_sequence = axis.dims == std::set<std::string>{"sequence"} && axis.stage_dims.empty();
  if (!axis.dims.contains("sequence") || options.attention == SplitAttention::heads) return false;
  if (!only_sequence && options.attention == SplitAttention::parts) fail_beside_sequence(axis);
  if (!only_sequence) return false;
  if (options.attention == SplitAttention::automatic) return is_last && has_few_heads(step, axis.size);
  check_parts(step, axis.name, axis.size);
  if (!is_last)
    throw Error(
        concat("attention in parts along axis ", quote(axis.name), ": axis ", quote(options.axes.front().name), " stands before it"),
        {"what members do of attention in parts is not alike, so no axis can stand before theirs"},
        concat("write ", axis.name, " first in --mesh, or pipeline.attention = \"heads\""));
  return true;
}

// Layouts of the parameters by the names of their dims. No dim is cut by two axes, as a name lies along one.
AxisWishes wishes_of(const LayoutAxis& axis, const Graph& step, const std::map<std::string, std::vector<DimName>>& dims) {
  AxisWishes out{axis.name, axis.size, {}, axis.dims, axis.stage_dims, false};
  out.in_groups = axis.in_groups;
  std::vector<std::set<std::string>> readers(step.state);
  if (!axis.stage_dims.empty()) readers = reading_stages(step);
  for (int s = 0; s < step.state; ++s) {
    const Value& state = step.values[step.inputs[s]];
    const auto named = dims.find(parse_piece(state.name).tensor);
    if (named != dims.end()) out.states[state.name] = wished_by_stages(axis, out, state, named->second, readers[s]);
  }
  return out;
}

// Throws Error for names of dims in a stage that there is not.
void check_stages(const CompileOptions& options, const IdVector<StageId, std::string>& stages) {
  const std::vector<std::string> known(stages.begin(), stages.end());
  for (const LayoutAxis& axis : options.axes)
    for (const auto& [stage, dims] : axis.stage_dims)
      if (std::ranges::find(known, stage) == known.end())
        throw Error(concat("layout.", stage, ": there is no stage ", quote(stage)), {concat("the stages: ", join(known, ", ", quote))},
                    did_you_mean(stage, known));
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
MemberStep along(const MemberStep& from, const GraphLayouts& layouts, const AxisWishes& wishes, std::int64_t member, bool all_parts,
                 LocalValues* values) {
  MemberStep out{localise(from.step, layouts, wishes, member, values), from.place, from.is_copy, from.split_along, from.apart};
  note_apart(layouts, wishes, all_parts, out);
  out.place.insert(out.place.begin(), member);
  for (int s = 0; s < out.step.state; ++s) {
    const Layout& layout = layouts.values[from.step.inputs[s]];
    Value& state = out.step.values[out.step.inputs[s]];
    if (layout.is_split()) {
      state.name = piece_name(state.name, cut_of(layout, from.step.type(from.step.inputs[s]).shape, wishes.members, member));
      out.split_along[s] |= 1u << from.place.size();
    } else if (member > 0) {
      out.is_copy[s] = true;
    }
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

// Groups' sums are summed over all members: none may have more of one than its own terms.
void check_terms(const Graph& step, const GraphLayouts& layouts, const AxisWishes& wishes) {
  const Op& loop = step.ops[loop_of(step)];
  for (std::size_t r = 0; r < loop.results.size(); ++r)
    if (const Layout& layout = layouts.body->outputs[r]; !layout.is_term())
      throw Error(concat("groups of members of axis ", quote(wishes.axis), " cannot sum result ", r, " of the loop, ",
                         step.type(loop.results[r]).text(), ": each member has it ", text_of(layout)),
                  {}, "let samples share rows, or use another planner than flexsp");
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

// The same of the steps that they are changed to, as their layouts say: losses of split classes are computed in parts, and what stages give
// each other is split on the way.
std::vector<GraphLayouts> decided_and_changed(std::vector<MemberStep>& members, const std::vector<AxisWishes>& wishes) {
  std::vector<GraphLayouts> layouts = decided(members, wishes);
  if (has_split_loss(members[0].step, layouts[0])) {
    for (std::size_t m = 0; m < members.size(); ++m) members[m].step = losses_in_parts(members[m].step, layouts[m], wishes[m].members);
    layouts = decided(members, wishes);
  }
  if (!wishes[0].has_links()) return layouts;
  std::vector<const Graph*> steps;
  for (const MemberStep& member : members) steps.push_back(&member.step);
  std::vector<Graph> linked = with_links(steps, layouts[0], wishes[0]);
  for (std::size_t m = 0; m < members.size(); ++m) members[m].step = std::move(linked[m]);
  return decided(members, wishes);
}

// The same along an axis of the model's own collectives, where each has all states.
MemberStep along_own(const MemberStep& from, const MeshAxis& axis, std::int64_t member) {
  MemberStep out{of_member(from.step, axis, member), from.place, from.is_copy, from.split_along, from.apart};
  out.place.insert(out.place.begin(), member);
  if (member > 0) out.is_copy.assign(out.is_copy.size(), true);
  return out;
}

// The members along one more axis, as pairs of what they are made of and their place on it; of the outermost axis in the order of devices.
std::vector<std::pair<std::size_t, std::int64_t>> turns_of(const std::vector<MemberStep>& from, std::int64_t size, bool is_outermost) {
  std::vector<std::pair<std::size_t, std::int64_t>> out;
  for (std::size_t of = 0; of < from.size(); ++of)
    for (std::int64_t m = 0; m < size; ++m) out.emplace_back(of, m);
  if (is_outermost) std::ranges::sort(out, {}, [&](const auto& turn) { return std::pair(turn.second, from[turn.first].place); });
  return out;
}

using TakeMember = std::function<void(MemberStep)>;

// The way in which steps become their members'.
struct Splitting {
  const CompileOptions& options;
  const LoopSums& sums;
  std::vector<AxisDecision>* decisions = nullptr;  // takes what is decided; null: nobody asks
  bool only_first = false;                         // the first member's step is enough
};

// The last axis first: its members have the fastest links and the most to say to each other, and find the step as the model has it, not
// what other axes have packed. Hands them out in the order of their devices, each made when its turn comes: a long sequence in many slices
// is a large step.
void take_steps(Graph step, const Splitting& how, const TakeMember& take) {
  const auto& [options, sums, decisions, only_first] = how;
  const auto states = static_cast<std::size_t>(step.state);
  std::vector<MemberStep> members{{std::move(step), {}, std::vector<bool>(states), std::vector<std::uint32_t>(states)}};
  if (options.axes.empty()) return take(std::move(members[0]));
  const std::vector<MeshAxis> own = axes_of_collectives(members[0].step);
  for (const LayoutAxis& axis : options.axes | std::views::reverse) {
    const bool is_outermost = &axis == &options.axes.front();
    const auto turns = turns_of(members, only_first ? 1 : axis.size, is_outermost);
    std::vector<MemberStep> next;
    const auto keep = [&](MemberStep member) { is_outermost ? take(std::move(member)) : next.push_back(std::move(member)); };
    if (const auto of_model = std::ranges::find(own, axis.name, &MeshAxis::name); of_model != own.end()) {
      if (decisions) decisions->push_back({.wishes = {axis.name, axis.size, {}, {}}, .own = true});
      for (const auto& [of, m] : turns) keep(along_own(members[of], *of_model, m));
      members = std::move(next);
      continue;
    }
    // If one member along the axes before has too few heads, all compute attention in parts: a sequence lies alike on all.
    const bool in_parts = std::ranges::any_of(members, [&](const MemberStep& member) { return takes_parts(axis, member.step, options); });
    std::vector<AxisWishes> wishes;
    for (const MemberStep& member : members) {
      wishes.push_back(wishes_of(axis, member.step, options.dims));
      wishes.back().attention_in_parts = in_parts;
      if (const auto given = sums.find(axis.name); given != sums.end()) wishes.back().sums = given->second.at(wishes.size() - 1);
    }
    const std::vector<GraphLayouts> layouts = decided_and_changed(members, wishes);
    if (axis.in_groups) check_terms(members[0].step, layouts[0], wishes[0]);
    LocalValues values;
    bool is_first = true;
    for (const auto& [of, m] : turns)
      keep(along(members[of], layouts[of], wishes[of], m, options.axes.size() > 1, std::exchange(is_first, false) ? &values : nullptr));
    if (decisions) decisions->push_back({wishes[0], false, std::move(members[0].step), layouts, std::move(values)});
    members = std::move(next);
  }
}

// The model's own collectives as devices do them, when all axes are worked on: packing flattens tensors, which no axis could split.
Graph packed_step(MemberStep& member, const std::vector<MeshAxis>& own, const CompileOptions& options) {
  if (own.empty()) return std::move(member.step);
  std::vector<std::int64_t> place;
  for (const MeshAxis& axis : own)
    place.push_back(member.place[std::ranges::find(options.axes, axis.name, &LayoutAxis::name) - options.axes.begin()]);
  return pack_collectives(std::exchange(member.step, {}), own, place);
}

// Devices that share rows sum the same gradients, too, each maybe its share alone, which a joined tensor does not have. Along one of
// several axes a joined tensor would mix what is whole along another with parts. A model's own collectives stay as it has them.
bool joins_sums(const std::vector<MeshAxis>& own, const CompileOptions& options) {
  return own.empty() && options.axes.size() == 1 && std::ranges::all_of(options.devices, [](int devices) { return devices == 1; });
}

// The step as it is cut. The member's own is gone: of a long sequence in many slices each has hundreds of megabytes.
Graph finished(MemberStep& member, const std::vector<MeshAxis>& own, const CompileOptions& options) {
  if (joins_sums(own, options)) member.step = join_sums(member.step);
  verify(member.step);
  Graph step = packed_step(member, own, options);
  step = drop_constraints(step);
  step = eliminate_dead_code(step);
  return eliminate_common_subexpressions(step);
}

// Whether members have something to say to each other ahead of the loop.
bool speak_ahead(const MemberStep& member) {
  const auto& ops = member.step.ops;
  return std::any_of(ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(loop_of(member.step)),
                     [](const Op& op) { return is_collective(op); });
}

// The last axis varies fastest.
std::vector<MemberLine> lines_of(const std::vector<LayoutAxis>& axes, const std::vector<std::int64_t>& place) {
  std::vector<MemberLine> out(axes.size());
  std::int32_t stride = 1;
  for (std::size_t a = axes.size(); a-- > 0; stride *= axes[a].size)
    out[a] = {axes[a].name, axes[a].size, static_cast<std::int32_t>(place[a]), stride};
  return out;
}

// The facts that all members' steps have in common.
struct OfMembers {
  IdVector<StageId, std::string> stages;
  std::vector<MeshAxis> own;  // axes of the model's own collectives
};

// Hands out all members' steps. What is made of parameters alone stands ahead of the loop, where no messages are; where members would need
// some for it (a bias looked up in a table that they share), it stays in the loop.
void take_staged(const Graph& traced, const Schedule& schedule, const Splitting& how,
                 const std::function<void(MemberStep, const OfMembers&)>& take) {
  for (const bool hoist : {true, false}) {
    StagedStep staged = staged_step(traced, schedule, how.options, hoist);
    check_stages(how.options, staged.stages);
    const OfMembers of{staged.stages, axes_of_collectives(staged.step)};
    if (how.decisions) how.decisions->clear();
    std::optional<bool> speak;  // as the first does
    take_steps(std::move(staged.step), how, [&](MemberStep member) {
      const bool speaks = hoist && speak_ahead(member);
      invariant(speak.value_or(speaks) == speaks, "members have the same to say to each other");
      speak = speaks;
      if (!speaks) take(std::move(member), of);
    });
    if (!*speak) break;
  }
}

// Bytes of what the first member has: of the inputs, and of what ops make from the loop on, by their names.
struct FirstMember {
  std::vector<std::int64_t> inputs;
  std::map<std::string, std::vector<std::int64_t>, std::less<>> made;
};

FirstMember first_member(const LowerInput& input) {
  FirstMember out;
  for (const ValueId v : input.step.inputs) out.inputs.push_back(input.step.type(v).bytes());
  for (std::size_t o = input.loop; o < input.step.ops.size(); ++o)
    for (const ValueId v : input.step.ops[o].results) out.made[input.step.ops[o].name].push_back(input.step.type(v).bytes());
  return out;
}

// The first member's bytes for the values of another one's step. Both have the same inputs, but one may have ops that the other has not,
// such as the cast of a bias that it alone adds, or a constant with which it fills its part up. So a value is the n-th that ops of its name
// make.
IdVector<ValueId, std::int64_t> bytes_as_first(const FirstMember& first, const LowerInput& input) {
  IdVector<ValueId, std::int64_t> out;
  for (const Value& value : input.step.values) out.push_back(value.type.bytes());
  for (std::size_t i = 0; i < first.inputs.size(); ++i) out[input.step.inputs[i]] = first.inputs[i];
  std::map<std::string_view, std::size_t> next;
  for (std::size_t o = input.loop; o < input.step.ops.size(); ++o) {
    const std::string& name = input.step.ops[o].name;
    const auto made = first.made.find(name);
    for (const ValueId v : input.step.ops[o].results)
      if (const std::size_t n = next[name]++; made != first.made.end() && n < made->second.size()) out[v] = made->second[n];
  }
  return out;
}

}  // namespace

void take_members(const Graph& traced, const Schedule& schedule, const CompileOptions& options, const std::function<void(LowerInput)>& take,
                  const LoopSums& sums) {
  if (options.axes.empty()) return take(cut_input(staged_step(traced, schedule, options), schedule, options));
  std::optional<FirstMember> first;
  take_staged(traced, schedule, {options, sums}, [&](MemberStep member, const OfMembers& of) {
    Graph step = finished(member, of.own, options);
    LowerInput input = cut_input({std::move(step), of.stages, std::move(member.apart)}, schedule, options);
    input.lines = lines_of(options.axes, member.place);
    for (const MemberLine& line : input.lines) input.members *= line.size;
    input.is_copy.assign(member.is_copy.begin(), member.is_copy.end());
    input.split_along.assign(member.split_along.begin(), member.split_along.end());
    if (!first) first = first_member(input);
    input.first_bytes = bytes_as_first(*first, input);
    take(std::move(input));
  });
}

std::vector<LowerInput> member_inputs(const Graph& traced, const Schedule& schedule, const CompileOptions& options) {
  std::vector<LowerInput> out = cut_members(traced, schedule, options);
  for (LowerInput& input : out) input = checked_input(std::move(input));
  return out;
}

std::vector<LowerInput> cut_members(const Graph& traced, const Schedule& schedule, const CompileOptions& options, const LoopSums& sums) {
  std::vector<LowerInput> out;
  take_members(traced, schedule, options, [&](LowerInput input) { out.push_back(std::move(input)); }, sums);
  return out;
}

StagedStep first_member(const StagedStep& staged, const CompileOptions& options) {
  MemberStep member;
  take_steps(staged.step, {options, {}, nullptr, /*only_first=*/true}, [&](MemberStep first) { member = std::move(first); });
  Graph step = finished(member, axes_of_collectives(staged.step), options);
  return {std::move(step), staged.stages, std::move(member.apart)};
}

std::vector<AxisDecision> decide_axes(const Graph& step, const Schedule& schedule, const CompileOptions& options) {
  std::vector<AxisDecision> out;
  take_staged(step, schedule, {options, {}, &out}, [](const MemberStep&, const OfMembers&) {});
  return out;
}

std::string layouts_text(const std::vector<AxisDecision>& axes) {
  std::string out = "penstock layouts 1\n";
  for (const auto& [wishes, own, step, layouts, values] : axes)
    out += own ? concat("axis ", wishes.axis, " of ", wishes.members, " members: the model's own collectives\n")
               : layouts_text(step, layouts[0], wishes);
  return out;
}

}  // namespace penstock
