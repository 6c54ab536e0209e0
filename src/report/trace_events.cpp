#include "report/trace_events.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"
#include "report/timeline_parts.h"

namespace penstock {
namespace {

using nlohmann::ordered_json;

// Whole nanoseconds, so that boxes that touch do not overlap once a viewer has rounded them.
std::int64_t nanoseconds(double time) {
  return std::llround(std::min(time * 1e9, 9e18));
}
double microseconds(std::int64_t ns) {
  return static_cast<double>(ns) / 1e3;
}

struct Writer {
  std::string out = "[";

  void add(const ordered_json& event) {
    if (out.size() > 1) out += ",\n";
    out += event.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  }
};

int process_of(std::int32_t device) {
  return device + 1;  // viewers take process 0 for an idle one
}

// Threads, numbered from 1 over all devices. Boxes of one thread must not overlap.
class Threads {
 public:
  explicit Threads(const Timeline& timeline) : timeline_(timeline), of_(timeline.activities.size()) {
    for (auto [lane, title] : {std::pair{Lane::compute, "compute"}, {Lane::host, "host"}, {Lane::transfer, "transfers"}}) {
      const auto rows = by_device(timeline, lane);
      for (std::size_t device = 0; device < rows.size(); ++device) place(rows[device], title);
    }
  }
  int of(const Activity& activity) const { return of_[static_cast<std::size_t>(&activity - timeline_.activities.data())]; }

  void name_all(Writer& writer) const {
    for (const Thread& thread : threads_) {
      const ordered_json at = {{"ph", "M"}, {"pid", process_of(thread.device)}, {"tid", thread.number}};
      const auto metadata = [&](const char* name, const ordered_json& arguments) {
        ordered_json event = at;
        event["name"] = name;
        event["args"] = arguments;
        writer.add(event);
      };
      metadata("thread_name", {{"name", thread.title}});
      metadata("thread_sort_index", {{"sort_index", thread.number}});
    }
  }

 private:
  struct Thread {
    std::int32_t device = 0;
    int number = 0;
    std::string title;
  };

  // Each activity, by begin, goes to the thread that was first free.
  void place(const std::vector<const Activity*>& activities, const std::string& title) {
    std::multimap<double, int> free;  // from when each thread is
    int threads = 0;
    for (const Activity* activity : activities) {
      int thread = 0;
      if (!free.empty() && free.begin()->first <= activity->begin) {
        thread = free.begin()->second;
        free.erase(free.begin());
      } else {
        thread = static_cast<int>(threads_.size()) + 1;
        ++threads;
        threads_.push_back({activity->device, thread, threads == 1 ? title : concat(title, " ", threads)});
      }
      free.emplace(activity->end, thread);
      of_[static_cast<std::size_t>(activity - timeline_.activities.data())] = thread;
    }
  }

  const Timeline& timeline_;
  std::vector<int> of_;  // by activity
  std::vector<Thread> threads_;
};

ordered_json box(const Timeline& timeline, const Activity& activity, int thread) {
  ordered_json arguments = {{"what", detail(timeline, activity)}};
  if (activity.stage >= 0) arguments["stage"] = activity.stage;
  if (activity.microbatch >= 0) arguments["microbatch"] = activity.microbatch;
  if (activity.task >= 0) arguments["task"] = timeline.tasks[static_cast<std::size_t>(activity.task)];
  if (activity.item >= 0) arguments["item"] = activity.item;
  if (activity.bytes > 0) arguments["bytes"] = activity.bytes;
  const std::int64_t begin = nanoseconds(activity.begin);
  return {{"ph", "X"},
          {"name", label(timeline, activity)},
          {"cat", looks[look_of(activity)].name},
          {"pid", process_of(activity.device)},
          {"tid", thread},
          {"ts", microseconds(begin)},
          {"dur", microseconds(nanoseconds(activity.end) - begin)},
          {"args", arguments}};
}

// Finds what a transfer was made by and what reads it: the last to end before it and the first to begin after it, of its own micro-batch if
// it has one.
class Neighbours {
 public:
  explicit Neighbours(const Timeline& timeline) {
    for (const auto& row : by_device(timeline, Lane::compute)) {
      for (const Activity* activity : row) {
        rows_[{activity->device, -1}].push_back(activity);
        if (activity->microbatch >= 0) rows_[{activity->device, activity->microbatch}].push_back(activity);
      }
    }
  }
  // Null where there is none.
  const Activity* producer(const Activity& transfer) const {
    const Row& row = row_of(transfer.device, transfer.microbatch);
    const auto it = std::partition_point(row.begin(), row.end(), [&](const Activity* a) { return a->end <= transfer.begin; });
    return it == row.begin() ? nullptr : *std::prev(it);
  }
  const Activity* consumer(const Activity& transfer) const {
    const Row& row = row_of(transfer.peer, transfer.microbatch);
    const auto it = std::partition_point(row.begin(), row.end(), [&](const Activity* a) { return a->begin < transfer.end; });
    return it == row.end() ? nullptr : *it;
  }

