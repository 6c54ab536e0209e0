// The machine that this program runs on.
#pragma once

#include <cstdint>
#include <string>

namespace penstock {

// As /proc/cpuinfo names it; empty where the system has no such file.
std::string processor_name();
std::int64_t memory_bytes();  // physical; 0 where the system does not say

}  // namespace penstock
