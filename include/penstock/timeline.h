// SPDX-License-Identifier: Apache-2.0
// The timeline says what the devices did or will do, and when: one model for simulated tables, simulated programs and measured steps. What
// explains (explain.h) and what draws (report/) reads nothing else.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/schedule.h"

namespace penstock {

// The part of a device that an activity keeps.
enum class Lane : std::uint8_t {
  compute,   // a run or an action
  transfer,  // from `device` to `peer`: from when both ends have started it until its bytes are there; to itself: a host copy, a collective
  host,      // starting a transfer, filling an input, handing out an output: keeps the device's thread, computes nothing
};

// Something that a device does, from begin to end.
struct Activity {
  double begin = 0, end = 0;                 // in the timeline's unit
  std::int32_t device = 0;                   // the row; of a transfer the sender
  std::int32_t peer = -1;                    // transfer: the receiver
  Lane lane = Lane::compute;                 // the part of the device that it keeps
  bool action = false;                       // belongs to an action of the table (else before or after the loop),
  Kind kind = Kind::F;                       // namely this one
  std::int32_t stage = -1, microbatch = -1;  // of the action; -1: none
  std::int32_t task = -1;                    // Timeline::tasks; -1: none (tables, transfers)
  std::int32_t item = -1;                    // instruction of the device's program (of a transfer: the send), or place in the actor's row
  std::int64_t cause = -1;  // the activity whose end let this one begin, the last of all that it waited for; -1: nothing, or unknown
  double bytes = 0;         // transfer
  bool frozen = false;      // compute of no action: a layer that is not trained, for the next step, in idle time; `task` names it

  bool operator==(const Activity&) const = default;
};

// The uses that a device's memory has.
enum class MemoryClass : std::uint8_t { parameters, optimiser, gradients, activations, communication, scratch };
inline constexpr std::size_t kMemoryClasses = 6;  // their number
std::string_view name(MemoryClass memory);        // "parameters"

// From `time` to the next point. Bytes; of a table with unit costs, micro-batches of one actor's whole share.
struct MemoryPoint {
  double time = 0;                              // in the timeline's unit
  std::array<double, kMemoryClasses> amount{};  // by MemoryClass
  double total() const;                         // the sum of all classes

  bool operator==(const MemoryPoint&) const = default;
};

// The activities and the memory of devices in one step, done or predicted.
struct Timeline {
  std::string title;                             // for the drawing
  bool seconds = true;                           // else the costs' own unit
  std::vector<std::string> devices;              // how each row is called: "device 0", "actor 0"
  std::vector<std::string> tasks;                // names that Activity::task counts
  std::vector<Activity> activities;              // by begin where nothing else is said; `cause` counts in this order
  std::vector<std::vector<MemoryPoint>> memory;  // by device, in time; empty: not known
  double makespan = 0;                           // in the timeline's unit
  // The number of slices of each stage, and the blocks of attention that are apart; Activity::stage counts them as Action::stage does.
  std::int32_t slices = 1;
  std::vector<StagePart> blocks = {};

  bool operator==(const Timeline&) const = default;
};

std::string_view words(Kind kind);  // "weight gradients"

// Short, for a box: "F3", "after.1", "1->0".
std::string label(const Timeline& timeline, const Activity& activity);
// In words, for hovering: "forward of stage 3, slice 2, micro-batch 4", "transfer from device 1 to device 0, 2 MiB".
std::string detail(const Timeline& timeline, const Activity& activity);

// In which a time of about this size reads well: " ms" is 1e-3 of a second; without seconds 1 and nothing.
struct TimeUnit {
  double size;         // in the time's own unit
  const char* suffix;  // behind the number, with its blank
};
TimeUnit time_unit(double time, bool seconds);
// "12.34 ms"; without seconds up to six digits: "12.3456".
std::string time_text(double time, bool seconds);

}  // namespace penstock
