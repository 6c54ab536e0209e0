// SPDX-License-Identifier: Apache-2.0
// Costs of programs on this machine, measured without a configuration.
#pragma once

#include <string>
#include <vector>

#include "penstock/costs.h"
#include "penstock/program.h"
#include "penstock/session.h"

namespace penstock {

struct Measuring {
  std::string device = "cpu";  // on which all devices of this process compute (base/device_name.h)
  int threads = 1;             // of the host, with which each device computes there
  int rounds = 10;             // steps of each program
  bool fuse = false;           // whether chains of ops are one generated kernel each (torch/chain.h)
};

// Times of the programs' tasks, and of links where they have several devices, which are of this process. All programs are for equally many
// devices. Data that `data` does not give is zero. Throws Error as Session does.
Costs measure_here(const std::vector<Program>& programs, const HostTensors& state, const HostTensors& data, const Measuring& how);
// Adds the link between two devices, for messages of so many bytes.
void measure_link_here(std::int64_t bytes, const Measuring& how, Costs& costs);

}  // namespace penstock
