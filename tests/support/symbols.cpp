// SPDX-License-Identifier: Apache-2.0
#include "support/symbols.h"

#include <algorithm>
#include <span>

#include "base/hash.h"
#include "base/text.h"
#include "ops/definition.h"
#include "ops/optimiser.h"
#include "penstock/error.h"
#include "program/piece.h"

namespace penstock::test {
namespace {

template <class... Words>
std::uint64_t mix(const Words&... words) {
  Hash hash;
  (hash.add(words), ...);
  return hash.value();
}

std::uint64_t mix_all(const Symbols& symbols) {
  return mix(std::as_bytes(std::span(symbols)));
}

Symbols numbered(std::uint64_t origin, std::int64_t elements) {
  Symbols out;
  for (std::int64_t i = 0; i < elements; ++i) out.push_back(mix(origin, static_cast<std::uint64_t>(i)));
  return out;
}

Symbols sum(const std::vector<Symbols>& terms) {
  Symbols out = terms[0];
  for (std::size_t t = 1; t < terms.size(); ++t)
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += terms[t][i];
  return out;
}

std::uint64_t key_of(const std::string& name, const Attributes& attributes) {
  Hash hash;
  hash.add(name);
  for (const auto& [attribute, value] : attributes) {
    hash.add(attribute);
    hash.add(text_of(value));
  }
  return hash.value();
}

// Operands of other sizes than the results count as a whole.
std::vector<Symbols> elementwise(std::uint64_t key, const std::vector<Symbols>& operands, std::size_t results, std::size_t elements) {
  std::vector<Symbols> out(results, Symbols(elements));
  std::vector<std::uint64_t> whole;
  for (const Symbols& operand : operands) whole.push_back(operand.size() == elements ? 0 : mix_all(operand));
  for (std::size_t i = 0; i < elements; ++i) {
    Hash hash;
    hash.add(key);
    for (std::size_t o = 0; o < operands.size(); ++o) hash.add(operands[o].size() == elements ? operands[o][i] : whole[o]);
    for (std::size_t r = 0; r < results; ++r) out[r][i] = mix(hash.value(), r);
  }
  return out;
}

// The results of a half's update with the gradient times `factor`; `of` are the update's operands.
std::vector<Symbols> scaled_update(const Op& half, std::vector<Symbols> of, const Symbols& factor) {
  const Op update = update_in(half);
  const std::size_t elements = of[0].size();
  of[1] = elementwise(key_of("mul", {}), {of[1], factor}, 1, elements)[0];
  return elementwise(key_of(update.name, update.attributes), of, update.results.size(), elements);
}

// Both halves of an update; a second one makes it anew.
std::vector<Symbols> half(const Op& op, const std::vector<Symbols>& of) {
  if (is_update_validated(op)) {
    const auto begin = of.begin() + std::ssize(op.results);
    return scaled_update(op, {begin, of.end() - 2}, of.back());
  }
  std::vector<Symbols> made = scaled_update(op, {of.begin(), of.end() - 1}, of.back());
  for (std::size_t r = 0, tensors = made.size(); r < tensors; ++r) made.push_back(of[r == 0 ? 0 : r + 1]);
  return made;
}

std::vector<Symbols> evaluate(const Graph& graph, const std::vector<Symbols>& inputs);

std::vector<Symbols> loop(const Op& op, const std::vector<Symbols>& operands) {
  const auto microbatches = attribute<std::int64_t>(op, "microbatches"), split = attribute<std::int64_t>(op, "split");
  std::vector<Symbols> sums;
  for (std::int64_t m = 0; m < microbatches; ++m) {
    std::vector<Symbols> inputs = operands;
    for (auto i = inputs.begin(); i != inputs.begin() + split; ++i) {
      const auto rows = std::ssize(*i) / microbatches;
      *i = Symbols(i->begin() + m * rows, i->begin() + (m + 1) * rows);
    }
    const std::vector<Symbols> terms = evaluate(*op.body, inputs);
    for (std::size_t r = 0; r < terms.size(); ++r) m == 0 ? sums.push_back(terms[r]) : void(sums[r] = sum({sums[r], terms[r]}));
  }
  return sums;
}

std::vector<Symbols> apply(const Graph& graph, const Op& op, const std::vector<Symbols>& of) {
  const auto elements = static_cast<std::size_t>(graph.type(op.results[0]).elements());
  if (op.name == "accumulate") return loop(op, of);
  if (op.name == "reshape" || op.name == "stage_boundary" || op.name == "constrain") return {of[0]};
  if (op.name == "add_n") return {sum(of)};
  if (op.name == "full") {
    const double value = attribute<double>(op, "fill_value");  // zero is what adds nothing
    return {Symbols(elements, value == 0 ? 0 : key_of("full", {{"fill_value", value}}))};
  }
  if (op.name == "sum" && graph.type(op.results[0]).shape.empty()) {
    std::uint64_t total = 0;
    for (std::uint64_t term : of[0]) total += term;
    return {{total}};
  }
  if (op.name == "slice" && attribute<std::int64_t>(op, "dim") == 0 && attribute<std::int64_t>(op, "step") == 1) {
    const std::int64_t row = std::ssize(of[0]) / graph.type(op.operands[0]).shape[0];
    const auto begin = of[0].begin() + attribute<std::int64_t>(op, "start") * row;
    return {Symbols(begin, begin + static_cast<std::ptrdiff_t>(elements))};
  }
  if (is_update_ahead(op) || is_update_validated(op)) return half(op, of);
  const OpDefinition* definition = find_op(op.name);
  if (definition && definition->elementwise) return elementwise(key_of(op.name, op.attributes), of, op.results.size(), elements);
  std::uint64_t key = key_of(op.name, op.attributes);
  for (const Symbols& operand : of) key = mix(key, mix_all(operand));
  std::vector<Symbols> out;
  for (ValueId result : op.results) out.push_back(numbered(mix(key, out.size()), graph.type(result).elements()));
  return out;
}

std::vector<Symbols> evaluate(const Graph& graph, const std::vector<Symbols>& inputs) {
  std::vector<Symbols> values(graph.values.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) values[graph.inputs[i].index()] = inputs[i];
  const auto take = [&](const std::vector<ValueId>& ids) {
    std::vector<Symbols> out;
    for (ValueId v : ids) out.push_back(values[v.index()]);
    return out;
  };
  for (const Op& op : graph.ops) {
    std::vector<Symbols> results = apply(graph, op, take(op.operands));
    for (std::size_t r = 0; r < results.size(); ++r) values[op.results[r].index()] = std::move(results[r]);
  }
  return take(graph.outputs);
}

Symbols input_symbols(const std::string& name, std::int64_t elements) {
  return numbered(mix(name), elements);
}

// A slot: the symbol of each element stands at its first byte.
using Memory = std::vector<std::uint64_t>;

struct Machine {
  const Program& program;
  std::vector<std::vector<Memory>> memory{};                  // [device][slot]
  std::vector<std::map<std::int32_t, std::string>> coming{};  // of each device: slots, and the message that fills each
  std::map<std::string, Memory> sent{};                       // messages
  std::map<std::string, std::vector<Memory>> given{};         // to collectives, by member in the order of the group
  std::map<std::string, Symbols> outputs{};

