// SPDX-License-Identifier: Apache-2.0
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

// Time in whole nanoseconds, so that boxes that touch do not overlap once a viewer has rounded them.
std::int64_t nanoseconds(double time) {
  return std::llround(std::min(time * 1e9, 9e18));
}
std::string quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Writes one event to a list, directly as text: a step may have a million events, and as JSON objects they would take seconds. It is whole
// with end(), which is no destructor as it may find no memory.
class Event {
 public:
  Event(std::string& list, std::string_view phase, std::int32_t device) : out_(list) {
    out_ += list.size() > 1 ? ",\n{" : "{";
    write("ph", quoted(phase));
    write("pid", std::to_string(device + 1));  // + 1, as viewers take process 0 for an idle one
  }
  Event(const Event&) = delete;
  void end() { out_ += in_arguments_ ? "}}" : "}"; }

  Event& add(std::string_view key, std::string_view text) { return write(key, quoted(text)); }
  Event& add(std::string_view key, std::int64_t value) { return write(key, std::to_string(value)); }
  Event& amount(std::string_view key, double value) { return write(key, number(value)); }
  Event& time(std::string_view key, std::int64_t ns) { return write(key, number(static_cast<double>(ns) / 1e3)); }  // in microseconds
  // From here on the members are arguments.
  Event& arguments() {
    out_ += ",\"args\":{";
    in_arguments_ = first_ = true;
    return *this;
  }

 private:
  Event& write(std::string_view key, std::string_view value) {
    if (!first_) out_ += ',';
    first_ = false;
    out_ += '"';
    out_ += key;
    out_ += "\":";
    out_ += value;
    return *this;
  }

  std::string& out_;
  bool first_ = true;  // whether the next member is the first in the innermost braces
  bool in_arguments_ = false;
};

// Assigns activities to threads, numbered from 1 over all devices. Boxes of one thread must not overlap.
class Threads {
 public:
  explicit Threads(const Timeline& timeline) : timeline_(timeline), of_(timeline.activities.size()) {
    for (auto [lane, title] : {std::pair{Lane::compute, "compute"}, {Lane::host, "host"}, {Lane::transfer, "transfers"}}) {
      const auto rows = by_device(timeline, lane);
      for (std::size_t device = 0; device < rows.size(); ++device) place(rows[device], title);
    }
  }
  int of(const Activity& activity) const { return of_[&activity - timeline_.activities.data()]; }

  void name_all(std::string& list) const {
    for (const Thread& thread : threads_) {
      Event(list, "M", thread.device).add("tid", thread.number).add("name", "thread_name").arguments().add("name", thread.title).end();
      Event(list, "M", thread.device)
          .add("tid", thread.number)
          .add("name", "thread_sort_index")
          .arguments()
          .add("sort_index", thread.number)
          .end();
    }
  }

 private:
  struct Thread {
    std::int32_t device = 0;
    int number = 0;
    std::string title;
  };

  // Gives each activity, by begin, to the thread that has been free for longest.
  void place(const std::vector<const Activity*>& activities, const std::string& title) {
    std::multimap<double, int> free;  // by the time from which each thread is free
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
      of_[activity - timeline_.activities.data()] = thread;
    }
  }

  const Timeline& timeline_;
  std::vector<int> of_;  // by activity
  std::vector<Thread> threads_;
};

void add_box(const Timeline& timeline, const Activity& activity, int thread, std::string& list) {
  const std::int64_t begin = nanoseconds(activity.begin);
  Event event(list, "X", activity.device);
  event.add("tid", thread).add("name", label(timeline, activity)).add("cat", looks[look_of(activity)].name);
  event.time("ts", begin).time("dur", nanoseconds(activity.end) - begin).arguments();
  const StagePart part = part_of(activity.stage, timeline.slices, timeline.blocks);
  if (activity.stage >= 0) event.add("stage", part.stage);
  if (activity.stage >= 0 && timeline.slices > 1) event.add("slice", part.slice);
  if (part.block >= 0) event.add("block", part.block);
  if (activity.microbatch >= 0) event.add("microbatch", activity.microbatch);
  if (activity.task >= 0) event.add("task", timeline.tasks[activity.task]);
  if (activity.item >= 0) event.add("item", activity.item);
  if (activity.bytes > 0) event.amount("bytes", activity.bytes);
  event.end();
}

// Finds the activity that made what a transfer carries and the one that reads it: the last to end before the transfer and the first to
// begin after it, of the transfer's own micro-batch if it has one.
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
  // The activity before the transfer; null where there is none.
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
  std::map<std::pair<std::int32_t, std::int32_t>, Row> rows_;  // by (device, micro-batch; -1: all), sorted by begin
  Row none_;
};

// A flow point binds to the box that it lies in, so each stands at the begin of its box.
void add_arrows(const Timeline& timeline, const Threads& threads, std::string& list) {
  const Neighbours neighbours(timeline);
  std::int64_t id = 0;
  const auto point = [&](std::string_view phase, const Activity& at) {
    Event event(list, phase, at.device);
    event.add("tid", threads.of(at)).add("id", id).add("name", "transfer").add("cat", "transfer").add("bp", "e");
    event.time("ts", nanoseconds(at.begin)).end();
  };
  for (const Activity& transfer : timeline.activities) {
    if (transfer.lane != Lane::transfer) continue;
    const Activity* producer = neighbours.producer(transfer);
    const Activity* consumer = neighbours.consumer(transfer);
    if (producer != nullptr) point("s", *producer);
    point(producer == nullptr ? "s" : consumer == nullptr ? "f" : "t", transfer);
    if (consumer != nullptr) point("f", *consumer);
    ++id;
  }
}

void add_memory(const Timeline& timeline, std::string& list) {
  for (std::size_t device = 0; device < timeline.memory.size(); ++device) {
    for (const MemoryPoint& point : timeline.memory[device]) {
      Event event(list, "C", static_cast<std::int32_t>(device));
      event.add("name", "memory").time("ts", nanoseconds(point.time)).arguments();
      for (std::size_t i = 0; i < kMemoryClasses; ++i) event.amount(name(static_cast<MemoryClass>(i)), point.amount[i]);
      event.end();
    }
  }
}

}  // namespace

std::string trace_events(const Timeline& timeline) {
  std::string list = "[";
  for (std::size_t i = 0; i < timeline.devices.size(); ++i) {
    const auto device = static_cast<std::int32_t>(i);
    Event(list, "M", device).add("name", "process_name").arguments().add("name", timeline.devices[i]).end();
    Event(list, "M", device).add("name", "process_sort_index").arguments().add("sort_index", device).end();
  }
  const Threads threads(timeline);
  threads.name_all(list);
  for (const Activity& activity : timeline.activities) add_box(timeline, activity, threads.of(activity), list);
  add_arrows(timeline, threads, list);
  add_memory(timeline, list);
  return list + "]";
}

}  // namespace penstock
