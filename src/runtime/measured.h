// A measured step as a timeline.
#pragma once

#include <string>

#include "program/program.h"
#include "runtime/cluster.h"
#include "simulate/timeline.h"

namespace penstock {

// Of a step of `program` whose spans were recorded, in seconds. Runs and copies are on the compute lane, other instructions on the host
// lane; a send and its receive give a transfer besides, from the later start of both until the later of the two calls has returned
// (between threads, the second of them copies the bytes). What waited for what is not known, nor is memory.
Timeline timeline_of(const Program& program, const StepResult& result, const std::string& title);

}  // namespace penstock
