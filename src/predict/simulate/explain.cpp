// SPDX-License-Identifier: Apache-2.0
#include "simulate/explain.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "base/text.h"

namespace penstock {
namespace {

const Activity* cause_of(const Timeline& timeline, const Activity& activity) {
  return activity.cause < 0 ? nullptr : &timeline.activities[activity.cause];
}

bool computes(const Activity& activity) {
  return activity.lane == Lane::compute && activity.end > activity.begin;
}

// Each device's computing, in time.
std::vector<std::vector<const Activity*>> computing(const Timeline& timeline) {
  std::vector<std::vector<const Activity*>> rows(timeline.devices.size());
  for (const Activity& activity : timeline.activities) {
    if (computes(activity)) rows[activity.device].push_back(&activity);
  }
  for (auto& row : rows) {
    std::stable_sort(row.begin(), row.end(), [](const Activity* a, const Activity* b) { return a->begin < b->begin; });
  }
  return rows;
}

// Calls part(activity, begin, end) for the parts of [from, activity.begin] that the chain of its causes fills, latest first. A cause fills
// it from its own begin to what it let begin. Returns where the chain ends: `from`, or later where a cause is not known.
template <class Part>
double follow_causes(const Timeline& timeline, const Activity& activity, double from, Part&& part) {
  double until = activity.begin;
  std::size_t left = timeline.activities.size();  // a file's causes may go in circles
  for (const Activity* cause = cause_of(timeline, activity); cause && until > from && left > 0;
       cause = cause_of(timeline, *cause), --left) {
    const double begin = std::max(std::min(cause->begin, until), from), end = std::max(std::min(cause->end, until), from);
    part(*cause, begin, end, until);
    until = begin;
  }
  return until;
}

using IdlePart = double Idle::*;

IdlePart part_of(Lane lane) {
  return lane == Lane::compute ? &Idle::dependency : lane == Lane::transfer ? &Idle::communication : &Idle::host;
}

// The part of [from, to] in which a transfer to the device is on its way.
double transferring(const std::vector<const Activity*>& transfers, double from, double to) {
  double covered = 0, until = from;
  for (const Activity* transfer : transfers) {  // in time
    const double begin = std::max(transfer->begin, until), end = std::min(transfer->end, to);
    if (transfer->begin >= to) break;
    if (end <= begin) continue;
    covered += end - begin;
    until = end;
  }
  return covered;
}

// Adds to `idle` what the device waited for from `from` until `next` began. `incoming`: the transfers to it.
void add_wait(const Timeline& timeline, const Activity& next, double from, const std::vector<const Activity*>& incoming, Idle& idle) {
  const double known = follow_causes(timeline, next, from, [&](const Activity& cause, double begin, double end, double until) {
    idle.*part_of(cause.lane) += end - begin;
    idle.dependency += until - end;
  });
  if (known == from) return;
  const double on_its_way = transferring(incoming, from, known);
  idle.communication += on_its_way;
  idle.dependency += std::max(known - from - on_its_way, 0.0);
}

std::string percent(double part, double whole) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.1f %%", whole > 0 ? 100 * part / whole : 0);
  return buffer;
}

}  // namespace

CriticalPath critical_path(const Timeline& timeline) {
  CriticalPath path;
  path.compute_on.assign(timeline.devices.size(), 0);
  const auto last = std::max_element(timeline.activities.begin(), timeline.activities.end(),
                                     [](const Activity& a, const Activity& b) { return a.end < b.end; });
  if (last == timeline.activities.end()) return path;
  const auto add = [&](const Activity& activity, double begin, double end, double until) {
    path.activities.push_back(&activity - timeline.activities.data());
    path.waiting += until - end;
    const double time = end - begin;
    (activity.lane == Lane::compute ? path.compute : activity.lane == Lane::transfer ? path.transfer : path.host) += time;
    if (activity.lane == Lane::compute) path.compute_on[activity.device] += time;
  };
  add(*last, last->begin, last->end, timeline.makespan);
  path.waiting += follow_causes(timeline, *last, 0, add);
  std::reverse(path.activities.begin(), path.activities.end());
  return path;
}

std::vector<double> compute_times(const Timeline& timeline) {
  std::vector<double> times(timeline.devices.size(), 0);
  for (const Activity& activity : timeline.activities) {
    if (activity.lane == Lane::compute) times[activity.device] += activity.end - activity.begin;
  }
  return times;
}

std::vector<Idle> idle_times(const Timeline& timeline) {
  std::vector<std::vector<const Activity*>> incoming(timeline.devices.size());
  for (const Activity& activity : timeline.activities) {
    if (activity.lane == Lane::transfer) incoming[activity.peer].push_back(&activity);
  }
  std::vector<Idle> out;
  for (const auto& row : computing(timeline)) {
    Idle& idle = out.emplace_back();
    if (row.empty()) {
      idle.warm_up = timeline.makespan;
      continue;
    }
    idle.warm_up = row.front()->begin;
    double from = row.front()->end;
    for (std::size_t i = 1; i < row.size(); ++i) {
      const Activity& next = *row[i];
      if (next.begin > from) add_wait(timeline, next, from, incoming[next.device], idle);
      from = std::max(from, next.end);
    }
    idle.drain = std::max(timeline.makespan - from, 0.0);
  }
  return out;
}

