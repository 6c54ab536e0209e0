// SPDX-License-Identifier: Apache-2.0
// The text form of programs; parse.cpp reads it. A program may have a million instructions, so everything is appended to one string.
#include <charconv>

#include "base/text.h"
#include "penstock/program.h"

namespace penstock {
namespace {

class Writer {
 public:
  Writer& operator<<(std::string_view text) {
    out_ += text;
    return *this;
  }
  Writer& operator<<(std::int64_t value) {
    char buffer[24];
    out_.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
    return *this;
  }
  Writer& operator<<(std::int32_t value) { return *this << std::int64_t{value}; }
  Writer& operator<<(const TensorType& type) {
    *this << name(type.dtype) << "[";
    for (std::size_t i = 0; i < type.shape.size(); ++i) *this << (i > 0 ? "," : "") << type.shape[i];
    return *this << "]";
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

std::string_view name(SlotClass kind) {
  constexpr std::string_view kNames[] = {"step", "state", "copy", "host", "snapshot"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string_view name(ResultMode mode) {
  constexpr std::string_view kNames[] = {"store", "add", "update"};
  return kNames[static_cast<std::size_t>(mode)];
}

// A task's name as "@F0", quoted where it must be.
std::string task_name(std::string_view name) {
  return '@' + shown_name(name).substr(1);
}

void put_slot(Writer& out, const Slot& slot) {
  out << "slot " << shown_name(slot.name) << " " << name(slot.kind);
  if (slot.offset >= 0) out << " @" << slot.offset;
  out << " (";
  for (std::size_t i = 0; i < slot.parts.size(); ++i) {
    out << (i > 0 ? ", " : "") << slot.parts[i];
    if (i < slot.names.size()) out << " " << quote(slot.names[i]);
  }
  out << ")";
  if (slot.room > 0) out << " room " << slot.room;
  if (slot.terms > 1) out << " terms " << slot.terms;
}

// Writes the action, "2F3 " or "2U ", or nothing.
void put_action(Writer& out, const Instruction& i) {
  if (!i.action) return;
  out << i.stage << name(i.kind);
  if (i.microbatch >= 0) out << i.microbatch;
  out << " ";
}

void put_run(Writer& out, const Program& program, const DeviceProgram& device, const Instruction& i) {
  out << "run ";
  put_action(out, i);
  out << task_name(program.tasks[i.task].name) << "(";
  std::string_view separator = "";
  for (SlotId operand : device.operands_of(i)) {
    out << separator << shown_name(device.slots[operand].name);
    separator = ", ";
  }
  out << ") -> (";
  separator = "";
  for (const Result& result : device.results_of(i)) {
    out << separator << name(result.mode) << " " << shown_name(device.slots[result.slot].name);
    separator = ", ";
  }
  out << ")";
}

// Writes "all_reduce %x -> update %x in 0 #3". In a broadcast only the giver has an operand: "broadcast %x -> from 1 in 0 #3".
void put_collective(Writer& out, const DeviceProgram& device, const Instruction& i) {
  out << name(i.opcode) << " ";
  put_action(out, i);
  for (SlotId operand : device.operands_of(i)) out << shown_name(device.slots[operand].name) << " ";
  out << "-> ";
  for (const Result& result : device.results_of(i)) out << name(result.mode) << " " << shown_name(device.slots[result.slot].name) << " ";
  if (i.opcode == Opcode::broadcast) out << "from " << i.peer << " ";
  out << "in " << i.group << " #" << i.tag;
}

void put_instruction(Writer& out, const Program& program, const DeviceProgram& device, const Instruction& i) {
  const auto slot = [&](SlotId id) { return shown_name(device.slots[id].name); };
  switch (i.opcode) {
    case Opcode::run:
      put_run(out, program, device, i);
      break;
    case Opcode::send:
    case Opcode::recv:
      out << name(i.opcode) << " " << slot(i.slot) << (i.opcode == Opcode::send ? " to " : " from ") << i.peer << " #" << i.tag;
      break;
    case Opcode::copy: {
      const Result& result = device.results_of(i)[0];
      out << "copy ";
      put_action(out, i);
      out << slot(device.operands_of(i)[0]) << " -> " << name(result.mode) << " " << slot(result.slot);
      break;
    }
    case Opcode::offload:
    case Opcode::reload:
      out << name(i.opcode) << " ";
      put_action(out, i);
      out << slot(device.operands_of(i)[0]) << " -> ";
      if (const ResultMode mode = device.results_of(i)[0].mode; mode != ResultMode::store) out << name(mode) << " ";
      out << slot(device.results_of(i)[0].slot);
      break;
    case Opcode::free:
      out << "free " << slot(i.slot);
      break;
    case Opcode::input:
      out << "input " << slot(i.slot) << " = " << shown_name(program.data[i.port].name);
      if (i.microbatch >= 0) out << "[" << i.microbatch << "]";
      break;
    case Opcode::output:
      out << "output " << shown_name(program.outputs[i.port].name) << " = " << slot(i.slot);
      break;
    case Opcode::all_reduce:
    case Opcode::reduce_scatter:
    case Opcode::all_gather:
    case Opcode::all_to_all:
    case Opcode::broadcast:
      put_collective(out, device, i);
      break;
  }
}

void put_port(Writer& out, std::string_view direction, const Port& port) {
  out << direction << " " << shown_name(port.name) << ": " << port.type << (port.split ? " split" : "");
  if (port.row >= 0) out << " row " << port.row;
  out << "\n";
}

void put_device(Writer& out, const Program& program, std::size_t number) {
  const DeviceProgram& device = program.devices[number];
  out << "device " << static_cast<std::int64_t>(number) << " {state_bytes=" << device.state_bytes << ", step_bytes=" << device.step_bytes
      << ", scratch_bytes=" << device.scratch_bytes;
  if (device.bytes_on_host() > 0) out << ", host_bytes=" << device.host_bytes;
  if (device.snapshot_bytes > 0) out << ", snapshot_bytes=" << device.snapshot_bytes;
  out << "}\n";
  for (const Slot& slot : device.slots) {
    out << "  ";
    put_slot(out, slot);
    out << "\n";
  }
  for (const Instruction& instruction : device.instructions) {
    out << "  ";
    put_instruction(out, program, device, instruction);
    out << "\n";
  }
}

}  // namespace

std::string print(const Program& program) {
  Writer out;
  out << "penstock program 1\nprogram " << task_name(program.name) << " {microbatches=" << program.microbatches << "}\n";
  for (const Port& port : program.data) put_port(out, "data", port);
  for (const Port& port : program.outputs) put_port(out, "output", port);
  for (std::size_t g = 0; g < program.groups.size(); ++g)
    out << "group " << static_cast<std::int64_t>(g) << " (" << join_devices(program.groups[g]) << ")\n";
  for (const Task& task : program.tasks)
    out << "task " << task_name(task.name) << " {scratch=" << task.scratch << "}\n" << print_body(task.graph);
  for (std::size_t d = 0; d < program.devices.size(); ++d) put_device(out, program, d);
  return out.take();
}

std::string print(const Program& program, const DeviceProgram& device, const Instruction& instruction) {
  Writer out;
  put_instruction(out, program, device, instruction);
  return out.take();
}

}  // namespace penstock
