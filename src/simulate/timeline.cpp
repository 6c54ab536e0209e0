#include "simulate/timeline.h"

#include <numeric>

#include "base/text.h"

namespace penstock {

std::string_view name(MemoryClass memory) {
  constexpr std::array<std::string_view, kMemoryClasses> kNames = {"parameters",  "optimiser",     "gradients",
                                                                   "activations", "communication", "scratch"};
  return kNames[static_cast<std::size_t>(memory)];
}

double MemoryPoint::total() const {
  return std::accumulate(amount.begin(), amount.end(), 0.0);
}

std::string label(const Timeline& timeline, const Activity& activity) {
  if (activity.lane == Lane::transfer && activity.peer != activity.device) return concat(activity.device, "->", activity.peer);
  if (activity.action) return activity.microbatch < 0 ? std::string(name(activity.kind)) : concat(name(activity.kind), activity.microbatch);
  if (activity.task >= 0) return timeline.tasks[static_cast<std::size_t>(activity.task)];
  return "host";
}

std::string detail(const Timeline& timeline, const Activity& activity) {
  std::string out;
  if (activity.lane == Lane::transfer && activity.peer != activity.device)
    out = concat("transfer from ", timeline.devices[static_cast<std::size_t>(activity.device)], " to ",
                 timeline.devices[static_cast<std::size_t>(activity.peer)]);
  else
    out = label(timeline, activity);
  if (activity.stage >= 0) out += concat(" of stage ", activity.stage);
  if (activity.lane != Lane::transfer && activity.action && activity.task >= 0)
    out += concat(" (task ", timeline.tasks[static_cast<std::size_t>(activity.task)], ")");
  if (activity.bytes > 0) out += concat(", ", bytes_text(activity.bytes));
  return out;
}

TimeUnit time_unit(double time, bool seconds) {
  if (!seconds) return {1, ""};
  if (time >= 1 || time == 0) return {1, " s"};
  if (time >= 1e-3) return {1e-3, " ms"};
  if (time >= 1e-6) return {1e-6, " us"};
  return {1e-9, " ns"};
}

std::string time_text(double time, bool seconds) {
  const TimeUnit unit = time_unit(time, seconds);
  return short_decimal(time / unit.size, seconds ? 4 : 6) + unit.suffix;
}

}  // namespace penstock