 private:
  using Row = std::vector<const Activity*>;
  const Row& row_of(std::int32_t device, std::int32_t microbatch) const {
    const auto it = rows_.find({device, microbatch});
    return it == rows_.end() ? none_ : it->second;
  }
  std::map<std::pair<std::int32_t, std::int32_t>, Row> rows_;  // (device, micro-batch; -1: all), by begin
  Row none_;
};

ordered_json arrow_point(const char* phase, std::int64_t id, const Activity& activity, int thread, double time) {
  return {{"ph", phase},
          {"id", id},
          {"name", "transfer"},
          {"cat", "transfer"},
          {"pid", process_of(activity.device)},
          {"tid", thread},
          {"bp", "e"},
          {"ts", microseconds(nanoseconds(time))}};
}

// Points bind to the box that they lie in, so each stands at the begin of its box.
void add_arrows(const Timeline& timeline, const Threads& threads, Writer& writer) {
  const Neighbours neighbours(timeline);
  std::int64_t id = 0;
  for (const Activity& transfer : timeline.activities) {
    if (transfer.lane != Lane::transfer) continue;
    const Activity* producer = neighbours.producer(transfer);
    const Activity* consumer = neighbours.consumer(transfer);
    const auto point = [&](const char* phase, const Activity& at) { writer.add(arrow_point(phase, id, at, threads.of(at), at.begin)); };
    if (producer != nullptr) point("s", *producer);
    point(producer == nullptr ? "s" : consumer == nullptr ? "f" : "t", transfer);
    if (consumer != nullptr) point("f", *consumer);
    ++id;
  }
}

void add_memory(const Timeline& timeline, Writer& writer) {
  for (std::size_t device = 0; device < timeline.memory.size(); ++device) {
    for (const MemoryPoint& point : timeline.memory[device]) {
      ordered_json amounts;
      for (std::size_t i = 0; i < kMemoryClasses; ++i) amounts[std::string(name(static_cast<MemoryClass>(i)))] = point.amount[i];
      writer.add({{"ph", "C"},
                  {"name", "memory"},
                  {"pid", process_of(static_cast<std::int32_t>(device))},
                  {"ts", microseconds(nanoseconds(point.time))},
                  {"args", amounts}});
    }
  }
}

}  // namespace

std::string trace_events(const Timeline& timeline) {
  Writer writer;
  for (std::size_t device = 0; device < timeline.devices.size(); ++device) {
    const int process = process_of(static_cast<std::int32_t>(device));
    writer.add({{"ph", "M"}, {"name", "process_name"}, {"pid", process}, {"args", {{"name", timeline.devices[device]}}}});
    writer.add({{"ph", "M"}, {"name", "process_sort_index"}, {"pid", process}, {"args", {{"sort_index", process}}}});
  }
  const Threads threads(timeline);
  threads.name_all(writer);
  for (const Activity& activity : timeline.activities) writer.add(box(timeline, activity, threads.of(activity)));
  add_arrows(timeline, threads, writer);
  add_memory(timeline, writer);
  return writer.out + "]";
}

}  // namespace penstock
