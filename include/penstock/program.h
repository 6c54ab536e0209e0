// SPDX-License-Identifier: Apache-2.0
// A program: per device one list of instructions. The program that is verified and simulated is exactly the one that runs.
//
// A *slot* is a device's piece of memory that is defined, read and freed as one: the tensors with one producer and the same
// readers, one after the other, each at a multiple of 64 bytes. A transfer moves a whole slot.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/graph.h"
#include "penstock/id.h"
#include "penstock/schedule.h"
#include "penstock/task_graph.h"

namespace penstock {

inline constexpr std::int64_t kAlignment = 64;  // bytes

// A straight-line graph that runs without waiting. The parts of a run's operand slots, in order, are the graph's inputs; the parts of its
// result slots, in order, are its outputs.
struct Task {
  std::string name;          // unique: "F0", "B3", "after.1"
  TaskGraph graph;           // what it computes
  std::int64_t scratch = 0;  // bytes of its temporaries while it runs (planned by the memory plan)
};

// The arena that a slot lies in, and who owns it.
enum class SlotClass : std::uint8_t {
  step,   // lives inside one step, in the step arena
  state,  // lives across steps, in the state arena, under its parts' names: this device owns it and writes it to checkpoints
  copy,   // the same, a copy of a state that another device owns; refreshed by a transfer after the owner's update
  host,   // lives inside one step, in the host's memory; only offload and reload reach it
  // Lives across steps in the host's memory, under its parts' names (program/snapshot_name.h): what a state was when some step began.
  // Offloads and receives write it, reloads and sends read it.
  snapshot,
};
// Whether slots of this class are state that steps work on.
constexpr bool holds_state(SlotClass kind) {
  return kind == SlotClass::state || kind == SlotClass::copy;
}
// Whether they live across steps.
constexpr bool outlives_steps(SlotClass kind) {
  return holds_state(kind) || kind == SlotClass::snapshot;
}
// Whether they lie in the host's memory.
constexpr bool is_on_host(SlotClass kind) {
  return kind == SlotClass::host || kind == SlotClass::snapshot;
}

// A piece of a device's memory, as above.
struct Slot {
  std::string name;                  // unique in its device
  SlotClass kind = SlotClass::step;  // decides its arena
  std::vector<TensorType> parts;     // its tensors, in order
  std::vector<std::string> names;    // for what lives across steps: the name of each part; else empty
  std::int64_t offset = -1;          // bytes from the begin of its arena (state and copy: the state arena), set by the memory plan
  std::int64_t room = 0;   // the least bytes that the slot has: a collective that moves equal pieces needs room behind the last part
  std::int32_t terms = 1;  // a sum's: what defines it, and each result that is added, before anybody reads it
};
std::int64_t part_offset(const Slot& slot, std::size_t part);  // bytes from the slot's begin
std::int64_t slot_bytes(const Slot& slot);                     // a multiple of kAlignment, and at least `room`

// The work that an instruction does.
enum class Opcode : std::uint8_t {
  run,     // task(operands) -> results; waits for its operands
  send,    // starts sending `slot` to `peer`; waits until the slot is written
  recv,    // starts receiving `slot` from `peer`: the slot is defined, and written once the transfer is done
  copy,    // operands[0] -> results[0] on this device
  free,    // ends `slot`; waits for its sends and for the last run that reads it
  input,   // defines `slot` from data port `port`, micro-batch `microbatch` (-1: the whole batch)
  output,  // gives `slot`'s only part to the controller as output `port`
  // These start a copy of operands[0] to results[0] on the device's lane of host copies: one copy at a time, in program order.
  offload,  // from a slot of the device, once it is written, to a host slot, which this defines, or over a snapshot slot
  reload,   // from a host or snapshot slot to a step slot, which this defines, or over a state: written once the copy is done
  // These start what all members of `group` do together, on the group's lane; member i is the i-th device of the group. A slot that they
  // read or fill is treated as sent or received. Sums are of the parts' elements, all of one dtype, in an order of the group's members that
  // the element's place and the size alone decide: equal to the bit on all members, and on those of another group that sums equal terms.
  all_reduce,      // the sum of all members' operands[0] -> results[0], of its type; may be the same slot
  all_gather,      // all members' operands[0], one after the other -> results[0]
  reduce_scatter,  // piece i of the sum of all members' operands[0], cut into equal pieces -> results[0] of member i
  broadcast,       // operands[0] of member `peer`, which has no result -> results[0] of the others, which have no operand
  all_to_all,      // piece i of member j's operands[0], cut into equal pieces -> piece j of member i's results[0]
};
constexpr int kOpcodes = static_cast<int>(Opcode::all_to_all) + 1;  // opcodes are numbered 0 .. kOpcodes-1
// Whether it copies between the device and its host.
constexpr bool is_host_copy(Opcode opcode) {
  return opcode == Opcode::offload || opcode == Opcode::reload;
}
// Whether all members of a group do it together.
constexpr bool is_collective(Opcode opcode) {
  return opcode >= Opcode::all_reduce;
}
// Whether it is a collective that sums.
constexpr bool reduces(Opcode opcode) {
  return opcode == Opcode::all_reduce || opcode == Opcode::reduce_scatter;
}
// Whether the opcode has operands and results in the device's pools; the others have `slot`.
constexpr bool has_operands(Opcode opcode) {
  return opcode == Opcode::run || opcode == Opcode::copy || is_host_copy(opcode) || is_collective(opcode);
}
// Whether it defines `slot`; opcodes with operands define what they store.
constexpr bool defines_slot(Opcode opcode) {
  return opcode == Opcode::recv || opcode == Opcode::input;
}
std::string_view name(Opcode opcode);  // as the text form has it: "all_reduce"

// The way in which a run writes a result slot.
enum class ResultMode : std::uint8_t {
  store,   // defines it
  add,     // adds to it (an accumulator defined earlier)
  update,  // overwrites a slot defined earlier (a state, by its next value), which may also be an operand
};

// One line of a device's program. A field that its opcode does not name keeps its default.
struct Instruction {
  Opcode opcode = Opcode::run;   // decides which fields count
  Kind kind = Kind::F;           // for opcodes with operands: the action that it belongs to,
  bool action = false;           // if it belongs to one (else it is before or after the loop)
  std::int32_t stage = -1;       // of the action; -1: none
  std::int32_t microbatch = -1;  // of the action, and of an input; -1: none, or the whole batch
  TaskId task{};                 // for run
  SlotId slot{};                 // for send, recv, free, input, output
  std::int32_t peer = -1;        // for send, recv: the other device; for broadcast: the device that gives
  std::int32_t tag = -1;         // for send, recv: running number of the pair's transfers in this direction, from 0
  std::int32_t group = -1;       // for collectives: index into Program::groups; `tag` is the running number of the group's collectives
  std::int32_t port = -1;        // for input: index into Program::data; for output: into Program::outputs
  std::uint32_t first_operand = 0, operands = 0;  // where has_operands(opcode): range of DeviceProgram::operands
  std::uint32_t first_result = 0, results = 0;    // likewise: range of DeviceProgram::results

