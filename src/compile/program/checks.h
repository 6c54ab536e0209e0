// SPDX-License-Identifier: Apache-2.0
// The parts of verify(), in the order in which it runs them. Each relies on those before it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/program.h"
#include "program/verify.h"

namespace penstock::checks {

// "device 1, instruction 7 (free %x)": the beginning of every message of the verifier.
std::string place(const Program& program, int device, std::size_t instruction);

// Checks that ids are in range (if not, a bug of whoever made the program), tasks well typed, and states as in check_states.
void check_tables(const Program& program);
// Checks that each state has one owner, or that pieces with one owner each tile it; that a copy has its owner's type, or is a piece of what
// is owned; that a device holds each state in one slot; and that snapshots have snapshots' names.
void check_states(const Program& program);
// Checks that every slot is defined before use, freed once, never used after, and that none is left; and that parts have the types that
// tasks, ports and copies take and give.
void check_definitions(const Program& program, int device);
// Checks that each output is given exactly once.
void check_outputs(const Program& program);
// A send and its recv.
struct Transfer {
  std::int32_t from = 0, to = 0;          // devices
  std::int32_t sender = 0, receiver = 0;  // instructions
};
// One collective of a group.
struct Collective {
  std::int32_t group = 0;
  std::vector<std::int32_t> instructions;  // the members' instructions, in the group's order
};
struct Transfers {
  std::vector<Transfer> all;
  std::vector<Collective> collectives;
  // [device][instruction]: an index into `all`, or `all.size()` + an index into `collectives`; -1: neither send, recv nor collective
  std::vector<std::vector<std::int32_t>> of;
};
// Pairs every send with its recv, pair of devices by pair, and collects the members of every collective, group by group. Throws Error where
// tags do not run from 0 in order or an end or member is missing.
Transfers match_transfers(const Program& program);
void check_transfer_types(const Program& program, const Transfers& transfers);
// Checks that members do the same with as many bytes of one dtype, and that there is one global order of all collectives in which each
// device starts its own.
void check_collectives(const Program& program, const Transfers& transfers);
// Checks that both ends of a pair start its transfers, of both directions, in the same order.
void check_serial_order(const Program& program, const Transfers& transfers);
// Checks that every device finishes without any buffering, and with one queue of collectives per device (NCCL), done one after the other as
// started.
void check_progress(const Program& program, const Transfers& transfers);
// Checks that copies of states end the step with what their owners have, and all parts of a snapshot that it takes with what their states
// were when it began.
void check_copies(const Program& program, const Transfers& transfers);
// Where there is a memory plan, checks that every slot has a place, that live slots do not overlap and lie inside the arenas, that tasks
// have the scratch that they need, and that the arenas fit the limit. Giving a limit requires a plan.
void check_memory(const Program& program, std::int64_t memory_limit);

}  // namespace penstock::checks
