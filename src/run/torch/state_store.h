// SPDX-License-Identifier: Apache-2.0
// The store of what a device keeps by name beyond its programs: training state, or snapshots of it in the host's memory.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "penstock/program.h"
#include "penstock/shared_tensor.h"
#include "torch/arena.h"

namespace penstock {

class StateStore {
 public:
  enum class Holds : std::uint8_t { state, snapshots };
  explicit StateStore(c10::Device device = c10::DeviceType::CPU, Holds holds = Holds::state) : device_(device), holds_(holds) {}

  // Sets the addresses of the device's slots that it holds, by SlotId. A slot whose parts already lie as it wants them keeps its memory;
  // the others get one new arena, in the order of their planned offsets, into which known parts (same name and type) are copied; the rest
  // is zero. Addresses stay valid until the next call.
  void place(const DeviceProgram& device, std::vector<std::byte*>& addresses);
  // The bytes of the arena that place() would take.
  std::int64_t bytes_to_place(const DeviceProgram& device) const;
  // Counts how often place() has given memory to what it did not know, or moved what it did.
  std::uint64_t placed() const { return placed_; }
  // Gives back the memory of these parts, once no other part lies in the same arena. Where others take less than half of one, the next
  // place() that names them gives them another place.
  void forget(const std::vector<std::string>& names);
  // Where the part of this name lies, until place() moves it; no memory: there is none, or it is not the host's.
  SharedTensor share(const std::string& name) const;
  // Size of all blocks that hold a named tensor.
  std::int64_t bytes() const;

 private:
  struct Entry {
    std::shared_ptr<Arena> block;
    std::byte* data = nullptr;
    TensorType type;
    bool leaves = false;  // its arena, at the next place()
  };
  std::byte* find(const Slot& slot) const;  // its address if all its parts lie there in order, else null
  void move(const Slot& slot, const std::shared_ptr<Arena>& block, std::byte* address, std::vector<std::shared_ptr<Arena>>& left);

  bool has(const Slot& slot) const { return holds_ == Holds::state ? holds_state(slot.kind) : slot.kind == SlotClass::snapshot; }
  c10::Device lies_on() const { return holds_ == Holds::state ? device_ : c10::Device(c10::DeviceType::CPU); }

  c10::Device device_;
  Holds holds_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::uint64_t placed_ = 0;
};

}  // namespace penstock
