// SPDX-License-Identifier: Apache-2.0
// Collectives made of messages between the members of a group, over c10d's Gloo.
#pragma once

#include <cstddef>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "devices/executor.h"

namespace penstock {

// Whether a collective of so many members is one round of messages in which each sends each other one what that one needs: all are but
// broadcasts, and sums that more than two members get whole, which would take a second round.
bool is_exchange(Opcode opcode, std::size_t members);

// Starts one. What comes is added up, in the members' order and so with the bits that threads get, by who waits for the result. Gloo's own
// sums take two rounds, and its reduce_scatter sums all: steps of two members are 0.83 (all_reduce) and 0.76 (all_gather, reduce_scatter)
// of what they are with Gloo's (bench/tensor_peer.py's at width 64).
c10::intrusive_ptr<c10d::Work> begin_exchange(c10d::Backend& group, std::size_t members, const CollectiveCall& call);

}  // namespace penstock
