// SPDX-License-Identifier: Apache-2.0
#include "torch/stream_lanes.h"

#include <c10/core/StreamGuard.h>

#include <thread>
#include <utility>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {

StreamLanes::StreamLanes(c10::Device device) : device_(device), guard_(device.type()) {
  for (std::size_t lane = 0; lane < kLanes; ++lane) streams_.push_back(guard_.getNewStream(device));
}

std::unique_lock<std::recursive_mutex> StreamLanes::turn() const {
  return turns_ ? std::unique_lock(*turns_) : std::unique_lock<std::recursive_mutex>();
}

StreamLanes::Recorded StreamLanes::recorded(const c10::Stream& stream) const {
  const auto own = turn();
  auto event = std::make_shared<c10::Event>(device_.type(), begin_ ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT);
  event->record(stream);
  return event;
}

StreamLanes::Recorded StreamLanes::recorded(DeviceLane lane) const {
  return recorded(stream(lane));
}

Event StreamLanes::give(const c10::Stream& stream, Work work) {
  const auto own = turn();
  const c10::StreamGuard current(stream);
  if (work) work();
  entries_.push_back({recorded(stream), {}, std::move(work)});
  return first_ + static_cast<Event>(entries_.size()) - 1;
}

Event StreamLanes::enqueue(DeviceLane lane, Work work) {
  return give(stream(lane), std::move(work));
}

Event StreamLanes::enqueue(const c10::Stream& stream, Work work) {
  const auto own = turn();
  recorded(DeviceLane::transfer)->block(stream);
  return give(stream, std::move(work));
}

c10::Stream StreamLanes::new_stream() {
  streams_.push_back(guard_.getNewStream(device_));
  return streams_.back();
}

void StreamLanes::detach() {
  watch_ = nullptr;
  streams_.erase(streams_.begin() + kLanes, streams_.end());
}

Event StreamLanes::promise(std::function<Recorded(Deadline)> recorded) {
  entries_.push_back({{}, std::move(recorded), {}});
  return first_ + static_cast<Event>(entries_.size()) - 1;
}

const c10::Event* StreamLanes::event_of(Event event, Deadline deadline) {
  Entry& of = entry(event);
  if (!of.event) of.event = of.recorded(deadline);
  return of.event.get();
}

bool StreamLanes::after(DeviceLane lane, Event event, Deadline deadline) {
  if (event < first_) return true;
  const c10::Event* const found = event_of(event, deadline);
  if (found) block(lane, *found);
  return found != nullptr;
}

void StreamLanes::block(DeviceLane lane, const c10::Event& event) {
  const auto own = turn();
  event.block(stream(lane));
}

bool StreamLanes::done(Event event) {
  return event < first_ || (entry(event).event && entry(event).event->query());
}

bool StreamLanes::wait(Event event, Deadline deadline) {
  if (event >= first_) {
    const c10::Event* const found = event_of(event, deadline);
    if (!found) return false;
    while (!found->query()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      if (watch_) watch_->look();
      std::this_thread::sleep_for(kPoll);
    }
  }
  try {
    for (const c10::Stream& stream : streams_)
      if (guard_.queryStream(stream)) guard_.synchronizeStream(stream);  // throws what failed there
  } catch (const c10::Error& error) {
    throw Error(concat("a kernel failed on the device: ", error.what_without_backtrace()));
  }
  drop_done();
  return true;
}

void StreamLanes::keep_times(bool keep) {
  begin_.reset();
  drop_done();
  if (!keep) return;
  auto begin = std::make_shared<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  begin->record(stream(DeviceLane::compute));
  begin_ = std::move(begin);
}

std::chrono::nanoseconds StreamLanes::time_of(Event event) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(1e6 * begin_->elapsedTime(*entry(event).event)));
}

void StreamLanes::drop_done() {
  if (begin_) return;
  while (!entries_.empty() && entries_.front().event && entries_.front().event->query()) entries_.pop_front(), ++first_;
}

void StreamLanes::forget() {
  first_ += static_cast<Event>(entries_.size());
  entries_.clear();
}

// Work that a stream has been given cannot be taken back.
void StreamLanes::stop() {
  begin_.reset();
  if (watch_) watch_->give_up();
  for (const c10::Stream& stream : streams_) guard_.synchronizeStream(stream);
  forget();
}

}  // namespace penstock
