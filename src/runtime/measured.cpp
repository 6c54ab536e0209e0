#include "runtime/measured.h"

#include <algorithm>
#include <cmath>

#include "base/invariant.h"
#include "program/checks.h"

namespace penstock {
namespace {

double seconds(std::int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

Durations filled(const Program& program, double value) {
  Durations out;
  for (const DeviceProgram& device : program.devices) out.emplace_back(device.instructions.size(), value);
  return out;
}

// Since the first device's begin; NaN: no such span.
Durations ends(const Program& program, const StepResult& result, const std::vector<double>& begin, bool waited) {
  Durations out = filled(program, std::nan(""));
  for (std::size_t d = 0; d < result.devices.size(); ++d)
    for (const Span& span : result.devices[d].spans)
      if (span.waited == waited) out[d][span.instruction] = begin[d] + seconds(span.end);
  return out;
}

// How long after both ends (all members) had been started a device that waited saw the transfer (collective) done; of a host copy after it
// had been started itself.
// Negative where the second end's thread lost its core to the device that it had woken.
Durations find_arrivals(const Program& program, const StepResult& result, const std::vector<double>& begin) {
  Durations started = ends(program, result, begin, false);
  Durations out = ends(program, result, begin, true);
  const checks::Transfers transfers = checks::match_transfers(program);
  for (const checks::Transfer& transfer : transfers.all) {
    const auto from = static_cast<std::size_t>(transfer.from), to = static_cast<std::size_t>(transfer.to);
    const auto send = static_cast<std::size_t>(transfer.sender), recv = static_cast<std::size_t>(transfer.receiver);
    const double ready = std::max(started[from][send], started[to][recv]);
    out[from][send] -= ready;
    out[to][recv] -= ready;
  }
  for (const checks::Collective& collective : transfers.collectives) {
    const std::vector<std::int32_t>& members = program.groups[static_cast<std::size_t>(collective.group)];
    const auto at = [&](Durations& times, std::size_t m) -> double& {
      return times[static_cast<std::size_t>(members[m])][static_cast<std::size_t>(collective.instructions[m])];
    };
    double ready = 0;
    for (std::size_t m = 0; m < members.size(); ++m) ready = std::max(ready, at(started, m));
    for (std::size_t m = 0; m < members.size(); ++m) at(out, m) -= ready;
  }
  for (std::size_t d = 0; d < out.size(); ++d)
    for (std::size_t i = 0; i < out[d].size(); ++i)
      if (is_host_copy(program.devices[d].instructions[i].opcode)) out[d][i] -= started[d][i];
  return out;
}

}  // namespace

Recording recording_of(const Program& program, const StepResult& result) {
  invariant(result.devices.size() == program.devices.size(), "a step has a report from each device");
  Recording recording;
  std::int64_t first = result.devices.front().begin, last = first;
  for (const DeviceReport& report : result.devices) {
    first = std::min(first, report.begin);
    last = std::max(last, report.end);
  }
  recording.seconds = seconds(last - first);
  recording.durations = filled(program, 0);
  for (std::size_t d = 0; d < result.devices.size(); ++d) {
    recording.begin.push_back(seconds(result.devices[d].begin - first));
    for (const Span& span : result.devices[d].spans)
      if (!span.waited) recording.durations[d][span.instruction] = seconds(span.end - span.begin);
  }
  recording.arrivals = find_arrivals(program, result, recording.begin);
  return recording;
}

Timeline timeline_of(const Program& program, const StepResult& result, const std::string& title) {
  const Recording recording = recording_of(program, result);
  Timeline timeline = recording.replay(program, true).timeline;
  timeline.title = title;
  timeline.makespan = recording.seconds;
  const Durations done = ends(program, result, recording.begin, false);
  for (Activity& activity : timeline.activities) {
    if (activity.lane == Lane::transfer) continue;
    const auto device = static_cast<std::size_t>(activity.device), item = static_cast<std::size_t>(activity.item);
    activity.end = done[device][item];
    activity.begin = activity.end - recording.durations[device][item];
  }
  return timeline;
}

Simulation Recording::replay(const Program& program, bool record) const {
  return simulate(program, durations, {}, {.record = record, .begin = begin, .arrivals = &arrivals});
}

}  // namespace penstock
