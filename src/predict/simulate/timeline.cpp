// SPDX-License-Identifier: Apache-2.0
#include "penstock/timeline.h"

#include <numeric>

#include "base/text.h"

namespace penstock {

std::string_view name(MemoryClass memory) {
  constexpr std::array<std::string_view, kMemoryClasses> kNames = {"parameters",  "optimiser",     "gradients",
                                                                   "activations", "communication", "scratch"};
  return kNames[static_cast<std::size_t>(memory)];
}

std::string_view words(Kind kind) {
  switch (kind) {
    case Kind::F:
      return "forward";
    case Kind::B:
      return "backward";
    case Kind::I:
      return "input gradients";
    case Kind::W:
      return "weight gradients";
    case Kind::R:
      return "recomputation";
    case Kind::U:
      return "update";
    case Kind::UNSHARD:
      return "gathering parameters";
    case Kind::RESHARD:
      return "dropping gathered parameters";
    case Kind::REDUCE_GRAD:
      return "summing gradients";
    case Kind::OFFLOAD:
      return "moving to host memory";
    case Kind::RELOAD:
      return "moving back from host memory";
    case Kind::SEND_F:
      return "sending activations";
    case Kind::RECV_F:
      return "receiving activations";
    case Kind::SEND_B:
      return "sending gradients";
    case Kind::RECV_B:
      return "receiving gradients";
  }
  return {};
}

double MemoryPoint::total() const {
  return std::accumulate(amount.begin(), amount.end(), 0.0);
}

std::string label(const Timeline& timeline, const Activity& activity) {
  if (activity.lane == Lane::transfer && activity.peer != activity.device) return concat(activity.device, "->", activity.peer);
  if (activity.action) return activity.microbatch < 0 ? std::string(name(activity.kind)) : concat(name(activity.kind), activity.microbatch);
  if (activity.task >= 0) return timeline.tasks[activity.task];
  return "host";
}

std::string detail(const Timeline& timeline, const Activity& activity) {
  std::string out;
  if (activity.action) {
    out = words(activity.kind);
    const StagePart part = part_of(activity.stage, timeline.slices, timeline.blocks);
    if (activity.stage >= 0) out += concat(" of stage ", part.stage);
    if (activity.stage >= 0 && timeline.slices > 1 && activity.microbatch >= 0) out += concat(", slice ", part.slice);
    if (part.block >= 0) out += concat(", block ", part.block);
    if (activity.microbatch >= 0) out += concat(", micro-batch ", activity.microbatch);
  }
  if (activity.lane == Lane::transfer && activity.peer != activity.device) {
    const auto name = [&](std::int32_t device) { return timeline.devices[device]; };
    out = concat("transfer from ", name(activity.device), " to ", name(activity.peer), out.empty() ? "" : " after ", out);
  } else if (activity.frozen && activity.task >= 0) {
    out = concat("frozen layer ", timeline.tasks[activity.task]);
  } else if (activity.lane != Lane::compute || out.empty()) {
    out = concat(activity.task >= 0 ? timeline.tasks[activity.task] : "host", out.empty() ? "" : " for ", out);
  }
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
