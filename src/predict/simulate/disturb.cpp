// SPDX-License-Identifier: Apache-2.0
#include <random>

#include "base/text.h"
#include "penstock/error.h"
#include "simulate/simulate.h"

namespace penstock {
namespace {

void check(const Program& program, const Disturbance& disturbance) {
  if (!(disturbance.jitter >= 0 && disturbance.jitter < 1))
    throw Error(concat("a jitter of ", number(disturbance.jitter)), {}, "it is a share of each run's time: from 0 up to, not including, 1");
  if (!disturbance.slowdown.empty() && disturbance.slowdown.size() != program.devices.size())
    throw Error(concat(disturbance.slowdown.size(), " slowdowns for ", program.devices.size(), " devices"));
  for (double factor : disturbance.slowdown)
    if (!(factor > 0) || factor > 1e6) throw Error(concat("a device ", number(factor), " times as slow"), {}, "factors are above 0");
}

}  // namespace

void disturb(Durations& durations, const Program& program, const Disturbance& disturbance) {
  check(program, disturbance);
  std::mt19937_64 random(disturbance.seed);
  for (std::size_t d = 0; d < durations.size(); ++d)
    for (std::size_t i = 0; i < durations[d].size(); ++i) {
      if (program.devices[d].instructions[i].opcode != Opcode::run) continue;
      // 53 bits: the same on every machine, unlike the library's distributions.
      const double even = static_cast<double>(random() >> 11) * 0x1p-53;
      durations[d][i] *= 1 + disturbance.jitter * (2 * even - 1);
      if (!disturbance.slowdown.empty()) durations[d][i] *= disturbance.slowdown[d];
    }
}

}  // namespace penstock
