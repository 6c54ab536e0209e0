// SPDX-License-Identifier: Apache-2.0
#include "standin/streams.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <exception>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "standin/graphs.h"

namespace penstock::standin {
namespace {

// The time that a stream's thread waits for work before it ends.
constexpr std::chrono::milliseconds kPatience{100};

class Queue {
 public:
  void push(Work work) {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(is_served_, true)) std::thread([this] { serve(); }).detach();
    work_.push_back(std::move(work));
    ++given_;
    changed_.notify_all();
  }
  bool is_idle() {
    const std::lock_guard lock(mutex_);
    return done_ == given_;
  }
  void synchronise() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&, until = given_] { return done_ >= until; });
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }
  // The first failure since the host last waited.
  void fail(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
  }

 private:
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> work_;
  std::size_t given_ = 0, done_ = 0;
  std::exception_ptr failure_;
  bool is_served_ = false;
};

// One piece of work in eight begins late, by at most so many microseconds: PENSTOCK_STANDIN_DELAY, 0 without it.
int longest_delay() {
  static const char* const given = std::getenv("PENSTOCK_STANDIN_DELAY");
  static const int longest = given ? std::atoi(given) : 0;
  return longest;
}

void Queue::serve() {
  at::AutoDispatchBelowADInplaceOrView below;
  std::mt19937 random(1);
  std::unique_lock lock(mutex_);
  while (true) {
    if (!changed_.wait_for(lock, kPatience, [&] { return !work_.empty(); })) {
      is_served_ = false;
      return;
    }
    Work work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    if (longest_delay() > 0 && random() % 8 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<unsigned>(longest_delay())));
    std::exception_ptr failure;
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
    work = {};  // what it holds is given back before anybody learns that it is done
    lock.lock();
    if (failure && !failure_) failure_ = failure;
    ++done_;
    changed_.notify_all();
  }
}

struct Capture {
  std::size_t number = 0;
  int root = 0;
  std::map<int, Chain> streams;
  std::map<const Point*, std::size_t> points;
  std::vector<std::shared_ptr<Point>> kept;
  bool is_broken = false;
};

// All streams, and the capture that is under way. What is in a deque stays where it is as it grows. Nothing of it is ever destroyed, as a
// thread may still serve one.
struct Streams {
  std::mutex mutex;
  std::deque<Queue> queues = std::deque<Queue>(1);
  std::unique_ptr<Capture> capture;
  std::size_t captures = 0;

  // Null: the stream is not captured. With the lock held.
  Chain* captured(int stream) {
    if (!capture) return nullptr;
    const auto found = capture->streams.find(stream);
    return found == capture->streams.end() ? nullptr : &found->second;
  }
};
Streams& streams() {
  static auto* const all = new Streams;
  return *all;
}

Queue& queue(int stream) {
  const std::lock_guard lock(streams().mutex);
  return streams().queues[static_cast<std::size_t>(stream)];
}

// A host that asks for a captured stream breaks the capture.
void refuse_captured(int stream, const char* what) {
  const std::lock_guard lock(streams().mutex);
  if (!streams().captured(stream)) return;
  streams().capture->is_broken = true;
  TORCH_CHECK(false, "stand-in: the host ", what, " a stream that is captured");
}

thread_local int current = 0;

// The operator or kernel that runs as this one in number, from 1, fails as on a card that has an error: PENSTOCK_STANDIN_FAIL; without it
// none does.
int failing_work() {
  static const char* const given = std::getenv("PENSTOCK_STANDIN_FAIL");
  static const int number = given ? std::atoi(given) : 0;
  return number;
}
Work that_may_fail(Work work) {
  return [work = std::move(work)] {
    static std::atomic<int> begun = 0;
    TORCH_CHECK(++begun != failing_work(), "stand-in: uncorrectable ECC error encountered");
    work();
  };
}

}  // namespace

Access access_of(const at::Tensor& x, bool writes) {
  std::int64_t last = x.numel() == 0 ? -1 : 0;
  for (std::int64_t d = 0; d < x.dim() && last >= 0; ++d) last += (x.size(d) - 1) * x.stride(d);
  return {static_cast<const std::byte*>(x.const_data_ptr()), static_cast<std::size_t>(last + 1) * x.element_size(), writes};
}

void Point::reach() {
  const std::lock_guard lock(mutex_);
  reached_ = true;
  when_ = std::chrono::steady_clock::now();
  changed_.notify_all();
}

bool Point::is_reached() const {
  const std::lock_guard lock(mutex_);
  return reached_;
}

void Point::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reached_; });
}

