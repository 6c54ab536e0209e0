// SPDX-License-Identifier: Apache-2.0
#include "support/random_program.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <random>
#include <span>

#include "base/hash.h"
#include "base/invariant.h"
#include "base/text.h"
#include "program/memory_plan.h"
#include "program/snapshot_name.h"
#include "program/verify.h"
#include "support/collective_result.h"
#include "support/fake_device.h"

namespace penstock::test {
namespace {

TensorType words(std::int64_t count) {
  return {DType::i64, {count}};
}

// Appends events in one global order, so that the program can always finish.
class Maker {
 public:
  Maker(std::uint64_t seed, int devices, bool keeps)
      : random_(seed),
        keeps_(keeps),
        live_(static_cast<std::size_t>(devices)),
        on_host_(static_cast<std::size_t>(devices)),
        open_(static_cast<std::size_t>(devices)) {
    program_.name = concat("random", seed);
    program_.microbatches = 3;
    program_.devices.resize(static_cast<std::size_t>(devices));
    program_.data = {{"data", {DType::i64, {6, 8}}, true}, {"whole", words(8), false}};
    for (int device = 0; device < devices; ++device) begin(device);
  }

  void event() {
    const int device = pick(static_cast<int>(live_.size()));
    switch (pick(keeps_ ? 15 : 12)) {
      case 0:
      case 1:
        return transfer(device);
      case 2:
        return accumulate(device);
      case 3:
        written_.insert(device);
        return run(device, {operands(device)}, {{state(device), ResultMode::update}}, {slot_type(device, state(device))});
      case 4:
        return refresh(device);
      case 5:
        return copy(device);
      case 6:
        return offload(device);
      case 7:
        return reload(device);
      case 8:
        return meet();
      case 9:
        return overwrite(device);
      case 12:
      case 13:
        return keep(device);
      case 14:
        return restore(device);
      default:
        return compute(device);
    }
  }

  Program finish() {
    for (const auto& [owner, copy] : copies_) send(owner, next(owner), state(owner), copy);
    for (const auto& [place, slot] : snapshots_)
      if (const auto [owner, holder] = place; owner != holder) send(owner, holder, snapshots_.at({owner, owner}), slot);
    for (int device = 0; device < static_cast<int>(live_.size()); ++device) end(device);
    plan_memory(program_);
    verify(program_);
    return std::move(program_);
  }

 private:
  int pick(int below) { return static_cast<int>(random_() % static_cast<std::uint64_t>(below)); }
  DeviceProgram& at(int device) { return program_.devices[static_cast<std::size_t>(device)]; }
  std::vector<SlotId>& live(int device) { return live_[static_cast<std::size_t>(device)]; }
  std::vector<SlotId>& on_host(int device) { return on_host_[static_cast<std::size_t>(device)]; }
  const TensorType& slot_type(int device, SlotId slot) { return at(device).slots[slot.index()].parts[0]; }
  SlotId state(int) { return SlotId(0); }
  int next(int device) const { return (device + 1) % static_cast<int>(live_.size()); }

  SlotId add_slot(int device, TensorType type, SlotClass kind = SlotClass::step, const std::string& name = {}) {
    std::vector<Slot>& slots = at(device).slots;
    slots.push_back({concat("s", slots.size()), kind, {std::move(type)}, {}, -1});
    if (!name.empty()) slots.back().names = {name};
    return SlotId(static_cast<std::int64_t>(slots.size()) - 1);
  }

  Instruction& add(int device, Opcode opcode) {
    Instruction instruction;
    instruction.opcode = opcode;
    at(device).instructions.push_back(instruction);
    return at(device).instructions.back();
  }

  void begin(int device) {
    add_slot(device, words(8), SlotClass::state, concat("state", device));
    for (int microbatch = -1; microbatch < program_.microbatches; ++microbatch) {
      const SlotId slot = microbatch < 0 ? add_slot(device, words(8)) : add_slot(device, {DType::i64, {2, 8}});
      Instruction& input = add(device, Opcode::input);
      input.slot = slot;
      input.port = microbatch < 0 ? 1 : 0;
      input.microbatch = microbatch;
      live(device).push_back(slot);
    }
  }

