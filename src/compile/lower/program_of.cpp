// SPDX-License-Identifier: Apache-2.0
// From the last draft to the program: instances become slots, and what stands before and behind each run its instructions. Decides nothing.
#include <algorithm>
#include <map>
#include <utility>

#include "lower/execution.h"
#include "lower/passes.h"
#include "lower/touches.h"
#include "program/memory_plan.h"
#include "program/verify.h"

namespace penstock {
namespace {

// Whether a port of one micro-batch or step has the samples along its first dim: so it does where the step's own port is cut, and where
// only micro-batches have such ports.
bool has_samples(const Port& port, const Program& program) {
  const auto whole = std::ranges::find(program.data, data_name(port), &Port::name);
  return whole == program.data.end() || whole->split;
}

void declare_ports(const LowerInput& input, Program& program) {
  const Graph& step = input.step;
  const std::vector<ValueId>& operands = input.loop_op().operands;
  const auto split = operands.begin() + static_cast<std::ptrdiff_t>(attribute<std::int64_t>(input.loop_op(), "split"));
  const std::size_t shared = input.first_port ? input.first_port.index() : step.inputs.size();
  for (std::size_t i = step.state; i < shared; ++i) {
    const Value& value = step.values[step.inputs[i]];
    program.data.push_back({value.name, value.type, std::find(operands.begin(), split, step.inputs[i]) != split});
  }
  // By micro-batch or step, whose number their names end with.
  std::size_t each = 0;
  for (std::size_t i = shared; i < step.inputs.size(); ++i) each += step.values[step.inputs[i]].name.ends_with(".0");
  std::int64_t row = 0, rows = 0;
  for (std::size_t i = shared; i < step.inputs.size(); ++i) {
    const Value& value = step.values[step.inputs[i]];
    program.data.push_back({value.name, value.type, false, row});
    if (has_samples(program.data.back(), program)) rows = value.type.shape[0];
    if ((i + 1 - shared) % each == 0) row += std::exchange(rows, 0);
  }
  for (std::size_t o = step.state; o < step.outputs.size(); ++o) {
    const std::size_t index = o - step.state;
    const std::string name = index < step.output_names.size() ? step.output_names[index] : "output" + std::to_string(index);
    program.outputs.push_back({name, step.type(step.outputs[o]), false});
  }
}

Slot slot_of(const Instance& instance, ActorId device) {
  Slot slot;
  slot.name = instance.name;
  slot.parts = instance.types;
  slot.room = instance.room;
  if (instance.home == device) slot.terms = instance.terms;
  if (instance.host) slot.kind = SlotClass::host;
  if (instance.source == Instance::Source::state) {
    slot.kind = instance.owned && instance.home == device ? SlotClass::state : SlotClass::copy;
    slot.names = {instance.name};
  }
  return slot;
}

// The transfers, inputs and frees that one device does between its runs.
struct Around {
  std::vector<TransferId> outgoing, incoming;   // in order
  std::vector<std::vector<InstanceId>> inputs;  // [run]: ahead of it
  std::vector<std::vector<InstanceId>> frees;   // [run]: behind it; the last: at the end
};

IdVector<ActorId, Around> around_runs(const Draft& draft) {
  IdVector<ActorId, Around> out(draft.actors.size());
  IdVector<ActorId, std::vector<TransferId>> incoming = incoming_of(draft);
  for (const ActorId d : out.ids()) {
    out[d].incoming = std::move(incoming[d]);
    out[d].inputs.resize(draft.actors[d].size());
    out[d].frees.resize(draft.actors[d].size() + 1);
  }
  for (const TransferId t : draft.transfers.ids()) out[draft.transfers[t].from].outgoing.push_back(t);
  for (Around& around : out) std::ranges::stable_sort(around.outgoing, {}, [&](TransferId t) { return draft.transfers[t].after; });
  for (const Free& free : draft.frees) out[free.device].frees[free.after].push_back(free.instance);
  return out;
}

// One device's list of instructions under construction. Slots are in the order of its touches.
struct Emission {
  const LowerInput& input;
  const Draft& draft;
  const Touches& touches;
  DeviceProgram& device;
  std::map<std::int32_t, std::int32_t> group_tags{};  // of collectives, by group

