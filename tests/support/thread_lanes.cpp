// SPDX-License-Identifier: Apache-2.0
#include "support/thread_lanes.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

class ThreadLanes : public DeviceLanes {
 public:
  ThreadLanes(std::uint64_t seed, std::chrono::microseconds longest) : longest_(longest.count()) {
    for (Queue& lane : lanes_) {
      lane.random.seed(seed++);
      lane.thread = std::thread([this, &lane] { serve(lane); });
    }
  }
  ~ThreadLanes() override { stop(); }

  Event enqueue(DeviceLane lane, Work work) override;
  Event record(DeviceLane lane) override { return enqueue(lane, {}); }
  bool after(DeviceLane lane, Event event, Deadline deadline) override;
  bool done(Event event) override;
  bool wait(Event event, Deadline deadline) override;
  void keep_times(bool) override { begin_ = Clock::now(); }
  std::chrono::nanoseconds time_of(Event event) override;
  void stop() override;

 private:
  struct Item {
    Event event = kNoEvent;
    Work work;                     // none: only a place in the lane, or complete
    std::vector<Event> after;      // that it waits for
    Clock::time_point earliest{};  // that it may be reported done
  };
  struct Queue {
    std::deque<Item> items;
    std::vector<Event> after;  // of the next item
    std::mt19937_64 random;
    std::thread thread;
  };

  static bool is_under_way(Item& item) {
    if (item.work && item.work()) item.work = nullptr;
    return item.work || Clock::now() < item.earliest;
  }
  Queue& at(DeviceLane lane) { return lanes_[static_cast<std::size_t>(lane)]; }
  bool is_done(Event event) const { return done_[event]; }
  bool is_ready(const Queue& lane) const;
  void serve(Queue& lane);
  std::chrono::microseconds draw(Queue& lane) const;

  std::int64_t longest_;  // us
  std::mutex mutex_;      // of everything but Queue::random and Queue::thread
  std::condition_variable changed_;
  std::vector<bool> done_;                // by event
  std::vector<Clock::time_point> times_;  // by event, when it was done
  Clock::time_point begin_;               // of the times that are kept
  std::exception_ptr failure_;
  bool stop_ = false;
  std::array<Queue, kLanes> lanes_;
};

Event ThreadLanes::enqueue(DeviceLane lane, Work work) {
  const std::lock_guard lock(mutex_);
  const auto event = static_cast<Event>(done_.size());
  done_.push_back(false);
  times_.emplace_back();
  at(lane).items.push_back({event, std::move(work), std::exchange(at(lane).after, {})});
  changed_.notify_all();
  return event;
}

bool ThreadLanes::after(DeviceLane lane, Event event, Deadline) {
  const std::lock_guard lock(mutex_);
  at(lane).after.push_back(event);
  return true;
}

std::chrono::nanoseconds ThreadLanes::time_of(Event event) {
  const std::lock_guard lock(mutex_);
  return times_[event] - begin_;
}

bool ThreadLanes::done(Event event) {
  const std::lock_guard lock(mutex_);
  return is_done(event);
}

bool ThreadLanes::wait(Event event, Deadline deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return failure_ || is_done(event); });
  if (failure_) std::rethrow_exception(failure_);
  return is_done(event);
}

void ThreadLanes::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  for (Queue& lane : lanes_)
    if (lane.thread.joinable()) lane.thread.join();
}

bool ThreadLanes::is_ready(const Queue& lane) const {
  return !lane.items.empty() && std::ranges::all_of(lane.items.front().after, [&](Event event) { return is_done(event); });
}

// Half of all work takes no time.
std::chrono::microseconds ThreadLanes::draw(Queue& lane) const {
  const bool none = longest_ == 0 || lane.random() % 2 == 0;
  return std::chrono::microseconds(none ? 0 : static_cast<std::int64_t>(lane.random() % static_cast<std::uint64_t>(longest_ + 1)));
}

// Begins the next work when what it waits for is done, and asks all that is under way.
void ThreadLanes::serve(Queue& lane) try {
  std::vector<Item> under_way;
  std::unique_lock lock(mutex_);
  while (true) {
    if (under_way.empty()) changed_.wait(lock, [&] { return stop_ || is_ready(lane); });
    if (stop_) return;
    const bool begins = is_ready(lane);
    if (begins) {
      under_way.push_back(std::move(lane.items.front()));
      lane.items.pop_front();
    }
    lock.unlock();
    if (!begins) std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (begins && under_way.back().work) {
      std::this_thread::sleep_for(draw(lane));
      under_way.back().earliest = Clock::now() + draw(lane);
    }
    const auto done = std::partition(under_way.begin(), under_way.end(), is_under_way);
    lock.lock();
    for (auto item = done; item != under_way.end(); ++item) done_[item->event] = true, times_[item->event] = Clock::now();
    if (done != under_way.end()) changed_.notify_all();
    under_way.erase(done, under_way.end());
  }
} catch (...) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::current_exception();
  stop_ = true;
  changed_.notify_all();
}

