// SPDX-License-Identifier: Apache-2.0
// The one interpreter of programs: the runtime, the verifier and the simulator all drive it, each with its own Machine.
//
// A Machine has
//   Event run(const Instruction&);      // run and copy: issue on the compute lane
//   Event start(const Instruction&);    // send, recv, input, output, offload, reload, collectives
//   bool  done(Event);                  // has it completed? kNoEvent always has
//   void  release(SlotId);              // the slot's memory may be used again
// and advance() calls them in program order, waiting where the instruction says:
//   run, copy     until each operand's and each overwritten result's incoming transfer or input is done, and each overwritten
//                 result's sends are (runs follow one another on the compute lane, so they never wait for a run)
//   send, output  until the slot's last writer is done
//   recv, input   until the slot's sends, its last incoming transfer and the last run that touched it are done (only a copy or snapshot
//                 slot can have any: other memory was freed by its previous user, which waited)
//   offload       as send for its operand, as recv for its result, which only a snapshot slot need wait for
//   reload        the same of a snapshot slot; of a host slot for nothing: the offload that fills it went before it on the lane of host
//   copies free          until the slot's sends, its incoming transfer and the last run that touched it are done collective    as send for
//   its operand, as recv for its result
// An offload, reload or collective counts as a send for the slot that it reads and as a recv for the slot that it fills: a free waits for
// either end, a run for what is filled.
// After the last instruction it waits for whatever the slots still have under way, so a finished device is idle.
// No virtual calls, no allocation, nothing formatted. It trusts the program: verify() first.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "penstock/program.h"

namespace penstock {

using Event = std::int64_t;
inline constexpr Event kNoEvent = -1;  // nothing to wait for

struct DeviceState {
  explicit DeviceState(const DeviceProgram& device);  // which must outlive it
  void reset();                                       // goes back to the first instruction

  // The events under way at a slot. An event is kNoEvent as soon as it is known to be done.
  struct SlotEvents {
    Event incoming = kNoEvent;  // the recv, input, host copy or collective that fills it
    Event written = kNoEvent;   // the last run that writes it
    Event touched = kNoEvent;   // the last run that reads or writes it
    // Index into `sends`: the newest send, output, host copy or collective that reads the slot and is not known to be done.
    std::int32_t last_send = -1;
  };
  struct Send {
    Event event = kNoEvent;
    std::int32_t previous = -1;  // index into `sends`: the slot's send before it
  };
  const DeviceProgram* device = nullptr;
  std::size_t next = 0;  // the next instruction
  std::size_t idle = 0;  // number of slots found idle after the last instruction
  IdVector<SlotId, SlotEvents> slots;
  std::vector<Send> sends;  // in program order; never grows beyond its first capacity
};

// The event that advance() stopped for: instruction `state.next` needs it (or, after the last one, slot `state.idle`). `event == kNoEvent`:
// the device has finished and is idle.
struct Wait {
  Event event = kNoEvent;
  bool finished() const { return event == kNoEvent; }
};
inline constexpr Event kStopped = -2;  // not a wait: instruction `stop` has been reached

// Executes instructions until one must wait, at most up to (not including) instruction `stop`.
template <class Machine>
Wait advance(DeviceState& state, Machine& machine, std::size_t stop = std::numeric_limits<std::size_t>::max());

}  // namespace penstock

#include "program/interpreter_impl.h"
