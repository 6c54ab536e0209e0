// SPDX-License-Identifier: Apache-2.0
// How the devices of a cluster form HetPipe's virtual workers (Park et al., 2005.14038): which are a worker and in which order, which
// layers each has, how many micro-batches are in flight, and how late a worker may take in what the others did. The original names three
// ways to group devices (equal distribution, node partition, hybrid) and takes the layers' cut from an integer program; here all of it is
// found by going from one choice to the next, where a predicted window says which is faster (variants.h).
#pragma once

#include <vector>

#include "penstock/plan.h"

namespace penstock {

struct VirtualWorkers {
  std::vector<std::vector<int>> devices;  // of the cluster, by worker and stage
  std::vector<std::vector<int>> layers;   // how many each stage has, likewise
  int in_flight = 1;                      // micro-batches of a worker, at most its stages
  int distance = 0;                       // waves that a worker may lack of the others'
};

// The cut of layers, which take so many seconds on a device of speed 1, into a stage for each device, of these speeds in this order: the
// one whose slowest stage is the fastest. There is at least one layer for each device.
std::vector<int> balanced_cut(const std::vector<double>& layers, const std::vector<double>& speeds);

// Where to begin: all devices of the cluster as so many workers, whose number divides theirs, dealt by turns, the fastest first, so that
// workers are alike; and as they follow each other, so that links inside of a worker are short. As many micro-batches as stages are in
// flight, and nothing is late.
std::vector<VirtualWorkers> first_workers(const std::vector<double>& layers, const ClusterSpec& cluster, int workers);

// All that differ in one way: two devices have changed places, and the workers that had them are cut anew; a layer has gone from one stage
// of a worker to the next or back; another number of micro-batches is in flight (fewer may hold more: what is freed when follows from the
// order); the others' waves come one later or earlier.
std::vector<VirtualWorkers> neighbours(const VirtualWorkers& of, const std::vector<double>& layers, const ClusterSpec& cluster);

}  // namespace penstock
