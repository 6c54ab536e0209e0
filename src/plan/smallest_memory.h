// What a planner says where nothing fits.
#pragma once

#include "base/text.h"
#include "penstock/error.h"
#include "penstock/plan.h"

namespace penstock {

// The smallest memory of each device with which `fits` holds, to a millionth and rounded up. `fits` must hold for some memory below 1e40
// bytes and for all larger ones.
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

[[noreturn]] inline void fail_memory(const std::string& graph, double memory, double needed) {
  throw Error(concat("no plan of ", graph, " fits into devices of ", bytes_text(memory)),
              {concat("the smallest memory of each device that would do is ", bytes_text(needed), " (", number(needed), " bytes)")},
              "take devices with more memory, or more of them");
}

}  // namespace penstock
