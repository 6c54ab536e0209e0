// SPDX-License-Identifier: Apache-2.0
// Program to program: what its state was when a step began is kept in the memory of two hosts.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/program.h"

namespace penstock {

// The program that also keeps what its state was when the step began, under the names of program/snapshot_name.h: each device copies the
// state that it owns to its host's memory, and sends it from there to its buddy, `buddies[device]` (-1: none), which keeps it in that of
// its own. Where another device has a copy of the very same part, that one, the first from the buddy on, copies it to its host, and nothing
// is sent. Results and state are those of `program`, to the bit. The program has slots for all generations, so that its memory plan is that
// of the programs for the others too, and writes `generation` alone. It is planned and verified (tagged: no pair of devices need have one
// order for both directions).
Program with_snapshot(const Program& program, int generation, const std::vector<std::int32_t>& buddies);

// A buddy for each device: on another host, of which each has `devices_per_host` consecutive devices, as far on as such a host is long;
// where there is one host the next device; -1 where there is one device.
std::vector<std::int32_t> buddies_of(int devices, int devices_per_host);

}  // namespace penstock
