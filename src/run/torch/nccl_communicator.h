// SPDX-License-Identifier: Apache-2.0
// One communicator of NCCL: some devices that send each other tensors in one order.
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "torch/nccl_library.h"

namespace penstock {

class NcclCommunicator {
 public:
  // Member `own` of these devices. Waits for the others, which all call it with this name. `blocks`: the thread blocks that one operation
  // may take. Throws PeerLost where they do not come in time.
  NcclCommunicator(const NcclLibrary& library, c10d::Store& store, const std::string& name, const std::vector<std::int32_t>& members,
                   std::size_t own, int blocks, std::chrono::milliseconds longest);
  // The members need not end it together: by then no operation is under way, or it has been given up. Waits until NCCL lets go of it, which
  // it does when graphs that were recorded with it are gone.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // Throws PeerLost where it was given up.
  NcclComm* handle() const;
  // Throws PeerLost, as one of the other members is to blame.
  [[noreturn]] void blame(const std::string& why) const;
  // Throws PeerLost where a call gave an error; waits while NCCL still works at it.
  void check(int result) const;
  // Throws PeerLost where an operation under way has failed, unless it was given up.
  void look() const;
  // Ends all operations, and does not wait for it.
  void give_up();

 private:
  const NcclLibrary& library_;
  std::vector<std::int32_t> others_;
  std::chrono::milliseconds longest_;
  NcclComm* handle_ = nullptr;
  std::future<void> ending_;  // valid: it was given up
};

}  // namespace penstock
