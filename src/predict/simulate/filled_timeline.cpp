// SPDX-License-Identifier: Apache-2.0
#include "simulate/filled_timeline.h"

#include <cmath>
#include <map>
#include <numeric>

#include "base/text.h"
#include "penstock/error.h"
#include "simulate/sort_activities.h"

namespace penstock {
namespace {

// Adds activities to a timeline, later than they stand in what they come from.
class Adding {
 public:
  Adding(Timeline& out, int parts) : out_(out), parts_(parts) {
    for (std::size_t task = 0; task < out.tasks.size(); ++task) tasks_[out.tasks[task]] = static_cast<std::int32_t>(task);
  }

  void add(const std::vector<FrozenPiece>& pieces, double later) {
    for (const FrozenPiece& piece : pieces) {
      const std::string name = name_of(piece, parts_);
      const auto [task, is_new] = tasks_.try_emplace(name, static_cast<std::int32_t>(out_.tasks.size()));
      if (is_new) out_.tasks.push_back(name);
      for (const std::int32_t device : piece.devices)
        out_.activities.push_back(
            {.begin = piece.begin + later, .end = piece.end + later, .device = device, .task = task->second, .frozen = true});
    }
  }

  void add(const Timeline& step, double later, std::int32_t microbatches_before) {
    const auto before = static_cast<std::int64_t>(out_.activities.size());
    for (Activity activity : step.activities) {
      activity.begin += later;
      activity.end += later;
      if (activity.microbatch >= 0) activity.microbatch += microbatches_before;
      if (activity.cause >= 0) activity.cause += before;
      out_.activities.push_back(activity);
    }
    for (std::size_t device = 0; device < step.memory.size(); ++device)
      for (MemoryPoint point : step.memory[device]) {
        point.time += later;
        out_.memory[device].push_back(point);
      }
  }

 private:
  Timeline& out_;
  const int parts_;
  std::map<std::string, std::int32_t> tasks_;
};

// All layers on all devices, one behind the other.
std::vector<FrozenPiece> ahead_of_all(const std::vector<FrozenChain>& chains, std::size_t devices) {
  std::vector<FrozenPiece> out;
  std::vector<std::int32_t> everyone(devices);
  std::iota(everyone.begin(), everyone.end(), 0);
  double now = 0;
  for (std::size_t chain = 0; chain < chains.size(); ++chain)
    for (std::size_t layer = 0; layer < chains[chain].size(); ++layer) {
      const double end = now + chains[chain][layer] / static_cast<double>(devices);
      out.push_back({static_cast<std::int32_t>(chain), static_cast<std::int32_t>(layer), 1, now, end, everyone});
      now = end;
    }
  return out;
}

std::int32_t microbatches_of(const Timeline& step) {
  std::int32_t last = -1;
  for (const Activity& activity : step.activities) last = std::max(last, activity.microbatch);
  return last + 1;
}

}  // namespace

std::string name_of(const FrozenPiece& piece, int parts) {
  const std::string layer = concat("z", piece.chain, ".", piece.layer);
  return piece.share == 1 ? layer : concat(layer, "*", std::lround(piece.share * parts), "/", parts);
}

Timeline with_frozen(const Timeline& step, const FrozenFill& fill, bool behind) {
  Timeline out = step;
  Adding adding(out, fill.parts);
  adding.add(fill.inside, 0);
  if (behind) adding.add(fill.behind, 0);
  out.makespan = behind ? fill.makespan : step.makespan;
  sort_by_begin(out.activities);
  return out;
}

Timeline filled_steps(const Timeline& step, const std::vector<FrozenChain>& chains, const FrozenFill& fill, int steps) {
  constexpr double kMostActivities = 1 << 24;
  if (steps < 1) throw Error(concat(steps, " steps are no steps"), {}, "at least one");
  if (static_cast<double>(steps) * static_cast<double>(step.activities.size()) > kMostActivities)
    throw Error(concat(steps, " steps of ", step.activities.size(), " activities are too many to draw"), {},
                concat("up to ", kMostActivities, " activities"));
  Timeline out = step;
  out.activities.clear();
  for (auto& memory : out.memory) memory.clear();
  Adding adding(out, fill.parts);
  const std::vector<FrozenPiece> first = ahead_of_all(chains, step.devices.size());
  adding.add(first, 0);
  double now = first.empty() ? 0 : first.back().end;
  const std::int32_t microbatches = microbatches_of(step);
  for (int k = 0; k < steps; ++k) {
    const bool last = k + 1 == steps;
    adding.add(step, now, k * microbatches);
    if (!last) adding.add(fill.inside, now);
    if (!last) adding.add(fill.behind, now);
    now += last ? step.makespan : fill.makespan;
  }
  out.makespan = now;
  sort_by_begin(out.activities);
  return out;
}

}  // namespace penstock
