// SPDX-License-Identifier: Apache-2.0
#include "support/fake_device.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "program/moved_symbols.h"
#include "support/thread_lanes.h"

namespace penstock {
namespace {

std::uint64_t mix(std::uint64_t x) {  // splitmix64's finaliser
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

std::uint64_t word_at(std::span<const std::byte> bytes, std::size_t index) {
  std::uint64_t word;
  std::memcpy(&word, bytes.data() + 8 * index, 8);
  return word;
}

}  // namespace

void fake_run(const Instruction& instruction, std::span<const std::span<const std::byte>> operands,
              std::span<const std::span<std::byte>> results, std::span<const Result> modes) {
  if (instruction.opcode != Opcode::run) {
    std::memmove(results[0].data(), operands[0].data(), results[0].size());
    return;
  }
  std::uint64_t hash = static_cast<std::uint64_t>(instruction.task.value) + 1;
  for (const std::span<const std::byte> operand : operands)
    for (std::size_t i = 0; i < operand.size() / 8; ++i) hash = mix(hash + word_at(operand, i));
  for (std::size_t r = 0; r < results.size(); ++r) {
    for (std::size_t i = 0; i < results[r].size() / 8; ++i) {
      std::uint64_t word = mix(hash + (r << 32) + i);
      if (modes[r].mode == ResultMode::add) word += word_at(results[r], i);
      std::memcpy(results[r].data() + 8 * i, &word, 8);
    }
  }
}

namespace {

// Does what a task says that only moves elements: so state that is moved on fake devices is the same state.
void move_elements(const Graph& graph, std::vector<std::vector<std::byte>> inputs, std::span<const std::span<std::byte>> outputs) {
  IdVector<ValueId, std::vector<std::byte>> values(graph.values.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) values[graph.inputs[i]] = std::move(inputs[i]);
  for (const Op& op : graph.ops) {
    std::vector<std::byte>& out = values[op.results[0]];
    if (op.name == "reshape") {
      out = values[op.operands[0]];
      continue;
    }
    const TensorType& type = graph.type(op.results[0]);
    const auto given = attribute<std::int64_t>(op, "dim");
    const auto dim = static_cast<std::size_t>(given < 0 ? given + std::ssize(type.shape) : given);
    std::int64_t rows = 1, inner = byte_size(type.dtype);
    for (std::size_t d = 0; d < dim; ++d) rows *= type.shape[d];
    for (std::size_t d = dim + 1; d < type.shape.size(); ++d) inner *= type.shape[d];
    const bool slices = op.name == "slice";
    for (std::int64_t row = 0; row < rows; ++row)
      for (const ValueId operand : op.operands) {
        const std::int64_t size = graph.type(operand).shape[dim] * inner;
        const auto from = values[operand].begin() + row * size + (slices ? attribute_or(op, "start", std::int64_t{0}) * inner : 0);
        out.insert(out.end(), from, from + (slices ? type.shape[dim] * inner : size));
      }
  }
  for (std::size_t o = 0; o < outputs.size(); ++o) std::ranges::copy(values[graph.outputs[o]], outputs[o].begin());
}

class FakeExecutor : public Executor {
 public:
  void load(std::shared_ptr<const Program> program, int device) override;
  std::span<std::byte> address(SlotId slot) override { return memory_[slot]; }
  SharedTensor state(const std::string& name) const override;
  void forget(const std::vector<std::string>& names) override {
    keep_state();
    own_ = nullptr;
    for (const std::string& name : names) states_.erase(name);
  }
  std::uint64_t placement() const override { return loads_; }
  Event write(SlotId slot, std::size_t offset, std::span<const std::byte> bytes) override;
  Event read(SlotId slot, std::size_t offset, std::span<std::byte> bytes) override;
  Event issue(const Instruction& instruction) override;
  bool done(Event) override { return true; }
  bool wait(Event, Deadline) override { return true; }

 private:
  struct Part {
    std::string name;
    TensorType type;
    std::span<std::byte> bytes;
  };

  void keep_state();
  std::vector<Part> state_parts() const;
  void place(std::vector<std::byte>& arena, const Slot& slot, std::size_t& next);
  std::span<std::byte> part(SlotId slot, std::size_t p) {
    const Slot& of = own_->slots[slot];
    return memory_[slot].subspan(static_cast<std::size_t>(part_offset(of, p)), static_cast<std::size_t>(of.parts[p].bytes()));
  }
  bool move_elements(const Instruction& instruction);

