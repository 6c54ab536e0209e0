#include <algorithm>

#include "base/text.h"
#include "penstock/error.h"
#include "schedule/generators.h"
#include "schedule/kinds.h"

namespace penstock {
namespace {

struct Entry {
  ScheduleInfo info;
  Schedule (*make)(const ScheduleOptions&);
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = {
      {{"sequential", "one micro-batch after the other: the reference", true}, sequential},
      {{"gpipe", "all forwards, then all backwards; with chunks breadth-first", true}, gpipe},
      {{"1f1b", "one forward, one backward: GPipe's time at the memory of p-i micro-batches", false}, one_forward_one_backward},
      {{"eager-1f1b", "1f1b with warm-up 2(p-i)-1, which hides the latency of transfers", false}, eager_one_forward_one_backward},
      {{"interleaved-1f1b", "several chunks per actor: the bubble divided by chunks, more transfers", true},
       interleaved_one_forward_one_backward},
      {{"zb-h1", "backward split in two, weight gradients fill the drain: a third of 1f1b's bubble", false}, zero_bubble_h1},
  };
  return all;
}

std::vector<std::string> names(bool only_chunked) {
  std::vector<std::string> out;
  for (const Entry& entry : entries()) {
    if (entry.info.chunked || !only_chunked) out.push_back(entry.info.name);
  }
  return out;
}

void check(const ScheduleInfo& info, const ScheduleOptions& options) {
  const auto at_least_one = [&](std::string_view what, int value) {
    if (value < 1) throw Error(concat(info.name, ": ", what, " must be at least 1, not ", value));
  };
  at_least_one("actors", options.actors);
  at_least_one("micro-batches", options.microbatches);
  at_least_one("chunks", options.chunks);
  if (options.chunks > 1 && !info.chunked) {
    throw Error(concat(info.name, " takes one stage per actor, not ", options.chunks, " chunks"), {},
                "schedules that take chunks: " + join(names(true), ", "));
  }
  if (1.0 * options.actors * options.chunks * options.microbatches > kMostForwards) {
    throw Error(concat(info.name, ": a table of ", options.actors, " actors x ", options.chunks, " chunks x ", options.microbatches,
                       " micro-batches is too large"),
                {concat("the product may be up to ", kMostForwards)});
  }
}

}  // namespace

Schedule make_schedule(std::string_view name, const ScheduleOptions& options) {
  const auto found = std::find_if(entries().begin(), entries().end(), [&](const Entry& entry) { return entry.info.name == name; });
  if (found == entries().end()) {
    const std::string near = nearest(name, names(false));
    throw Error(concat("there is no schedule ", quote(name)), {"schedules: " + join(names(false), ", ")},
                near.empty() ? "a table of your own is named by its file, ending in .csv" : concat("did you mean ", near, "?"));
  }
  check(found->info, options);
  Schedule schedule = found->make(options);
  schedule.name = found->info.name;
  if (options.forward_only) {
    for (auto& row : schedule.actors) std::erase_if(row, [](const Action& action) { return action.kind != Kind::F; });
  }
  return schedule;
}

const std::vector<ScheduleInfo>& schedules() {
  static const std::vector<ScheduleInfo> all = [] {
    std::vector<ScheduleInfo> out;
    for (const Entry& entry : entries()) out.push_back(entry.info);
    return out;
  }();
  return all;
}

}  // namespace penstock
