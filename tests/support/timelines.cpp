// SPDX-License-Identifier: Apache-2.0
#include "support/timelines.h"

#include <algorithm>

namespace penstock::test {
namespace {

constexpr double kMillisecond = 1e-3;

Activity action(int device, Kind kind, int microbatch, double begin, double end, std::int64_t cause) {
  Activity out;
  out.begin = begin * kMillisecond;
  out.end = end * kMillisecond;
  out.device = device;
  out.action = true;
  out.kind = kind;
  out.stage = device;
  out.microbatch = microbatch;
  out.task = kind == Kind::F ? 0 : kind == Kind::I ? 1 : 2;
  out.cause = cause;
  return out;
}

Activity transfer(int from, int to, int microbatch, double begin, double end, std::int64_t cause) {
  Activity out = action(from, Kind::F, microbatch, begin, end, cause);
  out.lane = Lane::transfer;
  out.action = false;
  out.peer = to;
  out.stage = out.task = -1;
  out.bytes = 4096;
  return out;
}

MemoryPoint memory(double time, double activations) {
  return {time * kMillisecond, {1 << 20, 2 << 20, 1 << 20, activations * (1 << 20), 0, 0}};
}

std::string random_name(std::mt19937_64& random) {
  constexpr const char* kParts[] = {"a", "</script>", "\"", "\\", "\n", "é", "&amp;", "<b>", " ", "\u2028", "'", "1", "\x01"};
  std::string out;
  for (auto parts = random() % 5; parts > 0; --parts) out += kParts[random() % std::size(kParts)];
  return out;
}

double random_time(std::mt19937_64& random) {
  return std::uniform_real_distribution<double>(0, 1)(random) / static_cast<double>(1 + random() % 1000);
}

Activity random_activity(std::mt19937_64& random, const Timeline& timeline, std::int64_t activities) {
  const auto below = [&](std::int64_t count) { return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(count)); };
  const auto maybe = [&](std::int64_t count) { return below(count + 1) - 1; };
  const auto devices = static_cast<std::int64_t>(timeline.devices.size());
  Activity out;
  out.begin = random_time(random);
  out.end = random() % 8 == 0 ? out.begin : out.begin + random_time(random);
  out.device = below(devices);
  out.lane = static_cast<Lane>(random() % 3);
  if (out.lane == Lane::transfer) out.peer = below(devices);
  out.action = random() % 2 == 0;
  if (out.action) out.kind = static_cast<Kind>(random() % (static_cast<std::uint64_t>(Kind::RECV_B) + 1));
  out.stage = maybe(4);
  out.microbatch = maybe(4);
  out.task = maybe(static_cast<std::int64_t>(timeline.tasks.size()));
  out.item = maybe(100);
  out.cause = maybe(activities);
  out.bytes = random() % 2 == 0 ? 0 : static_cast<double>(random() % 100000);
  out.frozen = out.lane == Lane::compute && !out.action && random() % 2 == 0;
  return out;
}

}  // namespace

Timeline small_timeline() {
  Timeline out;
  out.title = "a <small> step";
  out.devices = {"device 0", "device 1"};
  out.tasks = {"F0", "I0", "W0", "after.0"};
  Activity host;
  host.begin = 5 * kMillisecond;
  host.end = 5.5 * kMillisecond;
  host.lane = Lane::host;
  host.cause = 1;
  Activity update;
  update.begin = 18 * kMillisecond;
  update.end = 20 * kMillisecond;
  update.task = 3;
  update.cause = 9;
  out.activities = {
      action(0, Kind::F, 0, 0, 2.5, -1), action(0, Kind::F, 1, 2.5, 5, 0),
      transfer(0, 1, 0, 2.5, 3, 0),      host,
      transfer(0, 1, 1, 5.5, 6, 3),      action(1, Kind::F, 0, 3, 6, 2),
      action(1, Kind::I, 0, 6, 9, 5),    transfer(1, 0, 0, 9, 9.5, 6),
      action(0, Kind::I, 0, 9.5, 13, 7), action(0, Kind::W, 0, 13, 18, 8),
      action(1, Kind::F, 1, 9, 12, 6),   action(1, Kind::I, 1, 12, 15, 10),
      action(1, Kind::W, 1, 15, 18, 11), update,
  };
  out.memory = {{memory(0, 1), memory(2.5, 2), memory(13, 1), memory(18, 0)}, {memory(0, 0), memory(3, 1), memory(9, 3), memory(18, 0)}};
  out.makespan = 20 * kMillisecond;
  return out;
}

Timeline random_timeline(std::mt19937_64& random) {
  Timeline out;
  out.title = random_name(random);
  out.seconds = random() % 2 == 0;
  for (auto devices = 1 + random() % 4; devices > 0; --devices) out.devices.push_back(random_name(random));
  for (auto tasks = random() % 4; tasks > 0; --tasks) out.tasks.push_back(random_name(random));
  out.slices = static_cast<std::int32_t>(1 + random() % 3);
  for (std::int32_t stage = 0; stage < 4; ++stage)
    for (std::int32_t slice = 1; slice < out.slices; ++slice)
      if (random() % 4 == 0) out.blocks.push_back({stage, slice, static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(slice))});
  const auto activities = static_cast<std::int64_t>(random() % 40);
  for (std::int64_t i = 0; i < activities; ++i) out.activities.push_back(random_activity(random, out, activities));
  out.makespan = random_time(random);
  if (random() % 2 == 0) return out;
  for (std::size_t device = 0; device < out.devices.size(); ++device) {
    std::vector<MemoryPoint>& points = out.memory.emplace_back(random() % 10);
    for (MemoryPoint& point : points) {
      point.time = random_time(random);
      for (double& amount : point.amount) amount = random_time(random) * 1e9;
    }
    std::sort(points.begin(), points.end(), [](const MemoryPoint& a, const MemoryPoint& b) { return a.time < b.time; });
  }
  return out;
}

Timeline dense_timeline(int devices, int boxes) {
  Timeline out;
  out.title = "dense";
  for (int device = 0; device < devices; ++device) {
    out.devices.push_back("device");
    for (int i = 0; i < boxes; ++i) out.activities.push_back(action(device, i % 2 == 0 ? Kind::F : Kind::B, i / 2, i, i + 1, -1));
  }
  for (Activity& activity : out.activities) activity.task = -1;
  out.makespan = boxes * kMillisecond;
  return out;
}

}  // namespace penstock::test