Explanation explain(const Timeline& timeline, double dependencies, const std::vector<Variant>& variants) {
  Explanation out;
  out.makespan = timeline.makespan;
  out.path = critical_path(timeline);
  out.idle = idle_times(timeline);
  for (const Idle& idle : out.idle) {
    for (const IdlePart part : {&Idle::warm_up, &Idle::drain, &Idle::dependency, &Idle::communication, &Idle::host})
      out.all.*part += idle.*part;
  }
  const std::vector<double> busy = compute_times(timeline);
  const double total = static_cast<double>(busy.size()) * timeline.makespan;
  if (total > 0) out.bubble = 1 - std::accumulate(busy.begin(), busy.end(), 0.0) / total;
  const auto busiest = std::max_element(busy.begin(), busy.end());
  if (busiest != busy.end()) {
    out.busiest = *busiest;
    out.device = static_cast<std::int32_t>(busiest - busy.begin());
  }
  out.dependencies = dependencies;
  for (const Variant& variant : variants) {
    const double makespan = variant.makespan();
    out.gains.push_back({variant.change, makespan, timeline.makespan > 0 ? 1 - makespan / timeline.makespan : 0});
  }
  std::stable_sort(out.gains.begin(), out.gains.end(), [](const Gain& a, const Gain& b) { return a.saved > b.saved; });
  return out;
}

namespace {

// "a, b and c" of those that are not nothing.
std::string listed(const std::vector<std::pair<double, std::string>>& parts) {
  std::vector<std::string> shown;
  for (const auto& [time, text] : parts)
    if (time > 0) shown.push_back(text);
  if (shown.size() < 2) return join(shown, "");
  const std::string last = shown.back();
  shown.pop_back();
  return concat(join(shown, ", "), " and ", last);
}

std::string path_text(const Timeline& timeline, const Explanation& e) {
  const auto part = [&](double time, const char* what) {
    return std::pair(time, concat(time_text(time, timeline.seconds), " (", percent(time, e.makespan), ") ", what));
  };
  const std::string out = concat("Its critical path is ", listed({part(e.path.compute, "computing"), part(e.path.transfer, "transfers"),
                                                                  part(e.path.host, "starting transfers or handling data"),
                                                                  part(e.path.waiting, "waiting for what is not known")}));
  const auto most = std::max_element(e.path.compute_on.begin(), e.path.compute_on.end());
  if (most == e.path.compute_on.end() || *most == 0) return out + ".";
  return concat(out, "; most of its computing is on ", timeline.devices[most - e.path.compute_on.begin()], ": ",
                time_text(*most, timeline.seconds), ".");
}

std::string idle_text(const Timeline& timeline, const Explanation& e) {
  const double total = e.all.total();
  if (total <= 0) return "No device is ever idle.";
  const auto part = [&](double time, const char* what) { return std::pair(time, concat(percent(time, total), " ", what)); };
  const std::string out =
      concat("The devices' idle time: ",
             listed({part(e.all.warm_up, "before their first work"), part(e.all.drain, "after their last"),
                     part(e.all.dependency, "waiting for others' work"), part(e.all.communication, "waiting for transfers"),
                     part(e.all.host, "starting transfers or handling data")}));
  const auto [least, most] =
      std::minmax_element(e.idle.begin(), e.idle.end(), [](const Idle& x, const Idle& y) { return x.total() < y.total(); });
  const std::string longest = time_text(most->total(), timeline.seconds);
  if (longest == time_text(least->total(), timeline.seconds)) return concat(out, "; each device is idle for ", longest, ".");
  return concat(out, "; ", timeline.devices[most - e.idle.begin()], " is idle longest: ", longest, ".");
}

std::string bound_text(const Timeline& timeline, const Explanation& e) {
  std::string out =
      concat("With this work on each device no order takes less than ", time_text(std::max(e.busiest, e.dependencies), timeline.seconds),
             ": ", "the busiest device, ", timeline.devices[e.device], ", has work for ", time_text(e.busiest, timeline.seconds));
  if (e.dependencies > 0) out += concat(", and the longest chain of needs takes ", time_text(e.dependencies, timeline.seconds));
  return out + ".";
}

std::string gain_text(const Timeline& timeline, const Explanation& e) {
  constexpr double kWorthSaying = 0.0005;
  constexpr std::size_t kShown = 4;
  if (e.gains.front().saved < kWorthSaying) {
    return concat("Nothing that was tried makes it shorter: ", join(e.gains, ", ", [](const Gain& gain) { return gain.change; }), ".");
  }
  const auto text = [&](const Gain& gain) {
    return concat(gain.change, ", ", time_text(gain.makespan, timeline.seconds), " (", percent(gain.saved, 1), " less)");
  };
  std::string out = concat("What would help most: with ", text(e.gains.front()));
  for (std::size_t i = 1; i < std::min(e.gains.size(), kShown) && e.gains[i].saved >= kWorthSaying; ++i)
    out += concat("; with ", text(e.gains[i]));
  return out + ".";
}

}  // namespace

std::string explain_text(const Timeline& timeline, const Explanation& explanation) {
  if (timeline.devices.empty()) return {};
  std::string out = concat("The step takes ", time_text(explanation.makespan, timeline.seconds), "; devices compute ",
                           percent(1 - explanation.bubble, 1), " of the time (bubble ", percent(explanation.bubble, 1), ").\n");
  out += path_text(timeline, explanation) + "\n" + idle_text(timeline, explanation) + "\n" + bound_text(timeline, explanation) + "\n";
  if (!explanation.gains.empty()) out += gain_text(timeline, explanation) + "\n";
  return out;
}

}  // namespace penstock