std::chrono::steady_clock::time_point Point::when() const {
  const std::lock_guard lock(mutex_);
  return when_;
}

int current_stream() {
  return current;
}

int exchange_stream(int stream) {
  return std::exchange(current, stream);
}

int new_stream() {
  const std::lock_guard lock(streams().mutex);
  streams().queues.emplace_back();
  return static_cast<int>(streams().queues.size()) - 1;
}

void enqueue(int stream, Work work, Touched touched) {
  if (failing_work() > 0 && !touched.by.empty()) work = that_may_fail(std::move(work));
  {
    const std::lock_guard lock(streams().mutex);
    if (Chain* const steps = streams().captured(stream))
      return void(steps->push_back({Step::Kind::work, std::move(work), 0, std::move(touched)}));
  }
  queue(stream).push(std::move(work));
}

void fail(int stream, std::exception_ptr failure) {
  queue(stream).fail(std::move(failure));
}

std::shared_ptr<Point> record(int stream) {
  auto point = std::make_shared<Point>();
  {
    const std::lock_guard lock(streams().mutex);
    if (Chain* const steps = streams().captured(stream)) {
      Capture& capture = *streams().capture;
      point->capture = capture.number;
      const std::size_t number = capture.points.emplace(point.get(), capture.points.size()).first->second;
      capture.kept.push_back(point);
      steps->push_back({Step::Kind::reach, {}, number, {}});
      return point;
    }
  }
  queue(stream).push([point] { point->reach(); });
  return point;
}

void block(int stream, std::shared_ptr<Point> point) {
  {
    const std::lock_guard lock(streams().mutex);
    Capture* const capture = streams().capture.get();
    const bool is_captured = streams().captured(stream);
    if (is_captured && (point->capture != capture->number)) {
      capture->is_broken = true;
      TORCH_CHECK(false, "stand-in: a captured stream is to wait for an event that is not of its capture");
    }
    TORCH_CHECK(point->capture == 0 || (capture && point->capture == capture->number), "stand-in: an event of a capture that has ended");
    if (point->capture != 0) return void(capture->streams[stream].push_back({Step::Kind::wait, {}, capture->points.at(point.get()), {}}));
  }
  queue(stream).push([point = std::move(point)] { point->wait(); });
}

bool is_captured(int stream) {
  const std::lock_guard lock(streams().mutex);
  return streams().captured(stream);
}

bool is_idle(int stream) {
  refuse_captured(stream, "asks for");
  return queue(stream).is_idle();
}

void synchronise(int stream) {
  refuse_captured(stream, "waits for");
  queue(stream).synchronise();
}

void synchronise_all() {
  int count = 0;
  {
    const std::lock_guard lock(streams().mutex);
    count = static_cast<int>(streams().queues.size());
  }
  for (int stream = 0; stream < count; ++stream) synchronise(stream);
}

// --- captures

namespace {

std::unique_ptr<Capture> taken_capture(int root) {
  const std::lock_guard lock(streams().mutex);
  TORCH_CHECK(streams().capture && streams().capture->root == root, "stand-in: the stream does not capture");
  return std::move(streams().capture);
}

}  // namespace

void begin_capture(int root) {
  TORCH_CHECK(queue(root).is_idle(), "stand-in: a capture begins on a stream that has work");
  const std::lock_guard lock(streams().mutex);
  TORCH_CHECK(!streams().capture, "stand-in: two captures at once");
  streams().capture = std::make_unique<Capture>();
  streams().capture->number = ++streams().captures;
  streams().capture->root = root;
  streams().capture->streams[root];
}

std::unique_ptr<Graph> end_capture(int root) {
  const std::unique_ptr<Capture> capture = taken_capture(root);
  TORCH_CHECK(!capture->is_broken, "stand-in: the capture was broken");
  auto graph = std::make_unique<Graph>();
  graph->points = capture->points.size();
  graph->chains.push_back(std::move(capture->streams[root]));
  for (auto& [stream, steps] : capture->streams)
    if (stream != root) graph->chains.push_back(std::move(steps));
  TORCH_CHECK(is_joined(*graph), "stand-in: a captured stream was not joined to the one that the capture began on");
  const std::vector<Collision> unordered = races(*graph, collisions(*graph));
  TORCH_CHECK(unordered.empty(),
              "stand-in: no wait says which comes first, though both touch the same bytes: ", name_of(*graph, unordered[0].first), " or ",
              name_of(*graph, unordered[0].second));
  return graph;
}

void cancel_capture(int root) {
  taken_capture(root);
}

}  // namespace penstock::standin