  std::vector<SlotId> operands(int device) {
    std::vector<SlotId> out;
    for (int count = pick(4); count > 0 && !live(device).empty(); --count)
      out.push_back(live(device)[static_cast<std::size_t>(pick(static_cast<int>(live(device).size())))]);
    return out;
  }

  void run(int device, const std::vector<SlotId>& operands, const std::vector<Result>& results, const std::vector<TensorType>& types) {
    Task task;
    task.name = concat("t", program_.tasks.size());
    Graph graph;
    Op op;
    op.name = "fake::mix";
    for (SlotId operand : operands) op.operands.push_back(graph.add_input(slot_type(device, operand), concat("x", op.operands.size())));
    for (const TensorType& type : types) op.results.push_back(graph.add_value(type));
    graph.name = task.name;
    graph.outputs = op.results;
    graph.ops.push_back(op);
    task.graph = std::move(graph);
    program_.tasks.push_back(std::move(task));

    Instruction& instruction = add(device, Opcode::run);
    instruction.task = TaskId(static_cast<std::int64_t>(program_.tasks.size()) - 1);
    pool(device, instruction, operands, results);
  }

  void pool(int device, Instruction& instruction, const std::vector<SlotId>& operands, const std::vector<Result>& results) {
    DeviceProgram& on = at(device);
    instruction.first_operand = static_cast<std::uint32_t>(on.operands.size());
    instruction.operands = static_cast<std::uint32_t>(operands.size());
    instruction.first_result = static_cast<std::uint32_t>(on.results.size());
    instruction.results = static_cast<std::uint32_t>(results.size());
    on.operands.insert(on.operands.end(), operands.begin(), operands.end());
    on.results.insert(on.results.end(), results.begin(), results.end());
  }

  void compute(int device) {
    std::vector<Result> results;
    std::vector<TensorType> types;
    const std::vector<SlotId> reads = operands(device);
    for (int count = 1 + pick(2); count > 0; --count) {
      types.push_back(words(8 * (1 + pick(100))));
      results.push_back({add_slot(device, types.back()), ResultMode::store});
      live(device).push_back(results.back().slot);
    }
    run(device, reads, results, types);
    maybe_free(device);
  }

  void overwrite(int device) {
    if (live(device).empty()) return;
    const SlotId target = live(device)[static_cast<std::size_t>(pick(static_cast<int>(live(device).size())))];
    std::vector<SlotId> reads = operands(device);
    std::erase(reads, target);
    run(device, reads, {{target, ResultMode::update}}, {slot_type(device, target)});
  }

  // Begins a sum, or adds to one, which maybe has all its terms then.
  void accumulate(int device) {
    std::vector<SlotId>& open = open_[static_cast<std::size_t>(device)];
    if (open.empty() || pick(3) == 0) {
      open.push_back(add_slot(device, words(8 * (1 + pick(100)))));
      return run(device, operands(device), {{open.back(), ResultMode::store}}, {slot_type(device, open.back())});
    }
    const auto index = static_cast<std::size_t>(pick(static_cast<int>(open.size())));
    const SlotId sum = open[index];
    ++at(device).slots[sum].terms;
    run(device, operands(device), {{sum, ResultMode::add}}, {slot_type(device, sum)});
    if (pick(2) == 0) return;
    live(device).push_back(sum);
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(index));
  }

  void copy(int device) {
    if (live(device).empty()) return;
    const SlotId from = live(device)[static_cast<std::size_t>(pick(static_cast<int>(live(device).size())))];
    const SlotId to = add_slot(device, slot_type(device, from));
    pool(device, add(device, Opcode::copy), {from}, {{to, ResultMode::store}});
    live(device).push_back(to);
  }

  // Copies a slot to the host and back; the slot is freed soon, or lives on.
  void offload(int device) {
    if (live(device).empty()) return;
    const auto index = static_cast<std::size_t>(pick(static_cast<int>(live(device).size())));
    const SlotId from = live(device)[index], to = add_slot(device, slot_type(device, from), SlotClass::host);
    pool(device, add(device, Opcode::offload), {from}, {{to, ResultMode::store}});
    on_host(device).push_back(to);
    if (pick(2) == 0) compute(device);
    if (pick(3) > 0) free(device, index);
  }

