// SPDX-License-Identifier: Apache-2.0
#include "profile/unsteady.h"

#include <algorithm>

#include "base/text.h"
#include "base/words.h"
#include "report/table.h"

namespace penstock {
namespace {

double spread_of(const Sample& sample) {
  return sample.median > 0 ? sample.spread / sample.median : 0;
}

}  // namespace

std::vector<UnsteadyTime> unsteady_times(const Costs& costs) {
  std::vector<UnsteadyTime> out;
  const auto add = [&](const TaskCost& task, const std::string& where, const Sample& sample) {
    if (spread_of(sample) > kMostSpread) out.push_back({task.name, where, sample});
  };
  for (const TaskCost& task : costs.tasks) {
    if (task.alone) add(task, "alone", *task.alone);
    if (task.busy) add(task, "busy", *task.busy);
    for (const auto& [backend, sample] : task.beside) add(task, backend, sample);
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return spread_of(a.sample) > spread_of(b.sample); });
  return out;
}

std::string unsteady_text(const std::vector<UnsteadyTime>& times) {
  if (times.empty()) return "";
  const auto& [task, where, sample] = times.front();
  return concat(
      "warning: ", counted(static_cast<std::int64_t>(times.size()), "measured time"), " spread by more than ", fixed(100 * kMostSpread, 0),
      " %, most of them ", task, " (", where, "): ", fixed(1e3 * sample.median, 3), " ms +- ", fixed(100 * spread_of(sample), 0),
      " %; predictions made of them are unsure\n  hint: measure again while nothing else runs on this machine, or with more --rounds\n");
}

}  // namespace penstock
