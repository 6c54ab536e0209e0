// SPDX-License-Identifier: Apache-2.0
// Transfers between processes over c10d's Gloo.
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "devices/executor.h"

namespace penstock {

// Connects every rank with every other. All ranks call it; `address` is rank 0's: on this machine only the loopback device is used. Device
// n is rank n. A group's members are connected for its collectives before their first step with it. A wait that passes its deadline closes
// Gloo's pair: the other end then finds this one lost. That of one of Gloo's own collectives (torch/gloo_exchange.h says which are none)
// closes nothing, and the transport's end waits for it: it gives up `longest` after its start. `timeout`: of connecting. Throws c10's
// exceptions.
std::unique_ptr<Transport> make_gloo_transport(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const std::string& address,
                                               std::chrono::milliseconds timeout, std::chrono::milliseconds longest);

// Returns the text of an exception of c10d, without its stack trace.
std::string reason(const std::exception& error);

}  // namespace penstock
