// The parts of verify(), in the order in which it runs them: each relies on those before it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"
#include "program/verify.h"

namespace penstock::checks {

// "device 1, instruction 7 (free %x)": where every message of the verifier begins.
std::string place(const Program& program, int device, std::size_t instruction);

// Ids in range (else a bug of who made the program), tasks well typed, states as in check_states.
void check_tables(const Program& program);
// Each state has one owner, or its pieces tile it, each with one; a copy has its owner's type, or is a range of what is owned. A device
// holds each by one slot.
void check_states(const Program& program);
// Every slot: defined before use, freed once, never used after, none left; parts equal what tasks, ports and copies take and give.
void check_definitions(const Program& program, int device);
// Outputs are given once each.
void check_outputs(const Program& program);
// A send and its recv.
struct Transfer {
  std::int32_t from = 0, to = 0;          // devices
  std::int32_t sender = 0, receiver = 0;  // instructions
};
// One collective of a group.
struct Collective {
  std::int32_t group = 0;
  std::vector<std::int32_t> instructions;  // of each member
};
struct Transfers {
  std::vector<Transfer> all;
  std::vector<Collective> collectives;
  // [device][instruction]: in `all`, or `all.size()` + place in `collectives`; -1: neither send, recv nor collective
  std::vector<std::vector<std::int32_t>> of;
};
// Pairs every send with its recv, pair of devices by pair, and collects the members of every collective, group by group. Throws Error where
// tags do not run from 0 in order or an end or member is missing.
Transfers match_transfers(const Program& program);
void check_transfer_types(const Program& program, const Transfers& transfers);
// Members do the same with as many bytes of one dtype, and there is one global order of all collectives: each device starts its own in that
// order.
void check_collectives(const Program& program, const Transfers& transfers);
// Both ends of a pair start its transfers, of both directions, in one order.
void check_serial_order(const Program& program, const Transfers& transfers);
// Every device finishes without any buffering, and with one queue of collectives per device (NCCL): one after the other, as started.
void check_progress(const Program& program, const Transfers& transfers);
// Copies of states end the step with what their owners have.
void check_copies(const Program& program, const Transfers& transfers);
// Where there is a memory plan: every slot has a place, live slots do not overlap and lie inside the arenas, tasks have the scratch that
// they need, and the arenas fit the limit. A limit asks for a plan.
void check_memory(const Program& program, std::int64_t memory_limit);

}  // namespace penstock::checks
