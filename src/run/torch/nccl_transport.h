// SPDX-License-Identifier: Apache-2.0
// Transfers and collectives between processes over NCCL, as work on streams of the device: no host waits for any of them.
//
// Each pair of devices has a communicator and a stream for each direction, each group a communicator, and all groups of a device share one
// stream. What a stream is given begins when the compute lane has come to where the program starts it. Why nothing waits for ever:
//
//   An operation of NCCL is done once all its members have begun it, and begins when those before it on its stream are done. Transfers of
//   one direction have tags, which both ends start in order (the verifier's match_transfers), so a transfer waits for no more than its two
//   starts: the verifier's tagged model. That the two directions of a pair may be started in any order is why each has a communicator; with
//   one for both only programs of its serial model would be safe. A device's collectives are done one after the other, in one order for all
//   devices, which is the queue with which check_progress runs every program.
//
//   NCCL says of operations of several communicators on one GPU only that they go on together where there is room for all their thread
//   blocks (usage/communicators.html). So what each may take is limited, and devices that would have more of them under way than any
//   supported GPU has multiprocessors are refused before the first step (kMostBlocks). Kernels of others end by themselves, so that such an
//   operation gets its room.
//
//   Connections, which NCCL makes at the first use, keep the host waiting for the other end. So all are made, and used once, before a
//   program's first step, in one order of all devices: pairs by their devices, then groups by their members.
//
// Sums are not NCCL's: those depend on how it goes through the devices, so that groups with equal terms could get unequal bits, with which
// copies of a state would drift apart, and bf16 is rounded at each device. Here members send each other pieces, which are added up in the
// members' order, bf16 in f32, and rounded once: the bits that devices of one process get. A sum that all get takes twice the bytes less a
// share of them, as a ring's.
#pragma once

#include <chrono>
#include <memory>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "devices/executor.h"
#include "torch/stream_lanes.h"

namespace penstock {

// `store`: where unique ids are exchanged; all devices have the same. `longest`: that a connection, and one call, may wait for others.
// `lanes`: its executor's, which outlive it. Throws Error where there is no NCCL.
std::unique_ptr<Transport> make_nccl_transport(c10::intrusive_ptr<c10d::Store> store, StreamLanes& lanes,
                                               std::chrono::milliseconds longest);

}  // namespace penstock
