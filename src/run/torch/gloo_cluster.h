// SPDX-License-Identifier: Apache-2.0
// Devices as processes: rank n is device n, rank 0 is the controller too. Data goes over Gloo or NCCL, commands over the rendezvous store.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "devices/cluster.h"
#include "devices/executor.h"
#include "driver/ranks.h"

namespace penstock {

struct GlooOptions {
  double deadline = 60;        // seconds that one wait, and the answer to one command, may take
  double rendezvous = 60;      // seconds in which all processes must have come
  std::string run = {};        // Hello::run: all ranks must have the same
  std::string folder = {};     // of the run: state is saved in its checkpoints only
  std::string device = "cpu";  // that the executors are on: over Gloo what is sent and received goes through the host's memory
  bool nccl = false;           // data goes over NCCL instead, from device to device; the executors are asynchronous
};

// On rank 0. Throws Error: NCCL and a device that it does not know, or no NCCL, port in use, a rank that does not come, another build,
// libtorch, world size or run. Whoever does not know the ranks' secret can neither be heard nor read, only be in the way.
std::unique_ptr<Cluster> make_gloo_cluster(const Ranks& ranks, const ExecutorFactory& executor, std::shared_ptr<const DataSource> data,
                                           const GlooOptions& options = {});

// On every other rank: obeys rank 0 until it says stop, then returns 0. From the first step on
// a first SIGTERM or SIGINT makes rank 0 stop the run; if rank 0 is silent for the deadline, this ends without it. Throws Error: rank 0
// cannot be reached, is lost or says nothing for an hour, the ranks differ, a step failed.
int serve_gloo(const Ranks& ranks, const ExecutorFactory& executor, std::shared_ptr<const DataSource> data,
               const GlooOptions& options = {});

// Another rank whose program makes the same calls as rank 0's (Cluster::begin_call), and between them does what it likes.
class Follower {
 public:
  virtual ~Follower() = default;  // tells rank 0, unless that has ended
  // Obeys rank 0 from the begin of its next call to the end, and gives what rank 0 gives. `call`: what rank 0 must say of it (check_call).
  // Throws Error: what the call ended with on rank 0, another call there, rank 0 is lost, or has closed its cluster, or does not begin a
  // call within the deadline.
  virtual Shared obey(const std::string& call) = 0;
  // All that calls have loaded, and not unloaded, in their order.
  virtual const std::vector<std::shared_ptr<const Program>>& programs() const = 0;
};

// On a rank that is not 0. Throws Error as serve_gloo does.
std::unique_ptr<Follower> make_gloo_follower(const Ranks& ranks, const ExecutorFactory& executor, std::shared_ptr<const DataSource> data,
                                             const GlooOptions& options = {});

}  // namespace penstock
