// SPDX-License-Identifier: Apache-2.0
// The program verifier. Nothing is started that it has not passed.
#pragma once

#include "penstock/program.h"

namespace penstock {

// The order in which a transport completes transfers.
enum class ChannelModel : std::uint8_t {
  tagged,  // Gloo, threads, streams, NCCL with a communicator for each direction: each transfer completes once both ends have started it
  serial,  // one communicator for a pair: its transfers, both directions, start and complete one after the other in each end's order
};

struct VerifyOptions {
  ChannelModel model = ChannelModel::tagged;
  std::int64_t memory_limit = -1;  // bytes per device (state + step + scratch, without the host's memory); -1: no limit
};

// Throws Error unless all of this holds, with no buffering at all:
//   every device finishes;
//   each slot is defined before use, freed once, never used after, and no step or host slot stays;
//   a sum has all its terms before anybody reads it, and none is added behind that;
//   host slots are reached by offloads and reloads only, and snapshot slots by these, sends and receives;
//   both ends of each transfer agree in order, types and bytes;
//   operand and result parts match the task's graph;
//   no two tasks, ports, or slots of a device have one name, so that the text form reads back;
//   a device holds each state once, and ends the step with what its owner has;
//   a snapshot is what the state was when the step began, all of it, or what it was before;
//   where the program has a memory plan, slots that live at the same time do not overlap, every task has its scratch, and the arenas fit
//   the
//   limit.
// A deadlock error names the devices and instructions of the cycle. The time is linear in the number of instructions (times their
// operands), and in the ops of tasks that run outside of the loop.
void verify(const Program& program, const VerifyOptions& options = {});

}  // namespace penstock
