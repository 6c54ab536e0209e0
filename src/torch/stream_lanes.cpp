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

StreamLanes::Recorded StreamLanes::recorded(DeviceLane lane) const {
  auto event = std::make_shared<c10::Event>(device_.type(), begin_ ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT);
  event->record(stream(lane));
  return event;
}

Event StreamLanes::enqueue(DeviceLane lane, Work work) {
  const c10::StreamGuard current(stream(lane));
  if (work) work();
  entries_.push_back({recorded(lane), {}, std::move(work)});
  return first_ + static_cast<Event>(entries_.size()) - 1;
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
  if (found) found->block(stream(lane));
  return found != nullptr;
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

// What a stream has been given cannot be taken back.
void StreamLanes::stop() {
  begin_.reset();
  for (const c10::Stream& stream : streams_) guard_.synchronizeStream(stream);
  forget();
}

}  // namespace penstock
