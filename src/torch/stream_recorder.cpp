#include "torch/stream_recorder.h"

#include <algorithm>
#include <thread>

#include "base/invariant.h"
#include "base/text.h"
#include "devices/executor.h"
#include "torch/device.h"
#include "torch/stream_lanes.h"

namespace penstock {
namespace {

StreamLanes& streams_of(DeviceLanes& lanes) {
  auto* const streams = dynamic_cast<StreamLanes*>(&lanes);
  invariant(streams != nullptr, "a stream recorder records lanes that are streams");
  return *streams;
}

}  // namespace

StreamRecorder::StreamRecorder(c10::Device device, std::size_t devices)
    : graphs_(*graphs_of(device)), guard_(device.type()), devices_(devices), root_(guard_.getNewStream(device)), fork_(device.type()) {}

StreamRecorder::~StreamRecorder() {
  drop_graph();
}

void StreamRecorder::drop_graph() {
  if (graph_) graphs_.destroy(graph_);
  graph_ = nullptr;
}

StepRecorder::Turn StreamRecorder::arrive(Readiness readiness, Commit& commit, Deadline deadline) {
  std::unique_lock lock(mutex_);
  arrived_.push_back(readiness);
  if (arrived_.size() == devices_) {
    turn_ = decide(commit);
    arrived_.clear();
    if (turn_ == Turn::replayed && !given_up_) replay(deadline, lock);
    ++turns_;
    changed_.notify_all();
  } else if (!changed_.wait_until(lock, deadline, [&, before = turns_] { return turns_ != before || aborted_; })) {
    throw Error("the devices of this process did not all come to the step before the deadline");
  }
  if (aborted_ || given_up_) throw Aborted();
  if (turn_ == Turn::replayed && !failure_.empty()) throw Error(failure_);
  return turn_;
}

StepRecorder::Turn StreamRecorder::decide(Commit& commit) {
  const auto all = [&](Readiness readiness) { return std::ranges::all_of(arrived_, [=](Readiness one) { return one >= readiness; }); };
  given_up_ = false;
  if (graph_ && all(Readiness::recorded)) {
    given_up_ = !commit.begin();
    return Turn::replayed;
  }
  if (!records_ || !all(Readiness::issued)) return Turn::issue;
  ended_ = 0;
  return Turn::record;
}

// The one that comes last does it for all.
void StreamRecorder::replay(Deadline deadline, std::unique_lock<std::mutex>& lock) {
  failure_.clear();
  lock.unlock();
  std::string failure;
  try {
    graphs_.launch(graph_, root_);
    c10::Event done(root_.device_type());
    done.record(root_);
    while (!done.query() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(kPoll);
    if (!done.query())
      failure = "a recorded step took longer than the deadline";
    else
      guard_.synchronizeStream(root_);  // throws what failed
  } catch (const c10::Error& error) {
    failure = error.what_without_backtrace();
  }
  lock.lock();
  failure_ = failure;
}

void StreamRecorder::begin(DeviceLanes& lanes) {
  const std::lock_guard lock(mutex_);
  if (!recording_) {
    drop_graph();
    graphs_.begin(root_);
    recording_ = true;
    fork_.record(root_);
  }
  for (const c10::Stream& stream : streams_of(lanes).streams()) fork_.block(stream);
}

void StreamRecorder::end(DeviceLanes& lanes) {
  const std::lock_guard lock(mutex_);
  StreamLanes& own = streams_of(lanes);
  for (const c10::Stream& stream : own.streams()) {
    c10::Event joined(stream.device_type());
    joined.record(stream);
    joined.block(root_);
  }
  own.forget();
  if (++ended_ < devices_) return;
  recording_ = false;
  graph_ = graphs_.end(root_);
}

void StreamRecorder::fail(DeviceLanes& lanes) {
  streams_of(lanes).forget();
}

void StreamRecorder::abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  changed_.notify_all();
}

void StreamRecorder::reset() {
  const std::lock_guard lock(mutex_);
  aborted_ = false;
  arrived_.clear();
  if (recording_) {
    graphs_.cancel(root_);
    recording_ = false;
    records_ = false;
    not_recorded_ = true;
  }
}

bool StreamRecorder::was_not_recorded() {
  const std::lock_guard lock(mutex_);
  return std::exchange(not_recorded_, false);
}

}  // namespace penstock
