// SPDX-License-Identifier: Apache-2.0
#include "lower/draft.h"

#include <algorithm>
#include <numeric>

#include "base/invariant.h"
#include "base/text.h"
#include "schedule/kinds.h"

namespace penstock {

InstanceId add(Draft& draft, Instance instance) {
  draft.instances.push_back(std::move(instance));
  return InstanceId(draft.instances.size() - 1);
}

TaskId add_task(Draft& draft, std::string name, Graph graph) {
  graph.name = name;
  return add_task(draft, std::move(name), TaskGraph(std::move(graph)));
}

namespace {

std::string unused_name(Draft& draft, const std::string& name) {
  std::string out = name;
  for (int number = 2; !draft.task_names.insert(out).second; ++number) out = concat(name, ".", number);
  return out;
}

}  // namespace

TaskId add_task(Draft& draft, std::string name, const TaskGraph& graph) {
  const std::uint64_t hash = structural_hash(graph);
  for (auto [it, end] = draft.task_by_hash.equal_range(hash); it != end; ++it)
    if (const TaskGraph& other = draft.tasks[it->second].graph; &*other == &*graph || structurally_equal(other, graph)) return it->second;
  draft.tasks.push_back({unused_name(draft, name), graph, 0});
  const TaskId id(draft.tasks.size() - 1);
  draft.task_by_hash.emplace(hash, id);
  return id;
}

TaskId add_task(Draft& draft, const Task& task, const std::string& suffix) {
  return suffix.empty() ? add_task(draft, task.name, task.graph) : add_task(draft, task.name + suffix, Graph(*task.graph));
}

void renumber(Run& run, const Renumbering& to) {
  if (run.task) run.task = to.tasks[run.task];
  for (InstanceId& read : run.reads) read = to.instances[read];
  for (Write& write : run.writes) write.instance = to.instances[write.instance];
}

InstanceId input_instance(const LowerInput& input, Draft& draft, InputId which, Unit unit) {
  const auto [it, added] = draft.inputs.try_emplace({which, unit});
  if (!added) return it->second;
  const Value& value = input.step.values[input.value(which)];
  Instance instance;
  instance.name = value.name;
  instance.types = {value.type};
  instance.input = which;
  instance.unit = unit;
  instance.source = input.is_state(which) ? Instance::Source::state : Instance::Source::data;
  if (unit && input.shape_class.empty()) {
    instance.name += concat(".", unit.microbatch);
    instance.types[0].shape[0] /= input.microbatches;
  }
  if (const auto member = draft.sharded_states.find(which); member != draft.sharded_states.end()) {
    instance.block = member->second.block;
    instance.members = {member->second.index};
    instance.held = holding_of(input, draft, which);
  }
  return it->second = add(draft, std::move(instance));
}

InstanceId add_block(Draft& draft, BlockId block, ActorId actor, std::string name, const Holding& held) {
  Instance instance;
  instance.name = std::move(name);
  instance.types = draft.blocks[block].members;
  instance.home = actor;
  instance.block = block;
  instance.members.resize(instance.types.size());
  std::iota(instance.members.begin(), instance.members.end(), 0);
  instance.held = held;
  return add(draft, std::move(instance));
}

std::vector<TensorType> gathered_types(const ShareBlock& block) {
  std::vector<TensorType> out = block.members;
  for (TensorType& member : out) member.dtype = block.cast.value_or(member.dtype);
  return out;
}

InstanceId add_gathered(Draft& draft, BlockId block, ActorId actor, std::string name, const Holding& held) {
  const InstanceId out = add_block(draft, block, actor, std::move(name), held);
  draft.instances[out].types = gathered_types(draft.blocks[block]);
  return out;
}

TaskId copy_task(Draft& draft, BlockId block) {
  Graph graph;
  for (const TensorType& member : draft.blocks[block].members)
    graph.outputs.push_back(graph.add_input(member, concat("x", graph.inputs.size())));
  return add_task(draft, concat("copy.", block.value), std::move(graph));
}

TaskId cast_task(Draft& draft, BlockId block) {
  const ShareBlock& from = draft.blocks[block];
  if (!from.cast) return copy_task(draft, block);
  Graph graph;
  for (const TensorType& member : from.members) graph.add_input(member, concat("x", graph.inputs.size()));
  for (const TensorType& member : gathered_types(from)) {
    const ValueId own = graph.inputs[graph.outputs.size()];
    graph.outputs.push_back(graph.add_value(member));
    Op& cast = graph.ops.emplace_back();
    cast.name = "to";
    cast.operands = {own};
    cast.results = {graph.outputs.back()};
    cast.attributes = {{"dtype", member.dtype}};
  }
  return add_task(draft, concat("cast.", block.value), std::move(graph));
}

Holding device_share(const LowerInput& input) {
  return {Layout::Kind::flat, input.local > 1 ? Layout::Kind::flat : Layout::Kind::whole};
}

Holding holding_of(const LowerInput& input, const Draft& draft, InputId state) {
  const auto member = draft.sharded_states.find(state);
  if (member == draft.sharded_states.end()) return {};
  const std::vector<InputId>& parameters = draft.blocks[member->second.block].parameters;  // one for each member, or none
  const bool is_parameter = !parameters.empty() && parameters[member->second.index] == state;
  return is_parameter ? kHostShare : device_share(input);
}

bool is_all_of_block(const Draft& draft, const Instance& instance) {
  return instance.members.size() == draft.blocks[instance.block].members.size();
}

std::vector<std::int64_t> member_offsets(const ShareBlock& block) {
  std::vector<std::int64_t> out = {0};
  for (const TensorType& member : block.members) {
    Slot slot;
    slot.parts = {member};
    out.push_back(out.back() + slot_bytes(slot));
  }
  return out;
}

std::int64_t share_bytes(const ShareBlock& block, const std::vector<std::int64_t>& offsets, std::int32_t devices) {
  const std::int64_t share = block.parameters.empty() ? kAlignment : 2 * kAlignment, unit = share * devices;
  return (offsets.back() + unit - 1) / unit * share;
}

Layout flat_in(const ShareBlock& block, const std::vector<std::int64_t>& offsets, std::int32_t member, std::int32_t devices,
               std::int32_t local) {
  const std::int64_t size = byte_size(block.members[member].dtype);
  return {Layout::Kind::flat, -1, offsets[member] / size, share_bytes(block, offsets, devices) * local / size};
}

Layout flat_in_host(const Layout& along_hosts, std::int32_t host, std::int32_t local) {
  Layout out = along_hosts;
  out.outer = std::max<std::int64_t>(out.outer - host * out.units, 0);
  out.units /= local;
  return out;
}

Opcode collective_of(const Op& op) {
  Opcode found = Opcode::run;
  for (const Opcode opcode : {Opcode::all_reduce, Opcode::all_gather, Opcode::reduce_scatter, Opcode::broadcast, Opcode::all_to_all})
    if (name(opcode) == op.name) found = opcode;
  invariant(is_collective(found), "an op that members do together is a collective of devices");
  return found;
}

void make_collective(const LowerInput& input, const Op& op, Run& run) {
  const auto number = [&](const char* name) { return static_cast<std::int32_t>(attribute<std::int64_t>(op, name)); };
  run.axis = input.line(attribute<std::string>(op, "axis"));
  if (op.name == "shift_members") {
    run.opcode = Opcode::copy;
    run.by = number("by");
    run.message = number("message");
    return;
  }
  run.opcode = collective_of(op);
  if (run.opcode == Opcode::broadcast) run.root = number("root");
}

IdVector<ValueId, bool> dependent_values(const LowerInput& input) {
  IdVector<ValueId, bool> dependent(input.step.values.size());
  for (std::size_t i = 0; i < input.step.ops.size(); ++i) {
    const Op& op = input.step.ops[i];
    const bool depends = i == input.loop || std::ranges::any_of(op.operands, [&](ValueId v) { return dependent[v]; });
    for (ValueId v : op.results) dependent[v] = depends;
  }
  return dependent;
}

InputId LowerInput::port_of(std::int32_t operand, std::int32_t microbatch) const {
  return InputId(first_port.value + microbatch * attribute<std::int64_t>(loop_op(), "split") + operand);
}

std::int32_t LowerInput::line(std::string_view name) const {
  const auto found = std::ranges::find(lines, name, &MemberLine::name);
  return found == lines.end() ? -1 : static_cast<std::int32_t>(found - lines.begin());
}

bool is_beside(const Run& run) {
  return is_host_copy(run.opcode) || is_collective(run.opcode) || is_transfer(run) || (run.stage && is_collective(run.kind));
}

bool is_transfer(const Run& run) {
  return run.opcode == Opcode::send || run.opcode == Opcode::recv;
}

}  // namespace penstock
