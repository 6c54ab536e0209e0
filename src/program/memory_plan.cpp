#include "program/memory_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/invariant.h"
#include "ops/definition.h"

namespace penstock {
namespace {

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// A growing arena with a best-fit free list: free blocks by place, to join neighbours, and by size, to find the smallest that fits.
class Arena {
 public:
  std::int64_t take(std::int64_t bytes) {
    const auto it = by_size_.lower_bound({bytes, 0});
    if (it == by_size_.end()) return grow(bytes);
    const auto [size, offset] = *it;
    remove(offset, size);
    if (size > bytes) add(offset + bytes, size - bytes);
    return offset;
  }

  void give(std::int64_t offset, std::int64_t bytes) {
    if (bytes == 0) return;
    const auto after = by_offset_.lower_bound(offset);
    if (after != by_offset_.begin()) {
      const auto [place, size] = *std::prev(after);
      if (place + size == offset) {
        remove(place, size);
        offset = place;
        bytes += size;
      }
    }
    if (const auto next = by_offset_.lower_bound(offset); next != by_offset_.end() && next->first == offset + bytes) {
      const std::int64_t size = next->second;
      remove(offset + bytes, size);
      bytes += size;
    }
    add(offset, bytes);
  }

  std::int64_t bytes() const { return end_; }

 private:
  // Nothing fits: extends the free block at the end, if there is one.
  std::int64_t grow(std::int64_t bytes) {
    std::int64_t offset = end_;
    if (!by_offset_.empty()) {
      const auto [place, size] = *by_offset_.rbegin();
      if (place + size == end_) {
        remove(place, size);
        offset = place;
      }
    }
    end_ = offset + bytes;
    return offset;
  }
  void add(std::int64_t offset, std::int64_t bytes) {
    by_offset_.emplace(offset, bytes);
    by_size_.emplace(bytes, offset);
  }
  void remove(std::int64_t offset, std::int64_t bytes) {
    by_offset_.erase(offset);
    by_size_.erase({bytes, offset});
  }

  std::map<std::int64_t, std::int64_t> by_offset_;
  std::set<std::pair<std::int64_t, std::int64_t>> by_size_;
  std::int64_t end_ = 0;
};

void plan_state(DeviceProgram& device) {
  device.state_bytes = 0;
  for (Slot& slot : device.slots) {
    slot.offset = -1;
    if (slot.kind == SlotClass::step) continue;
    slot.offset = device.state_bytes;
    device.state_bytes += slot_bytes(slot);
  }
}

void plan_step(DeviceProgram& device) {
  Arena arena;
  const auto define = [&](SlotId id) {
    Slot& slot = device.slots[id.index()];
    if (slot.kind == SlotClass::step && slot.offset < 0) slot.offset = arena.take(slot_bytes(slot));
  };
  for (const Instruction& instruction : device.instructions) {
    if (instruction.opcode == Opcode::recv || instruction.opcode == Opcode::input) define(instruction.slot);
    for (const Result& result : device.results_of(instruction))
      if (result.mode == ResultMode::store) define(result.slot);
    if (instruction.opcode == Opcode::free) {
      const Slot& slot = device.slots[instruction.slot.index()];
      invariant(slot.offset >= 0, "a program frees a slot that it never defined");
      arena.give(slot.offset, slot_bytes(slot));
    }
  }
  device.step_bytes = arena.bytes();
}

}  // namespace

void plan_memory(Program& program) {
  for (Task& task : program.tasks) task.scratch = plan_scratch(task.graph).bytes;
  for (DeviceProgram& device : program.devices) {
    plan_state(device);
    plan_step(device);
    device.scratch_bytes = 0;
    for (const Instruction& instruction : device.instructions)
      if (instruction.opcode == Opcode::run)
        device.scratch_bytes = std::max(device.scratch_bytes, program.tasks[instruction.task.index()].scratch);
  }
}

namespace {

// Which value's storage each value lives in, and until which op that storage is read.
struct Storage {
  std::vector<ValueId> root;      // of each value: itself, or what it views
  std::vector<std::size_t> last;  // of each root: the op that reads it last; ops.size() for what an output needs
  std::vector<bool> fixed;        // of each root: an input or output of the graph, no temporary
};

Storage storage_of(const Graph& graph) {
  constexpr std::size_t kNever = 0;
  Storage storage{std::vector<ValueId>(graph.values.size()), std::vector<std::size_t>(graph.values.size(), kNever),
                  std::vector<bool>(graph.values.size(), false)};
  for (std::size_t v = 0; v < graph.values.size(); ++v) storage.root[v] = ValueId(static_cast<std::int64_t>(v));
  for (ValueId input : graph.inputs) storage.fixed[input.index()] = true;
  for (std::size_t o = 0; o < graph.ops.size(); ++o) {
    const Op& op = graph.ops[o];
    const OpDefinition* definition = find_op(op.name);
    if (definition != nullptr && definition->views >= 0)
      storage.root[op.results[0].index()] = storage.root[op.operands[static_cast<std::size_t>(definition->views)].index()];
    for (ValueId operand : op.operands) storage.last[storage.root[operand.index()].index()] = o;
    for (ValueId result : op.results) storage.last[storage.root[result.index()].index()] = o;
  }
  for (ValueId output : graph.outputs) {
    const ValueId root = storage.root[output.index()];
    if (root == output) storage.fixed[root.index()] = true;  // written straight into its slot; a view is copied there at the end
    storage.last[root.index()] = graph.ops.size();
  }
  return storage;
}

// The operand whose place result `r` of op `o` may take: it dies here, and the op reads it element by element in the result's order.
ValueId in_place(const Graph& graph, const Storage& storage, std::size_t o, std::size_t r) {
  const Op& op = graph.ops[o];
  const OpDefinition* definition = find_op(op.name);
  if (definition == nullptr || !definition->elementwise || r >= op.operands.size()) return {};
  const ValueId operand = op.operands[r];
  if (storage.root[operand.index()] != operand || storage.fixed[operand.index()] || storage.last[operand.index()] != o) return {};
  if (graph.type(operand).bytes() != graph.type(op.results[r]).bytes()) return {};
  // Another operand that views it may be read in another order, and its place can be taken only once.
  for (std::size_t i = 0; i < op.operands.size(); ++i)
    if (i != r && storage.root[op.operands[i].index()] == operand) return {};
  return operand;
}

}  // namespace

ScratchPlan plan_scratch(const Graph& graph) {
  const Storage storage = storage_of(graph);
  std::vector<std::vector<ValueId>> dying(graph.ops.size() + 1);
  ScratchPlan plan{std::vector<std::int64_t>(graph.values.size(), -1), 0};
  Arena arena;
  for (std::size_t o = 0; o < graph.ops.size(); ++o) {
    const Op& op = graph.ops[o];
    for (std::size_t r = 0; r < op.results.size(); ++r) {
      const ValueId result = op.results[r];
      if (storage.root[result.index()] != result || storage.fixed[result.index()]) continue;
      const ValueId taken = in_place(graph, storage, o, r);
      if (taken) std::erase(dying[o], taken);
      plan.offsets[result.index()] = taken ? plan.offsets[taken.index()] : arena.take(aligned(graph.type(result).bytes()));
      dying[storage.last[result.index()]].push_back(result);
    }
    for (ValueId value : dying[o]) arena.give(plan.offsets[value.index()], aligned(graph.type(value).bytes()));
  }
  plan.bytes = arena.bytes();
  return plan;
}

}  // namespace penstock