class LaneExecutor : public Executor {
 public:
  LaneExecutor(std::unique_ptr<Executor> inner, std::shared_ptr<DeviceLanes> lanes, bool host_waits)
      : inner_(std::move(inner)), lanes_(std::move(lanes)), host_waits_(host_waits) {}
  ~LaneExecutor() override { lanes_->stop(); }

  void load(std::shared_ptr<const Program> program, int device) override { inner_->load(std::move(program), device); }
  void forget(const std::vector<std::string>& names) override { inner_->forget(names); }
  std::span<std::byte> address(SlotId slot) override { return inner_->address(slot); }
  SharedTensor state(const std::string& name) const override { return inner_->state(name); }
  Event write(SlotId slot, std::size_t offset, std::span<const std::byte> bytes) override;
  Event read(SlotId slot, std::size_t offset, std::span<std::byte> bytes) override;
  Event issue(const Instruction& instruction) override {
    return enqueue(is_host_copy(instruction.opcode) ? DeviceLane::host_copy : DeviceLane::compute,
                   [this, &instruction] { inner_->issue(instruction); });
  }
  DeviceLanes* lanes() const override { return lanes_.get(); }
  bool asynchronous() const override { return !host_waits_; }
  std::uint64_t placement() const override { return inner_->placement(); }
  bool done(Event event) override { return lanes_->done(event); }
  bool wait(Event event, Deadline deadline) override { return lanes_->wait(event, deadline); }
  std::int64_t extra_bytes() const override { return inner_->extra_bytes(); }

 private:
  template <class Work>
  Event enqueue(DeviceLane lane, Work work) {
    return lanes_->enqueue(lane, [work = std::move(work)] { return work(), true; });
  }

  std::unique_ptr<Executor> inner_;
  std::shared_ptr<DeviceLanes> lanes_;
  bool host_waits_;
};

Event LaneExecutor::write(SlotId slot, std::size_t offset, std::span<const std::byte> bytes) {
  return enqueue(DeviceLane::compute, [this, slot, offset, bytes] { inner_->write(slot, offset, bytes); });
}

Event LaneExecutor::read(SlotId slot, std::size_t offset, std::span<std::byte> bytes) {
  return enqueue(DeviceLane::compute, [this, slot, offset, bytes] { inner_->read(slot, offset, bytes); });
}

class LaneTransport : public Transport {
 public:
  LaneTransport(std::unique_ptr<Transport> inner, std::shared_ptr<DeviceLanes> lanes)
      : inner_(std::move(inner)), lanes_(std::move(lanes)) {}
  ~LaneTransport() override { lanes_->stop(); }

  void begin_step(const Program& program, int device) override { inner_->begin_step(program, device); }
  Event send(int peer, int tag, std::span<const std::byte> bytes) override {
    return start([=, this] { return inner_->send(peer, tag, bytes); });
  }
  Event receive(int peer, int tag, std::span<std::byte> bytes) override {
    return start([=, this] { return inner_->receive(peer, tag, bytes); });
  }
  Event collective(const CollectiveCall& call) override {
    return start([=, this] { return inner_->collective(call); });
  }
  DeviceLanes* lanes() const override { return lanes_.get(); }
  bool done(Event event) override { return lanes_->done(event); }
  bool wait(Event event, Deadline deadline) override { return lanes_->wait(event, deadline); }

 private:
  template <class Begin>
  Event start(const Begin& begin) {
    return lanes_->enqueue(DeviceLane::transfer, [this, begin, begun = false, event = kNoEvent]() mutable {
      if (!std::exchange(begun, true)) event = begin();
      return event == kNoEvent || inner_->done(event) || inner_->wait(event, Clock::now());
    });
  }

  std::unique_ptr<Transport> inner_;
  std::shared_ptr<DeviceLanes> lanes_;
};

}  // namespace

std::shared_ptr<DeviceLanes> make_thread_lanes(std::uint64_t seed, std::chrono::microseconds longest) {
  return std::make_shared<ThreadLanes>(seed, longest);
}

std::unique_ptr<Executor> make_lane_executor(std::unique_ptr<Executor> inner, std::shared_ptr<DeviceLanes> lanes, bool host_waits) {
  return std::make_unique<LaneExecutor>(std::move(inner), std::move(lanes), host_waits);
}

std::unique_ptr<Transport> make_lane_transport(std::unique_ptr<Transport> inner, std::shared_ptr<DeviceLanes> lanes) {
  return std::make_unique<LaneTransport>(std::move(inner), std::move(lanes));
}

}  // namespace penstock
