// SPDX-License-Identifier: Apache-2.0
// Measures what a transfer takes, with two devices that answer each other.
#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "profile/line.h"
#include "profile/profile.h"
#include "program/backends.h"
#include "program/memory_plan.h"

namespace penstock {
namespace {

constexpr int kRoundTrips = 8;  // per step
constexpr std::int64_t kSmall = 64, kLeastUsual = std::int64_t{64} << 10;

constexpr std::string_view kTasks = R"(penstock program 1
program @round_trips {microbatches=1}
task @make {scratch=0}
graph @make() -> (PAYLOAD, MATRIX) {
  %0: PAYLOAD = full() {dtype=f32, fill_value=1.0, size=[WORDS]}
  %1: MATRIX = full() {dtype=f32, fill_value=0.0, size=[256,256]}
  return %0, %1
}
task @work {scratch=0}
graph @work(%a: MATRIX) -> (MATRIX) {
  %0: MATRIX = mm(%a, %a)
  return %0
}
task @read {scratch=0}
graph @read(%y: PAYLOAD, %a: MATRIX) -> (PAYLOAD, MATRIX) {
  %0: PAYLOAD = mul(%y) {other=1.0}
  %1: MATRIX = mm(%a, %a)
  return %0, %1
}
)";

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) text.replace(at, from.size(), to);
  return text;
}

// Device 0 computes for a while (its peer falls asleep), sends, and reads the answer; device 1 reads, computes for a while, and answers. A
// message was just written before it is sent and is read after it was received, so that it moves from one core's cache to the other's.
std::string device_text(int device) {
  const int peer = 1 - device;
  std::string slots = "  slot %x0 step (PAYLOAD)\n  slot %a step (MATRIX)\n  slot %c step (MATRIX)\n  slot %copy step (PAYLOAD)\n";
  std::string body = "  run @make() -> (store %x0, store %a)\n  run @work(%a) -> (store %c)\n  copy %x0 -> store %copy\n  free %copy\n";
  for (int k = 0; k < kRoundTrips; ++k) {
    slots += concat("  slot %x", k + 1, " step (PAYLOAD)\n  slot %y", k, " step (PAYLOAD)\n  slot %b", k, " step (MATRIX)\n");
    const std::string read = concat("  run @read(%y", k, ", %a) -> (store %x", k + 1, ", store %b", k, ")\n");
    const std::string send = concat("  send %x", k + device, " to ", peer, " #", k, "\n");
    body += concat("  recv %y", k, " from ", peer, " #", k, "\n");
    body += device == 0 ? "  run @work(%a) -> (update %c)\n" + send + read : read + send;
    body += concat("  free %y", k, "\n  free %b", k, "\n  free %x", k, "\n");
  }
  return concat("device ", device, " {state_bytes=0, step_bytes=0, scratch_bytes=0}\n", slots, body, "  free %x", kRoundTrips,
                "\n  free %a\n  free %c\n");
}

Program round_trips(std::int64_t bytes) {
  const std::string words = std::to_string(bytes / 4);
  std::string text = concat(kTasks, device_text(0), device_text(1));
  text = replaced(replaced(text, "PAYLOAD", "f32[WORDS]"), "MATRIX", "f32[256,256]");
  Program program = parse_program(replaced(text, "WORDS", words), "round_trips");
  plan_memory(program);
  return program;
}

// The measured seconds of the round trips of one size.
struct Times {
  double bytes = 0;
  std::vector<double> send, receive;  // of starting each
  std::vector<double> transit;        // from the begin of the send until the receiver goes on
  std::vector<double> copy;
};

// The lower quartile: disturbances (the scheduler gives the sender's core to the woken receiver) only add.
double undisturbed(std::vector<double> values) {
  const auto quarter = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 4);
  std::nth_element(values.begin(), quarter, values.end());
  return *quarter;
}

// The spans of one device's instructions with one opcode, in order.
std::vector<Span> spans_of(const Program& program, const DeviceReport& report, Opcode opcode, std::string_view task = {}) {
  std::vector<Span> out;
  for (const Span& span : report.spans) {
    if (span.waited) continue;
    const Instruction& i = program.devices[span.device].instructions[span.instruction];
    if (i.opcode == opcode && (task.empty() || program.tasks[i.task].name == task)) out.push_back(span);
  }
  return out;
}

void observe(const Program& program, const StepResult& result, Times& times) {
  const auto spans = [&](std::size_t device, Opcode opcode, std::string_view task = {}) {
    return spans_of(program, result.devices[device], opcode, task);
  };
  const auto add = [](std::vector<double>& to, const std::vector<Span>& from) {
    for (const Span& span : from) to.push_back(1e-9 * static_cast<double>(span.end - span.begin));
  };
  for (std::size_t device : {0, 1}) {
    add(times.send, spans(device, Opcode::send));
    add(times.receive, spans(device, Opcode::recv));
    add(times.copy, spans(device, Opcode::copy));
  }
  // The devices' clocks begin at different times, so each difference is taken on one clock.
  const auto question = spans(0, Opcode::send), answered = spans(0, Opcode::run, "read");
  const auto heard = spans(1, Opcode::run, "read"), answer = spans(1, Opcode::send);
  for (std::size_t k = 0; k < question.size(); ++k) {
    const std::int64_t there_and_back = (answered[k].begin - question[k].begin) - (answer[k].begin - heard[k].begin);
    times.transit.push_back(0.5e-9 * static_cast<double>(there_and_back));
  }
}

Times measure_size(Cluster& cluster, std::int64_t bytes, int rounds) {
  const Program program = round_trips(bytes);
  const std::uint64_t key = cluster.load(program);
  Times times;
  times.bytes = static_cast<double>(bytes);
  cluster.step(key, {});
  for (int round = 0; round < rounds; ++round) observe(program, cluster.step(key, {}, /*record_spans=*/true), times);
  return times;
}

Line fit(const std::vector<Times>& all, std::vector<double> Times::* which) {
  std::vector<MeasuredTime> points;
  for (const Times& times : all) points.push_back({times.bytes, undisturbed(times.*which)});
  return fit(points);
}

}  // namespace

void measure_link(Cluster& cluster, const ProfileOptions& options, std::int64_t bytes, Costs& costs) {
  const std::int64_t usual = std::max(kLeastUsual, bytes / kAlignment * kAlignment);
  std::vector<Times> all;
  for (std::int64_t size : {kSmall, usual / 4, usual, 4 * usual}) all.push_back(measure_size(cluster, size, options.rounds));
  const Times& common = all[2];
  const double copy = undisturbed(common.copy);
  if (copy > 0) costs.copy_bandwidth = common.bytes / copy;

  const Line transit = fit(all, &Times::transit), sending = fit(all, &Times::send);
  const double send = undisturbed(common.send), receive = undisturbed(common.receive);
  Link link;
  link.second_end_copies = !find_backend(options.backend).processes && !options.by_itself;
  if (options.by_itself) {
    link.latency = transit.fixed;
    link.bandwidth = bandwidth_of(transit);
  } else if (link.second_end_copies) {
    // The receive is always posted first, so it is the send that copies and wakes the other end.
    link.start_seconds = std::min(receive, sending.fixed);
    link.wake_seconds = sending.fixed - link.start_seconds;
    link.latency = std::max(0.0, transit.fixed - sending.fixed);
    link.bandwidth = bandwidth_of(sending);
  } else {
    link.start_seconds = (send + receive) / 2;
    link.latency = std::max(0.0, transit.fixed - send);
    link.bandwidth = bandwidth_of(transit);
  }
  costs.links[options.backend] = link;
}

}  // namespace penstock
