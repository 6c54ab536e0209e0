// SPDX-License-Identifier: Apache-2.0
// The machine that this program runs on.
#pragma once

#include <cstdint>
#include <string>

namespace penstock {

// The processor's name in /proc/cpuinfo; empty where the system has no such file.
std::string processor_name();
// Keeps this thread, and those that it starts from now on, on its share of the processors that it may use: the `index`-th of `count` equal
// ones. Returns false, and changes nothing, where there are fewer processors than shares.
bool keep_to_share(int index, int count);
std::int64_t memory_bytes();  // physical memory; 0 where the system does not say

// The memory that this process may still take, in bytes, and what sets the limit.
struct MemoryRoom {
  std::int64_t bytes = -1;  // -1: not known
  std::string limit;        // "this machine's free memory"
  std::int64_t all = -1;    // with what others hold; -1: not known
};
// The least of three: free memory and swap space, the room that control groups leave, and the room that the limit of the address space
// leaves (ulimit -v). `root` is the folder that holds /proc and /sys; tests have their own.
MemoryRoom memory_room(const std::string& root = "");

}  // namespace penstock
