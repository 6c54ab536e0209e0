// SPDX-License-Identifier: Apache-2.0
// Steps that are recorded as their devices issue them, and then done again by one call instead of one for each instruction.
#pragma once

#include <cstdint>
#include <string>

#include "devices/commit.h"
#include "devices/lanes.h"
#include "penstock/error.h"

namespace penstock {

// A step that could not be recorded, of which nothing is done yet: it can be issued instead.
class NotRecorded : public Error {
 public:
  explicit NotRecorded(const std::string& why) : Error("the step cannot be recorded", {why}) {}
};

// It records one program's steps on all devices of a process, which share it. Addresses of slots, and of what inputs are read from and
// outputs are written to on the host, are part of a recording.
class StepRecorder {
 public:
  enum class Readiness : std::uint8_t { fresh, issued, recorded };  // a step was never made, issued, or recorded with the present addresses
  enum class Turn : std::uint8_t { issue, record, replayed };

  virtual ~StepRecorder() = default;
  // Returns how the step is made: each device says once per step how ready it is, its inputs being in place if it has recorded them. Waits
  // for the others. Where all have recorded, `commit` is told that state is written, and the recorded step is done on return. Throws Error
  // where it failed or passed its deadline, Aborted where another device failed or the step was given up.
  virtual Turn arrive(Readiness readiness, Commit& commit, Deadline deadline) = 0;
  // Around what a device issues in a step that is recorded: nothing of it is done. After end() of all devices arrive() replays it.
  // Throws NotRecorded.
  virtual void begin(DeviceLanes& lanes) = 0;
  virtual void end(DeviceLanes& lanes) = 0;
  // Instead of end(), where a device could not issue its part, or of what end() threw. True: no other device records with it, so that it
  // says arrive() once more, and issues the step.
  virtual bool fail(DeviceLanes& lanes) = 0;
};

}  // namespace penstock
