// One device's memory and compute, and the wires between devices. The runtime knows no torch.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "program/interpreter.h"
#include "program/program.h"

namespace penstock {

using Deadline = std::chrono::steady_clock::time_point;

// Runs tasks on one device. All calls come from the device's own thread, except where noted.
class Executor {
 public:
  virtual ~Executor() = default;

  // Binds a verified program's device: its tasks to kernels, its slots to addresses. The state arena survives from one program to the next
  // as far as names agree (find() by name); everything else is of the program. Throws Error (unknown op, no kernel).
  virtual void load(std::shared_ptr<const Program> program, int device) = 0;
  // Memory of a slot (its parts at part_offset), valid until the next load. Host-addressable on CPU.
  virtual std::span<std::byte> memory(SlotId slot) = 0;
  // Issues a run or copy on the compute lane; kNoEvent if it is complete on return.
  virtual Event issue(const Instruction& instruction) = 0;
  virtual bool done(Event event) = 0;
  // Blocks until the event is done; false when the deadline passed.
  virtual bool wait(Event event, Deadline deadline) = 0;
  // Peak of bytes that kernels allocated beside the planned arenas since load.
  virtual std::int64_t extra_bytes() const { return 0; }
};

// Moves slots between the devices of one program. One object per device ("endpoint"); calls come from the device's own thread.
class Transport {
 public:
  virtual ~Transport() = default;

  // Once per step, before its first transfer. Transfers are named by (peer, direction, tag) and match by them.
  virtual void begin_step(const Program& program, int device) = 0;
  virtual Event send(int peer, int tag, std::span<const std::byte> bytes) = 0;
  virtual Event receive(int peer, int tag, std::span<std::byte> bytes) = 0;
  virtual bool done(Event event) = 0;
  // Blocks until done; false when the deadline passed. Throws Error when the peer is lost.
  virtual bool wait(Event event, Deadline deadline) = 0;
};

// Makes this device's executor; called on the device's own thread (grad mode and intra-op threads are thread-local).
using ExecutorFactory = std::function<std::unique_ptr<Executor>(int device)>;

}  // namespace penstock
