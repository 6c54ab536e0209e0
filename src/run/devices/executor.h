// SPDX-License-Identifier: Apache-2.0
// One device's memory and compute, and the wires between devices. The runtime knows no torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "devices/lanes.h"
#include "devices/step_recorder.h"
#include "penstock/error.h"
#include "penstock/program.h"
#include "penstock/shared_tensor.h"
#include "program/interpreter.h"

namespace penstock {

// A transfer or collective that does not complete because another end is gone or silent.
class PeerLost : public Error {
 public:
  explicit PeerLost(const std::string& what) : Error(what) {}  // as transports throw it: their caller knows the peers
  PeerLost(std::vector<std::int32_t> peers, const std::string& what, const std::vector<std::string>& details, const std::string& hint = {})
      : Error(what, details, hint), peers_(std::move(peers)) {}
  // One of them is to blame.
  const std::vector<std::int32_t>& peers() const { return peers_; }

 private:
  std::vector<std::int32_t> peers_;
};

// A wait that was given up because another device of this process failed: that device's error tells why.
class Aborted : public Error {
 public:
  Aborted() : Error("stopped because another device failed") {}
};

// Runs tasks on one device. All calls come from the device's own thread.
class Executor {
 public:
  virtual ~Executor() = default;

  // Binds a verified program's device: its tasks to kernels, its slots to addresses. A named tensor (a part of a state, copy or snapshot
  // slot) lives as long as the executor, or until it is forgotten: it keeps its value through any number of loads, also of programs that do
  // not name it; a name never seen before starts as zeros. Everything else is of the program. Throws Error (unknown op, no kernel).
  virtual void load(std::shared_ptr<const Program> program, int device) = 0;
  // Where a slot lies in the device's memory (its parts at part_offset), until the next load. Only kernels and the device's transport may
  // look there: it need not be memory of the host.
  virtual std::span<std::byte> address(SlotId slot) = 0;
  // A state tensor, a piece of one, or a part of a snapshot, by its name: where it lies until a load moves it. Null memory: it is not the
  // host's, or not known. A snapshot's is the host's, and what lies there changes in steps of programs that write that generation alone.
  virtual SharedTensor state(const std::string&) const { return {}; }
  // Drops state tensors, and the program of the last load: another load is to follow.
  virtual void forget(const std::vector<std::string>&) {}
  // Memory of the host, zeroed, that write() copies from and read() copies to while the host does something else, also in a recorded step.
  virtual std::shared_ptr<std::byte[]> host_memory(std::size_t bytes) { return std::make_shared<std::byte[]>(bytes); }
  // Copies bytes into a slot from `offset` on, or out of it, on the compute lane; kNoEvent if complete on return. What is written stays as
  // it is until the event is done, and what is read is there then.
  virtual Event write(SlotId slot, std::size_t offset, std::span<const std::byte> bytes) = 0;
  virtual Event read(SlotId slot, std::size_t offset, std::span<std::byte> bytes) = 0;
  // Issues a run or copy on the compute lane, an offload or reload on the lane of host copies; kNoEvent if it is complete on return.
  // Each lane completes what it is given in that order; the lanes do not wait for each other.
  virtual Event issue(const Instruction& instruction) = 0;
  // The lanes that it works on, to which all its events then belong; null: none.
  virtual DeviceLanes* lanes() const { return nullptr; }
  // Whether the device waits on its lanes where otherwise the host would.
  virtual bool asynchronous() const { return false; }
  // Whether its steps may be recorded and replayed, where its transport can.
  virtual bool replays() const { return true; }
  // Changes when a load gives a slot of state, or the memory that the steps of all programs share, another place. Until then all addresses
  // of earlier loads hold.
  virtual std::uint64_t placement() const = 0;
  // Behind the last instruction of a step, on the compute lane: what kernels found wrong with data that the host did not look at gets to
  // the host.
  virtual void end_step() {}
  // When that is done. Throws Error.
  virtual void check_step() const {}
  virtual bool done(Event event) = 0;
  // Blocks until the event is done; false when the deadline passed.
  virtual bool wait(Event event, Deadline deadline) = 0;
  // Peak of bytes that kernels allocated beside the planned arenas since load.
  virtual std::int64_t extra_bytes() const { return 0; }
  // The same of the last run alone.
  virtual std::int64_t last_run_bytes() const { return 0; }
};

// One member's part of a collective: see Opcode in penstock/program.h.
struct CollectiveCall {
  Opcode opcode = Opcode::all_reduce;
  std::int32_t group = -1, tag = -1;  // of the program
  std::size_t member = 0;             // place of this device in the group
  std::size_t root = 0;               // broadcast: place of the one that gives
  DType dtype = DType::f32;           // of what is summed
  bool on_host = false;               // of one end of a transfer, where a transport makes it a broadcast: its bytes are the host's
  std::span<const std::byte> from{};
  std::span<std::byte> to{};
};

// Moves slots between the devices of one program. One object per device ("endpoint"); calls come from the device's own thread. The bytes
// are where the device's executor says that a slot lies.
class Transport {
 public:
  virtual ~Transport() = default;

  // Once per step, before its first transfer. Transfers are named by (peer, direction, tag) and match by them. May wait for the other
  // members of a group that it sees for the first time.
  virtual void begin_step(const Program& program, int device) = 0;
  // Start a transfer; kNoEvent if it is complete on return. The bytes stay where they are until then; both ends give the same size.
  virtual Event send(int peer, int tag, std::span<const std::byte> bytes) = 0;
  virtual Event receive(int peer, int tag, std::span<std::byte> bytes) = 0;
  // The same for a collective; every member starts those of a group in one order.
  virtual Event collective(const CollectiveCall& call) = 0;
  virtual bool done(Event event) = 0;
  // Blocks until done; false when the deadline passed. Throws PeerLost or Aborted. send, receive and collective may throw them too.
  virtual bool wait(Event event, Deadline deadline) = 0;
  // The recorder of a program's steps on all devices that this connects; null: they cannot be recorded.
  virtual std::shared_ptr<StepRecorder> recorder(const Program&) { return nullptr; }
  // Its executor's, where it starts on DeviceLane::transfer what it is given: with an asynchronous executor it must.
  virtual DeviceLanes* lanes() const { return nullptr; }
};

// Makes this device's executor; called on the device's own thread (grad mode and intra-op threads are thread-local).
using ExecutorFactory = std::function<std::unique_ptr<Executor>(int device)>;

}  // namespace penstock
