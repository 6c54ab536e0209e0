// A device's training state by name: it outlives programs.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "program/program.h"
#include "torch/arena.h"

namespace penstock {

class StateStore {
 public:
  // Addresses of the device's state and copy slots (null for step slots), indexed by SlotId. A slot whose parts already lie as it wants
  // them keeps its memory; the others get one new arena, in the order of their planned offsets, and what is known of their parts (by name,
  // type equal) is copied there; the rest is zero. Addresses stay valid until the next call.
  std::vector<std::byte*> place(const DeviceProgram& device);
  // Of all blocks that hold a named tensor.
  std::int64_t bytes() const;

 private:
  struct Entry {
    std::shared_ptr<Arena> block;
    std::byte* data = nullptr;
    TensorType type;
  };
  std::byte* find(const Slot& slot) const;  // null unless all its parts lie there in order
  void move(const Slot& slot, const std::shared_ptr<Arena>& block, std::byte* address);

  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace penstock
