// SPDX-License-Identifier: Apache-2.0
// The rank of this process among the processes of one run, from the variables that launchers set.
#pragma once

#include <optional>
#include <string>

namespace penstock {

// This process's place among those of a run, and where they meet.
struct Ranks {
  int rank = 0, size = 1;              // this process's number, from 0; processes of the run
  int local_rank = 0, local_size = 0;  // among the processes of this machine; local_size 0: the launcher did not say
  std::string address = "127.0.0.1";   // rank 0's
  int port = 29500;                    // of the rendezvous store
  bool elastic = false;                // rank 0 has no device, and the others may go and come (penstock launch --elastic)
  bool store_runs = false;             // whether the store is served there already (by torchrun, or by rank 0 for something else)
  std::string attempt;                 // distinguishes runs that share a store
  std::string secret;                  // the run's secret, which signs its messages; empty: anybody who reaches the store can forge them
};

// Reads RANK and WORLD_SIZE (penstock launch, torchrun), else OMPI_COMM_WORLD_RANK and _SIZE (mpirun), else SLURM_PROCID and SLURM_NTASKS;
// with each of them MASTER_ADDR and MASTER_PORT, LOCAL_RANK and LOCAL_WORLD_SIZE, PENSTOCK_SECRET, PENSTOCK_ELASTIC. None where no launcher
// started this process. Throws Error for a value that is no number or out of range, half a pair, or several machines without MASTER_ADDR.
std::optional<Ranks> ranks_from_environment();

}  // namespace penstock