  Memory& at(std::size_t device, SlotId slot) { return memory[device][slot.index()]; }
  Symbols part(std::size_t device, SlotId id, std::size_t p) {
    const Slot& slot = program.devices[device].slots[id.index()];
    Symbols out;
    for (std::int64_t i = 0, size = byte_size(slot.parts[p].dtype); i < slot.parts[p].elements(); ++i)
      out.push_back(at(device, id)[static_cast<std::size_t>(part_offset(slot, p) + i * size)]);
    return out;
  }
  void write(std::size_t device, SlotId id, std::size_t p, const Symbols& symbols, bool adds = false) {
    const Slot& slot = program.devices[device].slots[id.index()];
    for (std::size_t i = 0; i < symbols.size(); ++i) {
      std::uint64_t& word =
          at(device, id)[static_cast<std::size_t>(part_offset(slot, p)) + i * static_cast<std::size_t>(byte_size(slot.parts[p].dtype))];
      word = symbols[i] + (adds ? word : 0);
    }
  }
  // False where what fills the slot is still to be sent.
  bool is_there(std::size_t device, SlotId slot) {
    const auto message = coming[device].find(slot.value);
    if (message == coming[device].end()) return true;
    const auto found = sent.find(message->second);
    if (found == sent.end()) return false;
    std::ranges::copy(found->second, at(device, slot).begin());
    coming[device].erase(message);
    return true;
  }