  SlotId slot(InstanceId instance) const { return SlotId(touches.place(instance)); }
  const Transfer& transfer(TransferId id) const { return draft.transfers[id]; }
};

void push_send(Emission& e, const Transfer& t) {
  e.device.instructions.push_back({.opcode = Opcode::send, .slot = e.slot(t.instance), .peer = t.to.value, .tag = t.tag});
}
void push_receive(Emission& e, const Transfer& t) {
  e.device.instructions.push_back({.opcode = Opcode::recv, .slot = e.slot(t.instance), .peer = t.from.value, .tag = t.tag});
}
void push_input(Emission& e, InstanceId i) {
  const Instance& data = e.draft.instances[i];
  e.device.instructions.push_back(
      {.opcode = Opcode::input, .microbatch = data.unit.microbatch, .slot = e.slot(i), .port = data.input.value - e.input.step.state});
}
void push_frees(Emission& e, const std::vector<InstanceId>& instances) {
  for (InstanceId i : instances) e.device.instructions.push_back({.opcode = Opcode::free, .slot = e.slot(i)});
}

// One instruction of what the run reads and writes.
void push_operands(Emission& e, const Run& run, Instruction out, std::span<const InstanceId> reads, std::span<const Write> writes) {
  out.opcode = run.opcode;
  out.action = bool(run.stage);
  if (out.action) out.kind = run.kind;
  out.stage = run.stage.value;
  out.microbatch = run.unit.microbatch;
  out.first_operand = static_cast<std::uint32_t>(e.device.operands.size());
  out.operands = static_cast<std::uint32_t>(reads.size());
  out.first_result = static_cast<std::uint32_t>(e.device.results.size());
  out.results = static_cast<std::uint32_t>(writes.size());
  for (InstanceId i : reads) e.device.operands.push_back(e.slot(i));
  for (const Write& write : writes) e.device.results.push_back({e.slot(write.instance), write.mode});
  e.device.instructions.push_back(out);
}

void push_run(Emission& e, const Run& run) {
  if (is_transfer(run)) return;  // what starts there stands around it
  if (run.opcode == Opcode::output) {
    e.device.instructions.push_back({.opcode = Opcode::output, .slot = e.slot(run.reads[0]), .port = run.port});
  } else if (is_host_copy(run.opcode)) {
    for (std::size_t i = 0; i < run.reads.size(); ++i) push_operands(e, run, {}, {&run.reads[i], 1}, {&run.writes[i], 1});
  } else {
    Instruction out{.task = run.task};
    if (is_collective(run.opcode)) {
      out.group = run.group;
      out.tag = e.group_tags[run.group]++;
      if (run.root >= 0) out.peer = e.draft.groups[run.group][run.root];
    }
    push_operands(e, run, out, run.reads, run.writes);
  }
}

void push_all(Emission& e, const std::vector<Run>& runs, const Around& around) {
  std::size_t in = 0, out = 0;
  for (std::int32_t r = 0; const Run& run : runs) {
    while (in < around.incoming.size() && e.transfer(around.incoming[in]).before <= r) push_receive(e, e.transfer(around.incoming[in++]));
    for (InstanceId i : around.inputs[r]) push_input(e, i);
    push_run(e, run);
    while (out < around.outgoing.size() && e.transfer(around.outgoing[out]).after <= r) push_send(e, e.transfer(around.outgoing[out++]));
    push_frees(e, around.frees[r++]);
  }
  // The refreshes, in one order everywhere.
  while (in < around.incoming.size() || out < around.outgoing.size()) {
    if (in == around.incoming.size() || (out < around.outgoing.size() && around.outgoing[out] < around.incoming[in]))
      push_send(e, e.transfer(around.outgoing[out++]));
    else
      push_receive(e, e.transfer(around.incoming[in++]));
  }
  push_frees(e, around.frees.back());
}

// Data are read ahead of their first reader. In a window whose rows are looked up ahead they are read before that, so that the device need
// not wait for them: a micro-batch's where the same one of the step before has its first reader, a step's where its micro-batches have.
void place_inputs(const LowerInput& input, const Draft& draft, const std::vector<Touch>& touches, Around& around) {
  const std::int32_t steps = input.schedule.steps, ahead = input.options.prefetch ? input.microbatches / steps : 0;
  std::map<std::pair<InputId, std::int32_t>, std::int32_t> first;  // by port and micro-batch
  std::map<std::int32_t, std::int32_t> begin;                      // by step
  for (const Touch& touch : touches) {
    const Instance& data = draft.instances[touch.instance];
    if (ahead == 0 || data.source != Instance::Source::data || !data.unit) continue;
    first[{data.input, data.unit.microbatch}] = touch.first_read;
    std::int32_t& earliest = begin.try_emplace(data.unit.microbatch / ahead, touch.first_read).first->second;
    earliest = std::min(earliest, touch.first_read);
  }
  const auto place = [&](const Instance& data, std::int32_t reader) {
    if (data.unit) {
      const auto before = first.find({data.input, data.unit.microbatch - ahead});
      return before == first.end() ? reader : before->second;
    }
    if (ahead == 0 || !input.first_port || data.input < input.first_port) return reader;
    const std::int32_t each = (static_cast<std::int32_t>(input.step.inputs.size()) - input.first_port.value) / steps;
    const auto own = begin.find((data.input.value - input.first_port.value) / each);
    return own == begin.end() ? reader : std::min(reader, own->second);
  };
  for (const Touch& touch : touches)
    if (const Instance& data = draft.instances[touch.instance]; data.source == Instance::Source::data)
      around.inputs[place(data, touch.first_read)].push_back(touch.instance);
}

}  // namespace

Program program_of(const LowerInput& input, Draft draft, TaskPool* pool) {
  Program program;
  program.name = input.step.name;
  program.microbatches = input.microbatches;
  declare_ports(input, program);
  IdVector<ActorId, Around> around = around_runs(draft);
  std::vector<InstanceId> states;
  for (const InstanceId i : draft.instances.ids())
    if (draft.instances[i].source == Instance::Source::state && !draft.instances[i].types.empty()) states.push_back(i);
  Touches touches(draft);
  for (const ActorId device : draft.actors.ids()) {
    place_inputs(input, draft, touches.of(draft, device), around[device]);
    // State that no run of its home reads or writes still lives there.
    for (InstanceId state : states)
      if (draft.instances[state].home == device) touches.touch(state);
    Emission emission{input, draft, touches, program.devices.emplace_back()};
    for (const Touch& touch : touches.all()) emission.device.slots.push_back(slot_of(draft.instances[touch.instance], device));
    push_all(emission, draft.actors[device], around[device]);
  }
  if (pool) pool->share(draft);
  program.groups = std::move(draft.groups);
  program.tasks = std::move(draft.tasks);
  plan_memory(program);
  verify(program, {ChannelModel::serial, -1});  // so it also finishes where transfers are independent
  if (program_watch) program_watch(program);
  return program;
}

}  // namespace penstock
