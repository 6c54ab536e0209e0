// Costs of programs on this machine, measured without a configuration.
#pragma once

#include <vector>

#include "penstock/costs.h"
#include "penstock/program.h"
#include "penstock/session.h"

namespace penstock {

// Times of the programs' tasks, and of links where they have several devices, on threads of this process, which compute with so many
// threads each; `rounds` steps of each. All programs are for equally many devices. Data that `data` does not give is zero. Throws Error as
// Session does.
Costs measure_here(const std::vector<Program>& programs, const HostTensors& state, const HostTensors& data, int threads, int rounds);
// Adds the link between two threads, for messages of so many bytes.
void measure_link_here(std::int64_t bytes, int rounds, Costs& costs);

}  // namespace penstock
