// SPDX-License-Identifier: Apache-2.0
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
    : functions_(*functions_of(device)),
      guard_(device.type()),
      devices_(devices),
      root_(guard_.getNewStream(device)),
      fork_(device.type()) {}

StreamRecorder::~StreamRecorder() {
  drop_graph();
}

void StreamRecorder::drop_graph() {
  if (graph_) functions_.destroy(graph_);
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
  if (turn_ == Turn::replayed && failure_) std::rethrow_exception(failure_);
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
  lock.unlock();
  std::exception_ptr failure;
  try {
    launch_and_wait(deadline);
  } catch (const c10::Error& error) {
    failure = std::make_exception_ptr(Error(concat("a kernel failed on the device: ", error.what_without_backtrace())));
  } catch (const Error&) {
    failure = std::current_exception();
  }
  lock.lock();
  failure_ = failure;
}

void StreamRecorder::launch_and_wait(Deadline deadline) {
  functions_.launch(graph_, root_);
  c10::Event done(root_.device_type());
  done.record(root_);
  for (; !done.query() && std::chrono::steady_clock::now() < deadline; std::this_thread::sleep_for(kPoll))
    for (StreamWatch* const watch : watches_) watch->look();
  if (done.query()) return guard_.synchronizeStream(root_);  // throws what failed
  constexpr const char* kLate = "a recorded step took longer than the deadline";
  for (const StreamWatch* const watch : watches_)
    if (const std::vector<std::int32_t> peers = watch->peers(); !peers.empty())
      throw PeerLost(peers, kLate, {concat("it waits for device ", join_devices(peers, " or "))},
                     "raise the deadline if a step may take that long");
  throw Error(kLate);
}

void StreamRecorder::begin(DeviceLanes& lanes) {
  const std::lock_guard lock(mutex_);
  const std::lock_guard turn(issuing_);
  if (!recording_) {
    drop_graph();
    functions_.begin(root_);
    recording_ = true;
    watches_.clear();
    fork_.record(root_);
  }
  if (StreamWatch* const watch = streams_of(lanes).watch()) watches_.push_back(watch);
  for (const c10::Stream& stream : streams_of(lanes).streams()) fork_.block(stream);
  streams_of(lanes).take_turns(&issuing_);
}

void StreamRecorder::end(DeviceLanes& lanes) {
  const std::lock_guard lock(mutex_);
  const std::lock_guard turn(issuing_);
  StreamLanes& own = streams_of(lanes);
  own.take_turns(nullptr);
  for (const c10::Stream& stream : own.streams()) {
    c10::Event joined(stream.device_type());
    joined.record(stream);
    joined.block(root_);
  }
  own.forget();
  if (++ended_ < devices_) return;
  recording_ = false;
  graph_ = functions_.end(root_);
}

bool StreamRecorder::fail(DeviceLanes& lanes) {
  streams_of(lanes).take_turns(nullptr);
  streams_of(lanes).forget();
  if (devices_ > 1) return false;
  const std::lock_guard lock(mutex_);
  stop_recording();
  return true;
}

// It is not tried again.
void StreamRecorder::stop_recording() {
  if (recording_) functions_.cancel(root_);
  recording_ = false;
  records_ = false;
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
  if (!recording_) return;
  stop_recording();
  not_recorded_ = true;
}

bool StreamRecorder::was_not_recorded() {
  const std::lock_guard lock(mutex_);
  return std::exchange(not_recorded_, false);
}

}  // namespace penstock
