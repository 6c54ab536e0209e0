// SPDX-License-Identifier: Apache-2.0
// The lanes of a device of libtorch that works on streams of its own while its host goes on: each lane is a stream.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "devices/lanes.h"

namespace penstock {

// The interval at which a host looks whether a stream has come to an event, where it has a deadline.
inline constexpr std::chrono::microseconds kPoll{20};

// A watch makes streams wait for other processes, which may never come: whoever waits for such streams asks it.
class StreamWatch {
 public:
  virtual ~StreamWatch() = default;
  // Throws PeerLost where a process is known to be lost.
  virtual void look() = 0;
  // The devices of other processes that streams may wait for.
  virtual std::vector<std::int32_t> peers() const = 0;
  // Ends all that waits for another process, now and later, so that streams come to their ends. What they leave in memory is of no use.
  virtual void give_up() = 0;
};

class StreamLanes final : public DeviceLanes {
 public:
  explicit StreamLanes(c10::Device device);

  // Work is called at once, with the lane's stream as the current one: it gives the stream what is to be done, and is kept until that is
  // done, with all that it holds. It returns true.
  Event enqueue(DeviceLane lane, Work work) override;
  Event record(DeviceLane lane) override { return enqueue(lane, {}); }
  bool after(DeviceLane lane, Event event, Deadline deadline) override;
  bool done(Event event) override;
  // Throws c10::Error where work on a stream failed, and what the watch throws.
  bool wait(Event event, Deadline deadline) override;
  void keep_times(bool keep) override;
  std::chrono::nanoseconds time_of(Event event) override;
  // First has the watch give up.
  void stop() override;
  bool goes_on() const override { return true; }

  using Recorded = std::shared_ptr<const c10::Event>;
  // An event that another device of this process records: `recorded` waits until it has, which is when the other has issued it, and gives
  // it, or null at the deadline. It is called when something is to wait for the event, until it has given it.
  Event promise(std::function<Recorded(Deadline)> recorded);
  // An event at the present end of a lane.
  Recorded recorded(DeviceLane lane) const;

  // Streams beside the lanes for one whose work waits for other processes, which `watch` knows: all that waits for the lanes waits for
  // them, too. They end with detach(). `watch` lives until then.
  void attach(StreamWatch& watch) { watch_ = &watch; }
  void detach();
  c10::Stream new_stream();
  // Enqueues work as on a lane: what the stream is given begins when DeviceLane::transfer has come to where it is now.
  Event enqueue(const c10::Stream& stream, Work work);
  StreamWatch* watch() const { return watch_; }  // null: none
  // Makes all that the lane is given from now on begin when the event is done, which was recorded.
  void block(DeviceLane lane, const c10::Event& event);
  // While there is a lock, nothing is given to a stream without it: devices that record into one graph take turns, as CUDA does not say
  // that threads may do that at once. null: there is none.
  void take_turns(std::recursive_mutex* turns) { turns_ = turns; }

  // Forgets all that it was given, which is never done by itself: it was recorded.
  void forget();

  const c10::Stream& stream(DeviceLane lane) const { return streams_[static_cast<std::size_t>(lane)]; }
  const std::vector<c10::Stream>& streams() const { return streams_; }
  c10::Device device() const { return device_; }

 private:
  struct Entry {
    Recorded event;  // null: a promise that nothing has waited for yet
    std::function<Recorded(Deadline)> recorded;
    Work work;
  };
  Recorded recorded(const c10::Stream& stream) const;
  Event give(const c10::Stream& stream, Work work);
  const c10::Event* event_of(Event event, Deadline deadline);  // null: it did not come
  Entry& entry(Event event) { return entries_[static_cast<std::size_t>(event - first_)]; }
  void drop_done();
  std::unique_lock<std::recursive_mutex> turn() const;

  c10::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  std::vector<c10::Stream> streams_;  // by lane, and behind these the watch's
  StreamWatch* watch_ = nullptr;
  std::deque<Entry> entries_;  // by event, from first_ on
  Event first_ = 0;            // all events before it are done
  Recorded begin_;             // of the times that are kept; null: none are
  std::recursive_mutex* turns_ = nullptr;
};

}  // namespace penstock
