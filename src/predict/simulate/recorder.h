// SPDX-License-Identifier: Apache-2.0
// Collects what simulated devices do, as a timeline.
#pragma once

#include <vector>

#include "penstock/program.h"
#include "penstock/timeline.h"

namespace penstock {

class Recorder {
 public:
  explicit Recorder(const Program& program);  // which outlives it

  // Each returns the activity's number, for the causes of later ones. `cause`: -1 for none.
  std::int64_t run(std::size_t device, const Instruction& instruction, double begin, double end, std::int64_t cause);
  std::int64_t host(std::size_t device, const Instruction& instruction, double begin, double end, std::int64_t cause);
  std::int64_t transfer(std::size_t device, const Instruction& send, double begin, double end, std::int64_t cause);
  // A host copy or a collective: on a lane beside the device's others.
  std::int64_t beside(std::size_t device, const Instruction& instruction, double begin, double end, std::int64_t cause);

  // Calls for one device come in the order of time.
  void define(std::size_t device, SlotId slot, double time) { change(device, slot, time, 1); }
  void release(std::size_t device, SlotId slot, double time) { change(device, slot, time, -1); }

  Timeline take(double makespan);  // activities in the order of their begins

 private:
  Activity describe(std::size_t device, const Instruction& instruction, double begin, double end, std::int64_t cause) const;
  std::int32_t host_work(Opcode opcode) const;  // in Timeline::tasks
  std::int64_t add(const Activity& activity);
  void change(std::size_t device, SlotId slot, double time, double sign);
  void change(std::size_t device, MemoryClass memory, double time, double bytes);

  const Program& program_;
  Timeline timeline_;
  std::vector<IdVector<SlotId, MemoryClass>> classes_;  // of each device's slots
};

// Returns the bytes that a host copy moves, or that a collective gathers, reduces or exchanges: the larger of what it reads and what it
// fills.
double bytes_beside(const DeviceProgram& device, const Instruction& instruction);

// Returns for each slot of the device the class of its contents. Step slots: an accumulator, or what is computed after the loop, is a
// gradient; what a transfer fills is communication; the rest are activations.
IdVector<SlotId, MemoryClass> memory_classes(const DeviceProgram& device);

}  // namespace penstock
