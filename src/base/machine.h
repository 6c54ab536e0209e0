// The machine that this program runs on.
#pragma once

#include <cstdint>
#include <string>

namespace penstock {

// As /proc/cpuinfo names it; empty where the system has no such file.
std::string processor_name();
// Keeps this thread, and those that it makes from now on, on its share of the processors that it may use: the `index`-th of `count` equal
// ones. False, and nothing changes, where there are fewer processors than shares.
bool keep_to_share(int index, int count);
std::int64_t memory_bytes();  // physical; 0 where the system does not say

// How much memory this process may still take, and what sets the limit.
struct MemoryRoom {
  std::int64_t bytes = -1;  // -1: not known
  std::string limit;        // "this machine's free memory"
};
// The least of: free memory and swap space, what control groups leave, and what the limit of the address space leaves (ulimit -v). `root`
// is where /proc and /sys are; tests have their own.
MemoryRoom memory_room(const std::string& root = "");

}  // namespace penstock
