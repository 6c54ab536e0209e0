// Transfers between processes over c10d's Gloo.
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "runtime/executor.h"

namespace penstock {

// Connects every rank with every other. All ranks call it; `address` is rank 0's: on this machine only the loopback device is used.
// Throws c10's exceptions.
c10::intrusive_ptr<c10d::Backend> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const std::string& address,
                                               std::chrono::milliseconds timeout);

// Device n is rank n. A wait that passes its deadline closes Gloo's pair: the other end then finds this one lost.
std::unique_ptr<Transport> make_gloo_transport(c10::intrusive_ptr<c10d::Backend> backend);

// What an exception of c10d says, without its stack trace.
std::string reason(const std::exception& error);

}  // namespace penstock