  void reload(int device) {
    if (on_host(device).empty()) return;
    const auto index = static_cast<std::size_t>(pick(static_cast<int>(on_host(device).size())));
    const SlotId from = on_host(device)[index], to = add_slot(device, slot_type(device, from));
    pool(device, add(device, Opcode::reload), {from}, {{to, ResultMode::store}});
    live(device).push_back(to);
    if (pick(3) > 0) drop(device, index);
  }

  void drop(int device, std::size_t index) {
    add(device, Opcode::free).slot = on_host(device)[index];
    on_host(device).erase(on_host(device).begin() + static_cast<std::ptrdiff_t>(index));
  }

  void send(int from, int to, SlotId slot, SlotId target) {
    const int tag = tags_[{from, to}]++;
    for (const bool out : {true, false}) {
      Instruction& instruction = add(out ? from : to, out ? Opcode::send : Opcode::recv);
      instruction.slot = out ? slot : target;
      instruction.peer = out ? to : from;
      instruction.tag = tag;
    }
  }

  void transfer(int from) {
    if (live(from).empty() || live_.size() < 2) return;
    const int to = (from + 1 + pick(static_cast<int>(live_.size()) - 1)) % static_cast<int>(live_.size());
    const SlotId slot = live(from)[static_cast<std::size_t>(pick(static_cast<int>(live(from).size())))];
    const SlotId target = add_slot(to, slot_type(from, slot));
    send(from, to, slot, target);
    live(to).push_back(target);
    maybe_free(from);
  }

  // Sends a state to a device that keeps a copy of it.
  void refresh(int from) {
    if (live_.size() < 2) return;
    const int to = next(from);
    auto [copy, fresh] = copies_.try_emplace(from);
    if (fresh) {
      copy->second = add_slot(to, words(8), SlotClass::copy, concat("state", from));
      kept_[to] = copy->second;
    }
    send(from, to, state(from), copy->second);
  }

  // A device's snapshot of a state.
  SlotId snapshot(int owner, int holder) {
    const auto [known, fresh] = snapshots_.try_emplace({owner, holder});
    if (fresh) known->second = add_slot(holder, words(8), SlotClass::snapshot, snapshot_name(0, concat("state", owner)));
    return known->second;
  }

  // Copies a state that nothing has written yet to the host's memory, and maybe from there to that of the next device.
  void keep(int device) {
    if (written_.contains(device)) return;
    pool(device, add(device, Opcode::offload), {state(device)}, {{snapshot(device, device), ResultMode::update}});
    if (live_.size() > 1 && pick(3) > 0) send(device, next(device), snapshot(device, device), snapshot(device, next(device)));
  }

  // Copies what is kept on the device to a step slot, or over its state.
  void restore(int device) {
    std::vector<SlotId> kept;
    for (const auto& [place, slot] : snapshots_)
      if (place.second == device) kept.push_back(slot);
    if (kept.empty()) return;
    const SlotId from = kept[static_cast<std::size_t>(pick(static_cast<int>(kept.size())))];
    if (pick(3) == 0) {
      written_.insert(device);
      pool(device, add(device, Opcode::reload), {from}, {{state(device), ResultMode::update}});
      return;
    }
    const SlotId to = add_slot(device, words(8));
    pool(device, add(device, Opcode::reload), {from}, {{to, ResultMode::store}});
    live(device).push_back(to);
  }