  void run(std::size_t device, const Instruction& i);
  void meet(std::size_t device, const Instruction& i);
  bool execute(std::size_t device, const Instruction& i);  // false: it has to wait
};

void Machine::run(std::size_t device, const Instruction& i) {
  const DeviceProgram& own = program.devices[device];
  std::vector<Symbols> inputs;
  for (SlotId slot : own.operands_of(i))
    for (std::size_t p = 0; p < own.slots[slot.index()].parts.size(); ++p) inputs.push_back(part(device, slot, p));
  const std::vector<Symbols> made = evaluate(program.tasks[i.task.index()].graph, inputs);
  auto next = made.begin();
  for (const Result& result : own.results_of(i))
    for (std::size_t p = 0; p < own.slots[result.slot.index()].parts.size(); ++p)
      write(device, result.slot, p, *next++, result.mode == ResultMode::add);
}

// Gives the device's part; with the last member's, all have their results.
void Machine::meet(std::size_t device, const Instruction& i) {
  const std::vector<std::int32_t>& group = program.groups[static_cast<std::size_t>(i.group)];
  const std::string name = concat("group ", i.group, " ", i.tag);
  const auto message = [&](std::size_t member) { return concat(name, " to ", member); };
  std::vector<Memory>& all = given[name];
  all.resize(group.size());
  const auto member = static_cast<std::size_t>(std::ranges::find(group, static_cast<std::int32_t>(device)) - group.begin());
  all[member] = at(device, program.devices[device].operands_of(i)[0]);
  coming[device][program.devices[device].results_of(i)[0].slot.value] = message(member);
  if (std::ranges::any_of(all, &Memory::empty)) return;
  Memory gathered;
  for (const Memory& piece : all) gathered.insert(gathered.end(), piece.begin(), piece.end());
  const Memory total = reduces(i.opcode) ? sum(all) : gathered;
  const std::size_t piece = total.size() / group.size();
  for (std::size_t m = 0; m < group.size(); ++m) {
    const auto begin = total.begin() + static_cast<std::ptrdiff_t>(m * piece);
    sent[message(m)] = i.opcode == Opcode::reduce_scatter ? Memory(begin, begin + static_cast<std::ptrdiff_t>(piece)) : total;
  }
}

bool Machine::execute(std::size_t device, const Instruction& i) {
  const DeviceProgram& own = program.devices[device];
  const auto is_ready = [&](SlotId slot) { return is_there(device, slot); };
  if (has_operands(i.opcode)) {
    if (!std::ranges::all_of(own.operands_of(i), is_ready)) return false;
    if (!std::ranges::all_of(own.results_of(i), [&](const Result& r) { return r.mode == ResultMode::store || is_ready(r.slot); }))
      return false;
    if (i.opcode == Opcode::run)
      run(device, i);
    else if (is_collective(i.opcode))
      meet(device, i);
    else
      at(device, own.results_of(i)[0].slot) = Memory(at(device, own.operands_of(i)[0]));
    return true;
  }
  if ((i.opcode == Opcode::send || i.opcode == Opcode::output) && !is_ready(i.slot)) return false;
  if (i.opcode == Opcode::send) sent[concat(device, " to ", i.peer, " #", i.tag)] = at(device, i.slot);
  if (i.opcode == Opcode::recv) coming[device][i.slot.value] = concat(i.peer, " to ", device, " #", i.tag);
  if (i.opcode == Opcode::output) outputs[program.outputs[static_cast<std::size_t>(i.port)].name] = part(device, i.slot, 0);
  if (i.opcode == Opcode::input) {
    const Port& port = program.data[static_cast<std::size_t>(i.port)];
    const Symbols whole = input_symbols(port.name, port.type.elements());
    const std::int64_t rows = i.microbatch < 0 ? std::ssize(whole) : std::ssize(whole) / program.microbatches;
    const auto begin = whole.begin() + std::max(i.microbatch, 0) * rows;
    write(device, i.slot, 0, Symbols(begin, begin + rows));
  }
  if (i.opcode == Opcode::free) coming[device].erase(i.slot.value);
  return true;
}

// Runs all instructions, and at the end waits for all that is still to come.
void finish(Machine& m) {
  std::vector<std::size_t> next(m.program.devices.size());
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (std::size_t d = 0; d < next.size(); ++d)
      for (const std::vector<Instruction>& list = m.program.devices[d].instructions; next[d] < list.size() && m.execute(d, list[next[d]]);
           ++next[d])
        goes_on = true;
  }
  for (std::size_t d = 0; d < next.size(); ++d) {
    if (next[d] < m.program.devices[d].instructions.size())
      throw Error(describe(m.program, static_cast<int>(d), next[d]) + " waits for ever");
    for (std::size_t s = 0; s < m.memory[d].size(); ++s) m.is_there(d, SlotId(static_cast<std::int64_t>(s)));
  }
}

// Gives each part of a state or copy on a device: its slot, position there, and the piece of the state.
template <class Do>
void for_each_state(const Program& program, const Do& act) {
  for (std::size_t d = 0; d < program.devices.size(); ++d)
    for (std::size_t s = 0; s < program.devices[d].slots.size(); ++s) {
      const Slot& slot = program.devices[d].slots[s];
      for (std::size_t p = 0; p < slot.names.size(); ++p) act(d, SlotId(static_cast<std::int64_t>(s)), p, parse_piece(slot.names[p]));
    }
}

// The symbols of the piece's elements, from those of the whole tensor.
Symbols symbols_of(const Piece& piece, const Symbols& whole) {
  Symbols out;
  for_each_run(piece, std::ssize(whole),
               [&](const PieceRun& run) { out.insert(out.end(), whole.begin() + run.begin, whole.begin() + run.end); });
  return out;
}

}  // namespace