  std::shared_ptr<const Program> program_;
  const DeviceProgram* own_ = nullptr;
  std::vector<std::byte> state_arena_, step_arena_, host_arena_, snapshot_arena_;
  std::uint64_t loads_ = 0;
  IdVector<SlotId, std::span<std::byte>> memory_;
  struct Kept {
    TensorType type;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, Kept> states_;  // of names, as of the last load
};

// Each with what lies between it and the next, which runs write too.
std::vector<FakeExecutor::Part> FakeExecutor::state_parts() const {
  std::vector<Part> parts;
  for (std::size_t s = 0; own_ && s < own_->slots.size(); ++s) {
    const Slot& slot = own_->slots[s];
    for (std::size_t p = 0; p < slot.names.size(); ++p) {
      const auto begin = static_cast<std::size_t>(part_offset(slot, p));
      const auto end = p + 1 < slot.parts.size() ? static_cast<std::size_t>(part_offset(slot, p + 1)) : memory_[s].size();
      parts.push_back({slot.names[p], slot.parts[p], memory_[s].subspan(begin, end - begin)});
    }
  }
  return parts;
}

void FakeExecutor::keep_state() {
  for (const Part& part : state_parts()) states_[part.name] = {part.type, {part.bytes.begin(), part.bytes.end()}};
}

SharedTensor FakeExecutor::state(const std::string& name) const {
  for (const Part& part : state_parts())
    if (part.name == name) return {part.type, {std::shared_ptr<void>(), part.bytes.data()}};
  const auto kept = states_.find(name);
  if (kept == states_.end()) return {};
  return {kept->second.type, {std::shared_ptr<void>(), const_cast<std::byte*>(kept->second.bytes.data())}};
}

// At the planned offset; without a plan behind what was placed before.
void FakeExecutor::place(std::vector<std::byte>& arena, const Slot& slot, std::size_t& next) {
  const std::size_t bytes = slot_bytes(slot);
  const std::size_t offset = slot.offset >= 0 ? static_cast<std::size_t>(slot.offset) : next;
  next = std::max(next, offset + bytes);
  memory_.push_back({arena.data() + offset, bytes});
}

void FakeExecutor::load(std::shared_ptr<const Program> program, int device) {
  ++loads_;
  keep_state();
  program_ = std::move(program);
  own_ = &program_->devices[device];
  const auto arena_of = [](const Slot& slot) {
    return holds_state(slot.kind) ? 2 : slot.kind == SlotClass::snapshot ? 3 : is_on_host(slot.kind);
  };
  std::int64_t bytes[] = {own_->step_bytes, own_->host_bytes, own_->state_bytes, own_->snapshot_bytes};
  for (const Slot& slot : own_->slots)
    if (slot.offset < 0) bytes[arena_of(slot)] += slot_bytes(slot);
  std::vector<std::byte>* arenas[] = {&step_arena_, &host_arena_, &state_arena_, &snapshot_arena_};
  for (int a = 0; a < 4; ++a) arenas[a]->assign(static_cast<std::size_t>(bytes[a]), a < 2 ? std::byte{0xA5} : std::byte{0});
  memory_.clear();
  std::size_t next[] = {0, 0, 0, 0};
  for (const Slot& slot : own_->slots) place(*arenas[arena_of(slot)], slot, next[arena_of(slot)]);
  for (const Part& part : state_parts())
    if (const auto old = states_.find(part.name); old != states_.end())
      std::copy_n(old->second.bytes.begin(), std::min(old->second.bytes.size(), part.bytes.size()), part.bytes.begin());
}

Event FakeExecutor::write(SlotId slot, std::size_t offset, std::span<const std::byte> bytes) {
  std::ranges::copy(bytes, memory_[slot].subspan(offset).begin());
  // What lies behind it is read by runs, and would be what the program or another left there.
  const std::size_t end = offset + bytes.size(), next = (end + kAlignment - 1) / kAlignment * kAlignment;
  std::ranges::fill(memory_[slot].subspan(end, std::min(next, memory_[slot].size()) - end), std::byte{0});
  return kNoEvent;
}

Event FakeExecutor::read(SlotId slot, std::size_t offset, std::span<std::byte> bytes) {
  std::ranges::copy(memory_[slot].subspan(offset, bytes.size()), bytes.begin());
  return kNoEvent;
}

// False: the instruction is no run of a task that only does that.
bool FakeExecutor::move_elements(const Instruction& instruction) {
  if (instruction.opcode != Opcode::run) return false;
  const TaskGraph& graph = program_->tasks[instruction.task].graph;
  if (graph->inputs.empty() || !checks::MovedSymbols::moves_only(graph)) return false;
  std::vector<std::vector<std::byte>> inputs;
  std::vector<std::span<std::byte>> outputs;
  for (const SlotId slot : own_->operands_of(instruction))
    for (std::size_t p = 0; p < own_->slots[slot].parts.size(); ++p) inputs.emplace_back(part(slot, p).begin(), part(slot, p).end());
  for (const Result& result : own_->results_of(instruction)) {
    if (result.mode == ResultMode::add) return false;
    for (std::size_t p = 0; p < own_->slots[result.slot].parts.size(); ++p) outputs.push_back(part(result.slot, p));
  }
  for (const Result& result : own_->results_of(instruction)) std::ranges::fill(memory_[result.slot], std::byte{0});  // behind parts too
  penstock::move_elements(graph, std::move(inputs), outputs);
  return true;
}

Event FakeExecutor::issue(const Instruction& instruction) {
  // An executor may keep what it bound by the place of the instruction.
  const std::less<const Instruction*> before;
  const Instruction* first = own_->instructions.data();
  if (before(&instruction, first) || !before(&instruction, first + own_->instructions.size()))
    throw Error("an instruction that is not of the loaded program");
  if (move_elements(instruction)) return kNoEvent;
  std::vector<std::span<const std::byte>> operands;
  std::vector<std::span<std::byte>> results;
  for (SlotId slot : own_->operands_of(instruction)) operands.push_back(memory_[slot]);
  for (const Result& result : own_->results_of(instruction)) results.push_back(memory_[result.slot]);
  fake_run(instruction, operands, results, own_->results_of(instruction));
  return kNoEvent;
}

}  // namespace

std::unique_ptr<Executor> make_fake_executor(const FakeOptions& options) {
  std::unique_ptr<Executor> executor = std::make_unique<FakeExecutor>();
  if (options.longest.count() == 0) return executor;
  return make_lane_executor(std::move(executor), make_thread_lanes(options.seed, options.longest), /*host_waits=*/true);
}

std::unique_ptr<Transport> make_fake_transport(std::unique_ptr<Transport> inner, const FakeOptions& options) {
  return make_lane_transport(std::move(inner), make_thread_lanes(options.seed, options.longest));
}

}  // namespace penstock