  // Adds a collective of a random group: on values made for it, or a sum of the members' states in place.
  void meet() {
    std::vector<std::int32_t> members;
    for (std::size_t device = 0; device < live_.size(); ++device)
      if (pick(3) > 0) members.push_back(static_cast<std::int32_t>(device));
    if (members.size() < 2) return;
    const auto known = std::find(program_.groups.begin(), program_.groups.end(), members);
    const auto group = static_cast<std::size_t>(known - program_.groups.begin());
    if (known == program_.groups.end()) program_.groups.push_back(members);
    met_.resize(program_.groups.size(), 0);
    const auto opcode = static_cast<Opcode>(static_cast<int>(Opcode::all_reduce) + pick(5));
    const std::int64_t piece = 8 * (1 + pick(40)), whole = piece * static_cast<std::int64_t>(members.size());
    const std::int32_t giver = members[static_cast<std::size_t>(pick(static_cast<int>(members.size())))];
    const bool of_states = opcode == Opcode::all_reduce && pick(3) == 0;
    for (const std::int32_t member : members) {
      std::vector<SlotId> given;
      std::vector<Result> taken;
      if (of_states) {
        written_.insert(member);
        given = {state(member)};
        taken = {{state(member), ResultMode::update}};
      } else {
        if (opcode != Opcode::broadcast || member == giver)
          given = {made(member, opcode == Opcode::reduce_scatter || opcode == Opcode::all_to_all ? whole : piece)};
        if (opcode == Opcode::all_reduce && pick(2) == 0)
          taken = {{given[0], ResultMode::update}};
        else if (opcode != Opcode::broadcast || member != giver)
          taken = {
              {add_slot(member, words(opcode == Opcode::all_gather || opcode == Opcode::all_to_all ? whole : piece)), ResultMode::store}};
      }
      Instruction& i = add(member, opcode);
      i.group = static_cast<std::int32_t>(group);
      i.tag = met_[group];
      if (opcode == Opcode::broadcast) i.peer = giver;
      pool(member, i, given, taken);
      if (!taken.empty() && taken[0].mode == ResultMode::store) live(member).push_back(taken[0].slot);
      maybe_free(member);
    }
    ++met_[group];
  }

  // Makes a new value.
  SlotId made(int device, std::int64_t count) {
    const SlotId slot = add_slot(device, words(count));
    run(device, operands(device), {{slot, ResultMode::store}}, {words(count)});
    live(device).push_back(slot);
    return slot;
  }

  void maybe_free(int device) {
    if (live(device).size() < 6 || pick(2) == 0) return;
    free(device, static_cast<std::size_t>(pick(static_cast<int>(live(device).size()))));
  }

  void free(int device, std::size_t index) {
    add(device, Opcode::free).slot = live(device)[index];
    live(device).erase(live(device).begin() + static_cast<std::ptrdiff_t>(index));
  }

  void end(int device) {
    while (!on_host(device).empty()) {
      reload(device);
      if (!on_host(device).empty() && pick(2) == 0) drop(device, 0);
    }
    std::ranges::copy(open_[static_cast<std::size_t>(device)], std::back_inserter(live(device)));
    std::vector<SlotId> all = live(device);
    all.push_back(state(device));
    if (const auto kept = kept_.find(device); kept != kept_.end()) all.push_back(kept->second);
    const SlotId out = add_slot(device, words(8));
    run(device, all, {{out, ResultMode::store}}, {words(8)});
    Instruction& output = add(device, Opcode::output);
    output.slot = out;
    output.port = static_cast<std::int32_t>(program_.outputs.size());
    program_.outputs.push_back({concat("out", device), words(8), false});
    live(device).push_back(out);
    while (!live(device).empty()) free(device, live(device).size() - 1);
  }

  std::mt19937_64 random_;
  bool keeps_;
  Program program_;
  std::vector<std::vector<SlotId>> live_, on_host_, open_;  // open: sums that may get more terms
  std::map<std::pair<int, int>, int> tags_;
  std::vector<int> met_;                             // number of collectives of each group
  std::map<int, SlotId> copies_, kept_;              // by owner; by holder
  std::map<std::pair<int, int>, SlotId> snapshots_;  // by owner and holder
  std::set<int> written_;                            // devices whose states are written
};

}  // namespace

Program random_program(std::uint64_t seed, int devices, int events, bool keeps) {
  Maker maker(seed, devices, keeps);
  for (int event = 0; event < events; ++event) maker.event();
  return maker.finish();
}

void HashData::fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows, std::span<std::byte> out) const {
  const std::size_t row_bytes = out.size() / static_cast<std::size_t>(rows);
  for (std::size_t i = 0; i < out.size(); ++i) {
    Hash hash;
    hash.add(port.name);
    hash.add(static_cast<std::uint64_t>(input.step));
    hash.add(static_cast<std::uint64_t>(input.seed));
    hash.add(static_cast<std::uint64_t>(first_row) * row_bytes + i);
    out[i] = static_cast<std::byte>(hash.value());
  }
}