  bool operator==(const Instruction&) const = default;
};

// A slot that a run writes.
struct Result {
  SlotId slot;                          // in DeviceProgram::slots
  ResultMode mode = ResultMode::store;  // in which it is written
};

// One device's slots, instructions and memory.
struct DeviceProgram {
  IdVector<SlotId, Slot> slots;                                     // all that are defined in a step
  std::vector<Instruction> instructions;                            // in the order in which the device starts them
  std::vector<SlotId> operands;                                     // the instructions' ranges refer to it
  std::vector<Result> results;                                      // likewise
  std::int64_t state_bytes = 0, step_bytes = 0, scratch_bytes = 0;  // sizes of the arenas, set by the memory plan
  std::int64_t host_bytes = 0, snapshot_bytes = 0;                  // sizes of the arenas in the host's memory, likewise

  std::int64_t device_bytes() const { return state_bytes + step_bytes + scratch_bytes; }  // of the arenas on the device
  std::int64_t bytes_on_host() const { return host_bytes + snapshot_bytes; }              // of those in the host's memory
  // The slots that an instruction of this program reads, and those that it writes.
  std::span<const SlotId> operands_of(const Instruction& i) const { return {operands.data() + i.first_operand, i.operands}; }
  std::span<const Result> results_of(const Instruction& i) const { return {results.data() + i.first_result, i.results}; }
};

// A host tensor that enters a step or leaves it.
struct Port {
  std::string name;    // unique among the program's inputs, or its outputs
  TensorType type;     // for the whole step
  bool split = false;  // for an input: whether it is cut along dim 0 into `microbatches`
  // For an input of one micro-batch, where these have shapes of their own: its first row among the step's samples. Its name is NAME.NUMBER,
  // with the micro-batch's number.
  std::int64_t row = -1;
};
// NAME, for a data source.
std::string_view data_name(const Port& port);

// Programs of all devices, with what they share.
struct Program {
  std::string name;                               // the step graph's
  IdVector<TaskId, Task> tasks;                   // that any device runs
  std::vector<DeviceProgram> devices;             // by number
  std::vector<Port> data, outputs;                // what enters a step; what leaves it
  std::vector<std::vector<std::int32_t>> groups;  // the devices that have collectives with one another, each list ascending
  std::int32_t microbatches = 1;                  // of a step
};

// The place of a device among the members of a group; none: it is no member.
std::optional<std::size_t> place_in_group(const std::vector<std::int32_t>& members, std::int32_t device);
std::string join_devices(const std::vector<std::int32_t>& devices, std::string_view separator = ", ");  // "0, 1, 2"

// Text form: print(parse(print(p))) == print(p). Throws Error with file:line:column.
std::string print(const Program& program);
std::string print(const Program& program, const DeviceProgram& device, const Instruction& instruction);  // one line
Program parse_program(std::string_view text, std::string_view file = "program");
std::uint64_t hash(const Program& program);  // over all that the text form has
// Returns the name of an instruction in messages: "F3 of stage 2" or "recv from device 1 (tag 4)".
std::string describe(const Program& program, int device, std::size_t instruction);

}  // namespace penstock
