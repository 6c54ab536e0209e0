// SPDX-License-Identifier: Apache-2.0
#include "profile/measured.h"

#include <algorithm>
#include <cmath>

#include "base/invariant.h"
#include "program/checks.h"
#include "simulate/recorder.h"

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

// When each instruction (or, if `waited`, the wait for it) ended, in seconds since the first device's begin; NaN: there is no such span.
Durations ends(const Program& program, const StepResult& result, const std::vector<double>& begin, bool waited) {
  Durations out = filled(program, std::nan(""));
  for (std::size_t d = 0; d < result.devices.size(); ++d)
    for (const Span& span : result.devices[d].spans)
      if (span.waited == waited) out[d][span.instruction] = begin[d] + seconds(span.end);
  return out;
}

// Returns how long after both ends (all members) had started it a device that waited saw a transfer (collective) done; for a host copy, how
// long after its own start. Negative where the second end's thread lost its core to the device that it had woken.
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
    const std::vector<std::int32_t>& members = program.groups[collective.group];
    const auto at = [&](Durations& times, std::size_t m) -> double& { return times[members[m]][collective.instructions[m]]; };
    double ready = 0;
    for (std::size_t m = 0; m < members.size(); ++m) ready = std::max(ready, at(started, m));
    for (std::size_t m = 0; m < members.size(); ++m) at(out, m) -= ready;
  }
  for (std::size_t d = 0; d < out.size(); ++d)
    for (std::size_t i = 0; i < out[d].size(); ++i)
      if (is_host_copy(program.devices[d].instructions[i].opcode)) out[d][i] -= started[d][i];
  return out;
}

// Until when each device had to wait for an instruction, in seconds since the first device's begin; NaN: it did not wait. Asking a
// transport for what is already there does not count as waiting.
Durations waits(const Program& program, const StepResult& result, const std::vector<double>& begin) {
  constexpr double kLeast = 20e-6;
  Durations out = filled(program, std::nan(""));
  for (std::size_t d = 0; d < result.devices.size(); ++d)
    for (const Span& span : result.devices[d].spans)
      if (span.waited && seconds(span.end - span.begin) > kLeast) out[d][span.instruction] = begin[d] + seconds(span.end);
  return out;
}

std::vector<double> begins_of(const StepResult& result) {
  std::int64_t first = result.devices.front().begin;
  for (const DeviceReport& report : result.devices) first = std::min(first, report.begin);
  std::vector<double> out;
  for (const DeviceReport& report : result.devices) out.push_back(seconds(report.begin - first));
  return out;
}

}  // namespace

std::vector<CollectiveTime> collective_times(const Program& program, const StepResult& result) {
  const std::vector<double> begin = begins_of(result);
  const Durations started = ends(program, result, begin, false), waited = waits(program, result, begin);
  std::vector<double> free_at(program.groups.size(), 0);
  std::vector<CollectiveTime> out;
  for (const checks::Collective& collective : checks::match_transfers(program).collectives) {
    const std::vector<std::int32_t>& members = program.groups[collective.group];
    double ready = free_at[collective.group], done = std::nan("");
    for (std::size_t m = 0; m < members.size(); ++m) {
      const auto device = static_cast<std::size_t>(members[m]), at = static_cast<std::size_t>(collective.instructions[m]);
      ready = std::max(ready, started[device][at]);
      done = std::fmin(done, waited[device][at]);
    }
    if (!(done > ready)) continue;
    free_at[collective.group] = done;
    const DeviceProgram& any = program.devices[members[0]];
    const Instruction& instruction = any.instructions[collective.instructions[0]];
    out.push_back({instruction.opcode, members.size(), bytes_beside(any, instruction), done - ready});
  }
  return out;
}

Recording recording_of(const Program& program, const StepResult& result) {
  invariant(result.devices.size() == program.devices.size(), "a step has a report from each device");
  Recording recording;
  recording.begin = begins_of(result);
  recording.durations = filled(program, 0);
  for (std::size_t d = 0; d < result.devices.size(); ++d) {
    const DeviceReport& report = result.devices[d];
    recording.seconds = std::max(recording.seconds, recording.begin[d] + seconds(report.end - report.begin));
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
