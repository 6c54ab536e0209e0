// SPDX-License-Identifier: Apache-2.0
// The error for a graph that does not fit, with the memory that would do.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "base/text.h"
#include "cost/time_limit.h"
#include "penstock/error.h"
#include "penstock/plan.h"

namespace penstock {

// The smallest memory per device for which `fits` holds, to a millionth and rounded up. `fits` must hold for some memory below 1e40 bytes
// and for all larger ones.
template <class Fits>
double smallest_memory(Fits&& fits) {
  double high = 1;
  while (!fits(high) && high < 1e40) high *= 2;
  for (double low = high / 2; high - low > 1e-6 * high;) {
    const double middle = (low + high) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return high;
}

// The error that nothing fits, and how many bytes would do.
struct MemoryError : Error {
  MemoryError(const std::string& what, const std::vector<std::string>& details, const std::string& hint, double memory)
      : Error(what, details, hint), needed(memory) {}

  double needed;  // bytes of each device that would do
};

// `least`: less than `needed` would not do.
[[noreturn]] inline void fail_memory(const std::string& graph, double memory, double needed, bool least = true) {
  throw MemoryError(concat("no plan of ", graph, " fits into devices of ", bytes_text(memory)),
                    {concat(least ? "the smallest memory of each device that would do is " : "a memory of each device that would do is ",
                            bytes_text(needed), " (", std::llround(std::ceil(needed)), " bytes)", least ? "" : ", maybe less")},
                    "take devices with more memory, or more of them", needed);
}

// Throws MemoryError with the smallest memory for which `fits` holds (smallest_memory), or fails as late where there was no time to find
// it.
template <class Fits>
[[noreturn]] void fail_memory(const std::string& who, const std::string& graph, double memory, TimeLimit& limit, Fits&& fits) {
  const double needed = limit.is_over(0) ? 0 : smallest_memory([&](double bytes) { return limit.is_over(0) || fits(bytes); });
  if (limit.is_over(0)) fail_late(who, graph, limit);
  fail_memory(graph, memory, needed);
}

}  // namespace penstock