Reference::Reference(const Program& program) : program_(program), next_(program.devices.size()) {
  for (const DeviceProgram& device : program.devices) {
    memory_.emplace_back();
    for (const Slot& slot : device.slots) memory_.back().emplace_back(static_cast<std::size_t>(slot_bytes(slot)), std::byte{0});
  }
}

std::map<std::string, std::vector<std::byte>> Reference::step(const StepInput& input) {
  input_ = &input;
  outputs_.clear();
  std::fill(next_.begin(), next_.end(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (int device = 0; device < static_cast<int>(next_.size()); ++device)
      while (next_[static_cast<std::size_t>(device)] < program_.devices[static_cast<std::size_t>(device)].instructions.size() &&
             run_one(device))
        moved = true;
  }
  for (std::size_t device = 0; device < next_.size(); ++device)
    invariant(next_[device] == program_.devices[device].instructions.size(), "the reference finishes");
  return outputs_;
}

std::vector<std::byte> Reference::state(int device) const {
  return memory_[static_cast<std::size_t>(device)][0];
}

bool Reference::run_one(int device) {
  const auto d = static_cast<std::size_t>(device);
  const DeviceProgram& own = program_.devices[d];
  const Instruction& i = own.instructions[next_[d]];
  std::vector<std::vector<std::byte>>& memory = memory_[d];
  switch (i.opcode) {
    case Opcode::run:
    case Opcode::copy:
    case Opcode::offload:
    case Opcode::reload: {
      std::vector<std::span<const std::byte>> operands;
      std::vector<std::span<std::byte>> results;
      for (SlotId slot : own.operands_of(i)) operands.emplace_back(memory[slot.index()]);
      for (const Result& result : own.results_of(i)) results.emplace_back(memory[result.slot.index()]);
      fake_run(i, operands, results, own.results_of(i));
      break;
    }
    case Opcode::send:
      sent_[{device, i.peer, i.tag}] = memory[i.slot.index()];
      break;
    case Opcode::recv: {
      const auto sent = sent_.find({i.peer, device, i.tag});
      if (sent == sent_.end()) return false;
      memory[i.slot.index()] = std::move(sent->second);
      sent_.erase(sent);
      break;
    }
    case Opcode::free:
      break;
    case Opcode::input: {
      const Port& port = program_.data[static_cast<std::size_t>(i.port)];
      const std::int64_t rows = port.type.shape[0] / (port.split ? program_.microbatches : 1);
      HashData().fill(port, *input_, std::max(i.microbatch, 0) * rows, rows, memory[i.slot.index()]);
      break;
    }
    case Opcode::output:
      outputs_[program_.outputs[static_cast<std::size_t>(i.port)].name] = memory[i.slot.index()];
      break;
    default:
      if (!take_part(device, i)) return false;
  }
  ++next_[d];
  return true;
}

// Takes the device's part in a collective: it gives its operand, and takes the result once all members have given theirs.
bool Reference::take_part(int device, const Instruction& i) {
  const DeviceProgram& own = program_.devices[static_cast<std::size_t>(device)];
  std::vector<std::vector<std::byte>>& memory = memory_[static_cast<std::size_t>(device)];
  const std::vector<std::int32_t>& members = program_.groups[static_cast<std::size_t>(i.group)];
  const auto place = [&](int member) {
    return static_cast<std::size_t>(std::find(members.begin(), members.end(), member) - members.begin());
  };
  Meeting& meeting = meetings_[{i.group, i.tag}];
  meeting.given.resize(members.size());
  if (meeting.came.insert(device).second && i.operands > 0) meeting.given[place(device)] = memory[own.operands_of(i)[0].index()];
  if (meeting.came.size() < members.size()) return false;
  const std::size_t root = i.opcode == Opcode::broadcast ? place(i.peer) : 0;
  for (const Result& result : own.results_of(i))
    memory[result.slot.index()] = collective_result(i.opcode, DType::i64, root, place(device), meeting.given);
  if (++meeting.left == members.size()) meetings_.erase({i.group, i.tag});
  return true;
}

}  // namespace penstock::test
