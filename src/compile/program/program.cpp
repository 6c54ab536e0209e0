// SPDX-License-Identifier: Apache-2.0
#include "penstock/program.h"

#include <algorithm>

#include "base/hash.h"
#include "base/text.h"
#include "program/graph_facts.h"

namespace penstock {

std::string_view data_name(const Port& port) {
  const std::string_view name = port.name;
  return port.row < 0 ? name : name.substr(0, name.rfind('.'));
}
namespace {

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

std::int64_t part_offset(const Slot& slot, std::size_t part) {
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < part; ++i) offset += aligned(slot.parts[i].bytes());
  return offset;
}

std::int64_t slot_bytes(const Slot& slot) {
  return std::max(part_offset(slot, slot.parts.size()), aligned(slot.room));
}

std::optional<std::size_t> place_in_group(const std::vector<std::int32_t>& members, std::int32_t device) {
  const auto found = std::lower_bound(members.begin(), members.end(), device);
  if (found == members.end() || *found != device) return {};
  return static_cast<std::size_t>(found - members.begin());
}

std::string join_devices(const std::vector<std::int32_t>& devices, std::string_view separator) {
  return join(devices, separator, [](std::int32_t device) { return std::to_string(device); });
}

std::string_view name(Opcode opcode) {
  constexpr std::string_view kNames[] = {"run",     "send",   "recv",       "copy",       "free",           "input",     "output",
                                         "offload", "reload", "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"};
  return kNames[static_cast<std::size_t>(opcode)];
}

namespace {

class ProgramHash {
 public:
  void number(std::int64_t value) { hash_.add(static_cast<std::uint64_t>(value)); }
  void text(std::string_view value) { hash_.add(value); }
  void type(const TensorType& type) {
    number(static_cast<std::int64_t>(type.dtype));
    number(std::ssize(type.shape));
    for (const std::int64_t size : type.shape) number(size);
  }
  // Each list has its length before it, so that no two programs give the same words.
  template <class List, class Add>
  void list(const List& items, const Add& add) {
    number(std::ssize(items));
    for (const auto& item : items) add(item);
  }
  void port(const Port& port) {
    text(port.name);
    type(port.type);
    number(port.split);
    number(port.row);
  }
  void slot(const Slot& slot) {
    text(slot.name);
    number(static_cast<std::int64_t>(slot.kind));
    list(slot.parts, [&](const TensorType& part) { type(part); });
    list(slot.names, [&](const std::string& name) { text(name); });
    number(slot.offset);
    number(slot.room);
    number(slot.terms);
  }
  // Hashes what the text form says of it, no more: a program that was sent as text has the hash that it had.
  void instruction(const DeviceProgram& device, const Instruction& i) {
    number(static_cast<std::int64_t>(i.opcode));
    if (i.action) number(static_cast<std::int64_t>(i.kind));
    number(i.action ? i.stage : -1);
    number(i.action || i.opcode == Opcode::input ? i.microbatch : -1);
    for (const std::int32_t id : {i.task.value, i.slot.value, i.peer, i.tag, i.group, i.port}) number(id);
    list(device.operands_of(i), [&](SlotId operand) { number(operand.value); });
    list(device.results_of(i), [&](const Result& result) {
      number(result.slot.value);
      number(static_cast<std::int64_t>(result.mode));
    });
  }
  void device(const DeviceProgram& device) {
    for (const std::int64_t bytes : {device.state_bytes, device.step_bytes, device.scratch_bytes, device.host_bytes, device.snapshot_bytes})
      number(bytes);
    list(device.slots, [&](const Slot& one) { slot(one); });
    list(device.instructions, [&](const Instruction& one) { instruction(device, one); });
  }
  std::uint64_t value() const { return hash_.value(); }

 private:
  Hash hash_;
};

}  // namespace

std::uint64_t hash(const Program& program) {
  ProgramHash hash;
  hash.text(program.name);
  hash.number(program.microbatches);
  hash.list(program.data, [&](const Port& port) { hash.port(port); });
  hash.list(program.outputs, [&](const Port& port) { hash.port(port); });
  hash.list(program.groups,
            [&](const std::vector<std::int32_t>& group) { hash.list(group, [&](std::int32_t member) { hash.number(member); }); });
  hash.list(program.tasks, [&](const Task& task) {
    hash.text(task.name);
    hash.number(static_cast<std::int64_t>(text_hash(task.graph)));
    hash.number(task.scratch);
  });
  hash.list(program.devices, [&](const DeviceProgram& device) { hash.device(device); });
  return hash.value();
}

std::string describe(const Program& program, int device, std::size_t instruction) {
  const DeviceProgram& on = program.devices[device];
  const Instruction& i = on.instructions[instruction];
  const auto slot = [&](SlotId id) { return shown_name(on.slots[id].name); };
  switch (i.opcode) {
    case Opcode::run:
      if (!i.action) return "run @" + program.tasks[i.task].name;
      return concat(name(i.kind), i.microbatch < 0 ? "" : std::to_string(i.microbatch), " of stage ", i.stage);
    case Opcode::send:
      return concat("send to device ", i.peer, " (tag ", i.tag, ")");
    case Opcode::recv:
      return concat("recv from device ", i.peer, " (tag ", i.tag, ")");
    case Opcode::copy:
    case Opcode::offload:
    case Opcode::reload:
      return concat(name(i.opcode), " ", slot(on.operands_of(i)[0]), " to ", slot(on.results_of(i)[0].slot));
    case Opcode::free:
      return "free " + slot(i.slot);
    case Opcode::input:
      return concat("input ", program.data[i.port].name, i.microbatch < 0 ? "" : concat("[", i.microbatch, "]"));
    case Opcode::output:
      return "output " + program.outputs[i.port].name;
    case Opcode::all_reduce:
    case Opcode::reduce_scatter:
    case Opcode::all_gather:
    case Opcode::all_to_all:
    case Opcode::broadcast:
      return concat(name(i.opcode), " ", slot(i.operands > 0 ? on.operands_of(i)[0] : on.results_of(i)[0].slot), " of group ", i.group,
                    " (tag ", i.tag, ")");
  }
  return {};
}

}  // namespace penstock
