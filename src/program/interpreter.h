// The one interpreter of programs: the runtime, the verifier and the simulator all drive it, each with its own Machine.
//
// A Machine has
//   Event run(const Instruction&);      // run and copy: issue on the compute lane
//   Event start(const Instruction&);    // send, recv, input, output
//   bool  done(Event);                  // has it completed? kNoEvent always has
//   void  release(SlotId);              // the slot's memory may be used again
// and advance() calls them in program order, waiting where the instruction says:
//   run, copy  until each operand's and each overwritten result's last *transfer* or input is done (runs are in order on the compute lane)
//   send       until the slot's last writer is done
//   recv       until its memory's previous user is done (it was freed, which waited)
//   output     until the slot's last writer is done
//   free       until the slot's sends, and the last run that touched it, are done
// No virtual calls, no allocation, nothing formatted.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace penstock {

using Event = std::int64_t;
inline constexpr Event kNoEvent = -1;   // nothing to wait for

struct DeviceState {
  explicit DeviceState(const DeviceProgram& device);
  void reset();                         // to the first instruction

  struct SlotEvents {
    Event written = kNoEvent;           // the last writer,
    bool by_run = false;                // and whether that was a run
    Event touched = kNoEvent;           // the last run that reads or writes it
    std::int32_t last_send = -1;        // index of the newest send instruction not known to be done
  };
  const DeviceProgram* device = nullptr;
  std::size_t next = 0;                 // instruction
  std::vector<SlotEvents> slots;
  std::vector<Event> send_event;        // of each instruction that is a send
  std::vector<std::int32_t> previous_send;  // the slot's send before it, -1 if none
};

// What advance() stopped for: the event that instruction `state.next` needs. `event == kNoEvent`: the device has finished.
struct Wait {
  Event event = kNoEvent;
  bool finished() const { return event == kNoEvent; }
};

template <class Machine>
Wait advance(DeviceState& state, Machine& machine);

}  // namespace penstock

#include "program/interpreter_impl.h"
