// SPDX-License-Identifier: Apache-2.0
// Reads the text form of programs. The result is safe to hand to verify(): every id is in range, every size fits.
#include <algorithm>
#include <limits>

#include "base/text.h"
#include "ir/graph_parser.h"
#include "penstock/program.h"
#include "program/reading.h"

namespace penstock {
namespace {

constexpr std::int64_t kMaxTensor = std::int64_t{1} << 40;  // bytes
constexpr std::int64_t kMaxArena = std::int64_t{1} << 60;   // bytes

// The reader's place, and what has been named up to there.
struct Reader {
  Cursor in;
  Program program{};
  Names data{"data port", "%"}, outputs{"output port", "%"}, tasks{"task", "@"};
  Names slots{"slot", "%"};  // of the last device
};

TensorType tensor_type(Cursor& in) {
  in.skip();
  const std::size_t position = in.position();
  const TensorType type = parse_type(in);
  const bool has_large_dim = std::ranges::any_of(type.shape, [](std::int64_t dim) { return dim > kMaxTensor; });  // beside a dim of 0
  if (has_large_dim || type.bytes() > kMaxTensor) in.fail_at(position, "this tensor has more than 2^40 bytes");
  return type;
}

std::int64_t setting(Cursor& in, std::string_view name, std::int64_t low, std::int64_t high) {
  in.expect(name);
  in.expect("=");
  return integer_in(in, low, high);
}

Port parse_port(Cursor& in, Names& names) {
  Port port;
  port.name = define(in, names);
  in.expect(":");
  port.type = tensor_type(in);
  port.split = in.accept("split");
  if (in.accept("row")) port.row = integer_in(in, 0, std::numeric_limits<std::int64_t>::max());
  return port;
}

void parse_group(Reader& r) {
  next_number(r.in, "group", r.program.groups.size());
  r.in.expect("(");
  std::vector<std::int32_t>& members = r.program.groups.emplace_back();
  do members.push_back(index(r.in));
  while (r.in.accept(","));
  r.in.expect(")");
}

Task parse_task(Reader& r) {
  Task task;
  task.name = define(r.in, r.tasks);
  r.in.expect("{");
  task.scratch = setting(r.in, "scratch", 0, kMaxArena);
  r.in.expect("}");
  task.graph = parse_graph(r.in);
  return task;
}

Slot parse_slot(Reader& r) {
  Slot slot;
  slot.name = define(r.in, r.slots);
  if (r.in.accept("state"))
    slot.kind = SlotClass::state;
  else if (r.in.accept("copy"))
    slot.kind = SlotClass::copy;
  else if (r.in.accept("host"))
    slot.kind = SlotClass::host;
  else if (r.in.accept("snapshot"))
    slot.kind = SlotClass::snapshot;
  else
    r.in.expect("step");
  if (r.in.accept("@")) slot.offset = integer_in(r.in, 0, kMaxArena);
  r.in.expect("(");
  do {
    slot.parts.push_back(tensor_type(r.in));
    if (outlives_steps(slot.kind)) slot.names.push_back(r.in.string());
  } while (r.in.accept(","));
  r.in.expect(")");
  if (r.in.accept("room")) slot.room = integer_in(r.in, 1, kMaxArena);
  if (r.in.accept("terms")) slot.terms = static_cast<std::int32_t>(integer_in(r.in, 2, std::numeric_limits<std::int32_t>::max()));
  return slot;
}

SlotId slot_name(Reader& r) {
  return SlotId(find(r.in, r.slots));
}

Result parse_result(Reader& r) {
  ResultMode mode = ResultMode::store;
  if (r.in.accept("add"))
    mode = ResultMode::add;
  else if (r.in.accept("update"))
    mode = ResultMode::update;
  else
    r.in.expect("store");
  return {slot_name(r), mode};
}

void parse_action(Cursor& in, Instruction& i) {
  const ActionName action = action_name(in);
  i.action = true;
  i.stage = action.stage;
  i.kind = action.kind;
  i.microbatch = action.microbatch;
}

void parse_run(Reader& r, DeviceProgram& device, Instruction& i) {
  if (r.in.peek() != '@') parse_action(r.in, i);
  i.task = TaskId(find(r.in, r.tasks));
  parse_list(r.in, [&] { device.operands.push_back(slot_name(r)); });
  r.in.expect("->");
  parse_list(r.in, [&] { device.results.push_back(parse_result(r)); });
}

// A copy on the device, or one to or from the host, which stores where it does not say otherwise.
void parse_copy(Reader& r, DeviceProgram& device, Instruction& i) {
  if (r.in.peek() != '%') parse_action(r.in, i);
  device.operands.push_back(slot_name(r));
  r.in.expect("->");
  device.results.push_back(i.opcode == Opcode::copy || r.in.peek() != '%' ? parse_result(r) : Result{slot_name(r)});
}

void parse_collective(Reader& r, DeviceProgram& device, Instruction& i) {
  if (r.in.peek() != '%' && r.in.peek() != '-') parse_action(r.in, i);
  const bool broadcasts = i.opcode == Opcode::broadcast, gives = !broadcasts || r.in.peek() == '%';
  if (gives) device.operands.push_back(slot_name(r));
  r.in.expect("->");
  if (!broadcasts || !gives) device.results.push_back(parse_result(r));
  if (broadcasts) {
    r.in.expect("from");
    i.peer = index(r.in);
  }
  r.in.expect("in");
  r.in.skip();
  const std::size_t position = r.in.position();
  i.group = index(r.in);
  if (i.group >= std::ssize(r.program.groups)) r.in.fail_at(position, concat("there is no group ", i.group));
  r.in.expect("#");
  i.tag = index(r.in);
}

void parse_transfer(Reader& r, Instruction& i) {
  i.slot = slot_name(r);
  r.in.expect(i.opcode == Opcode::send ? "to" : "from");
  i.peer = index(r.in);
  r.in.expect("#");
  i.tag = index(r.in);
}

void parse_input(Reader& r, Instruction& i) {
  i.slot = slot_name(r);
  r.in.expect("=");
  i.port = find(r.in, r.data);
  if (!r.in.accept("[")) return;
  i.microbatch = static_cast<std::int32_t>(integer_in(r.in, 0, r.program.microbatches - 1));
  r.in.expect("]");
}

// Parses what follows the word that names the opcode.
void parse_rest(Reader& r, DeviceProgram& device, Instruction& i) {
  switch (i.opcode) {
    case Opcode::run:
      return parse_run(r, device, i);
    case Opcode::send:
    case Opcode::recv:
      return parse_transfer(r, i);
    case Opcode::copy:
    case Opcode::offload:
    case Opcode::reload:
      return parse_copy(r, device, i);
    case Opcode::free:
      i.slot = slot_name(r);
      return;
    case Opcode::input:
      return parse_input(r, i);
    case Opcode::output:
      i.port = find(r.in, r.outputs);
      r.in.expect("=");
      i.slot = slot_name(r);
      return;
    default:
      return parse_collective(r, device, i);
  }
}

// Reads one instruction; false where the next line is none.
bool parse_instruction(Reader& r, DeviceProgram& device) {
  Instruction i;
  const auto accept = [&](Opcode opcode) { return i.opcode = opcode, r.in.accept(name(opcode)); };
  int opcode = 0;
  while (opcode < kOpcodes && !accept(static_cast<Opcode>(opcode))) ++opcode;
  if (opcode == kOpcodes) return false;
  const std::size_t operands = device.operands.size(), results = device.results.size();
  parse_rest(r, device, i);
  if (has_operands(i.opcode)) {
    i.first_operand = static_cast<std::uint32_t>(operands);
    i.operands = static_cast<std::uint32_t>(device.operands.size() - operands);
    i.first_result = static_cast<std::uint32_t>(results);
    i.results = static_cast<std::uint32_t>(device.results.size() - results);
  }
  device.instructions.push_back(i);
  return true;
}

void parse_device(Reader& r) {
  next_number(r.in, "device", r.program.devices.size());
  DeviceProgram& device = r.program.devices.emplace_back();
  r.slots.number.clear();
  r.in.expect("{");
  device.state_bytes = setting(r.in, "state_bytes", 0, kMaxArena);
  r.in.expect(",");
  device.step_bytes = setting(r.in, "step_bytes", 0, kMaxArena);
  r.in.expect(",");
  device.scratch_bytes = setting(r.in, "scratch_bytes", 0, kMaxArena);
  if (r.in.accept(",")) device.host_bytes = setting(r.in, "host_bytes", 0, kMaxArena);
  if (r.in.accept(",")) device.snapshot_bytes = setting(r.in, "snapshot_bytes", 0, kMaxArena);
  r.in.expect("}");
  while (r.in.accept("slot")) device.slots.push_back(parse_slot(r));
  while (parse_instruction(r, device)) {
  }
}

}  // namespace

Program parse_program(std::string_view text, std::string_view file) {
  Reader r{Cursor(file, text)};
  Cursor& in = r.in;
  Program& program = r.program;
  in.header("program", 1);
  in.expect("program");
  program.name = name_after(in, "@");
  in.expect("{");
  program.microbatches = static_cast<std::int32_t>(setting(in, "microbatches", 1, std::numeric_limits<std::int32_t>::max()));
  in.expect("}");
  while (in.accept("data")) program.data.push_back(parse_port(in, r.data));
  while (in.accept("output")) program.outputs.push_back(parse_port(in, r.outputs));
  while (in.accept("group")) parse_group(r);
  while (in.accept("task")) program.tasks.push_back(parse_task(r));
  while (in.accept("device")) parse_device(r);
  if (!in.at_end()) in.fail("expected data, output, group, task, device or the end (in this order), or an instruction of a device");
  return std::move(program);
}

}  // namespace penstock