StepSymbols symbols_of(const Graph& step) {
  std::vector<Symbols> inputs;
  for (ValueId v : step.inputs) inputs.push_back(input_symbols(step.values[v.index()].name, step.type(v).elements()));
  const std::vector<Symbols> made = evaluate(step, inputs);
  const auto states = static_cast<std::size_t>(step.state);
  StepSymbols out;
  for (std::size_t o = 0; o < made.size(); ++o) {
    if (o < states)
      out.states[step.values[step.inputs[o].index()].name] = made[o];
    else
      out.outputs[o - states < step.output_names.size() ? step.output_names[o - states] : concat("output", o - states)] = made[o];
  }
  return out;
}

std::string difference(const Program& program, const StepSymbols& step) {
  Machine machine{program};
  machine.coming.resize(program.devices.size());
  for (const DeviceProgram& device : program.devices) {
    std::vector<Memory>& slots = machine.memory.emplace_back();
    for (const Slot& slot : device.slots) slots.emplace_back(static_cast<std::size_t>(slot_bytes(slot)));
  }
  for_each_state(program, [&](std::size_t d, SlotId slot, std::size_t p, const Piece& piece) {
    machine.write(d, slot, p, symbols_of(piece, input_symbols(piece.tensor, std::ssize(step.states.at(piece.tensor)))));
  });
  finish(machine);
  std::vector<std::string> out;
  for (const auto& [name, symbols] : step.outputs)
    if (machine.outputs[name] != symbols) out.push_back("output " + name);
  for_each_state(program, [&](std::size_t d, SlotId slot, std::size_t p, const Piece& piece) {
    if (machine.part(d, slot, p) != symbols_of(piece, step.states.at(piece.tensor)))
      out.push_back(concat(program.devices[d].slots[slot.index()].names[p], " on device ", d));
  });
  return join(out, ", ");
}

}  // namespace penstock::test
