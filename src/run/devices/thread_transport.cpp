// SPDX-License-Identifier: Apache-2.0
#include "devices/thread_transport.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/invariant.h"

namespace penstock {
namespace {

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

// One device's end.
class ThreadTransport : public Transport {
 public:
  ThreadTransport(ThreadHub& hub, int device)
      : hub_(hub), device_(device), outgoing_(static_cast<std::size_t>(hub.devices_)), incoming_(static_cast<std::size_t>(hub.devices_)) {}

  void begin_step(const Program& program, int device) override;
  Event send(int peer, int tag, std::span<const std::byte> bytes) override;
  Event receive(int peer, int tag, std::span<std::byte> bytes) override;
  Event collective(const CollectiveCall& call) override;
  bool done(Event event) override { return is_done(pending_[event]); }
  bool wait(Event event, Deadline deadline) override;

 private:
  struct Pending {
    const Mailbox* box;    // of a transfer,
    Gathering* gathering;  // or of a collective
    std::uint64_t use;
  };

  static bool is_done(const Pending& p) {
    return p.gathering ? p.gathering->is_done(p.use) : p.box->done.load(std::memory_order_seq_cst) >= p.use;
  }
  Event arrive(Mailbox& box, int peer);
  void wake_others(const Gathering& gathering);
  bool sleep(const Pending& pending, Deadline deadline, bool until_ready);
  bool spin(const Pending& pending, Deadline deadline) const;

  // After so many waits in a row that were longer than spinning lasts, only each kPatience-th spins: a core that spins in vain may be
  // taken from the device that is waited for.
  static constexpr std::uint32_t kPatience = 16;

  ThreadHub& hub_;
  int device_;
  std::uint64_t resets_ = 0;  // of the hub, when this end last looked
  std::uint32_t misses_ = 0;
  std::vector<std::vector<Mailbox*>> outgoing_, incoming_;  // [peer][tag]
  std::vector<std::vector<Gathering*>> gatherings_;         // [group of the program][tag]
  std::vector<std::vector<std::int32_t>> groups_;           // their members
  std::vector<Pending> pending_;                            // this step's, by event
};

ThreadHub::ThreadHub(int devices, std::chrono::microseconds spin)
    : devices_(devices),
      spin_(spin),
      yield_(devices > static_cast<int>(std::thread::hardware_concurrency())),
      channels_(static_cast<std::size_t>(devices) * devices),
      bells_(static_cast<std::size_t>(devices)) {
  if (spin_.count() < 0) spin_ = std::chrono::microseconds(yield_ ? 5 : 20);
}

std::unique_ptr<Transport> ThreadHub::endpoint(int device) {
  return std::make_unique<ThreadTransport>(*this, device);
}

void ThreadHub::abort() {
  aborted_.store(true);
  for (Bell& bell : bells_) {
    const std::lock_guard lock(bell.mutex);
    bell.ring.notify_all();
  }
}

void ThreadHub::reset() {
  for (std::deque<Mailbox>& channel : channels_) channel.clear();
  gatherings_.clear();
  aborted_.store(false);
  ++resets_;
}

void ThreadHub::open(int from, int to, std::size_t count, std::vector<Mailbox*>& boxes) {
  if (boxes.size() >= count) return;
  const std::lock_guard lock(mutex_);
  std::deque<Mailbox>& channel = channels_[from * devices_ + to];
  while (channel.size() < count) channel.emplace_back();
  while (boxes.size() < count) boxes.push_back(&channel[boxes.size()]);
}

void ThreadHub::open(const std::vector<std::int32_t>& group, std::size_t count, std::vector<Gathering*>& gatherings) {
  if (gatherings.size() >= count) return;
  const std::lock_guard lock(mutex_);
  std::deque<Gathering>& all = gatherings_[group];
  while (all.size() < count) all.emplace_back(group);
  while (gatherings.size() < count) gatherings.push_back(&all[gatherings.size()]);
}

void ThreadHub::wake(int device) {
  Bell& bell = bells_[device];
  if (!bell.asleep.load(std::memory_order_seq_cst)) return;
  const std::lock_guard lock(bell.mutex);
  bell.ring.notify_one();
}

void ThreadTransport::begin_step(const Program& program, int device) {
  invariant(device == device_, "a thread endpoint serves one device");
  if (resets_ != hub_.resets_) {
    for (auto* boxes : {&outgoing_, &incoming_}) boxes->assign(boxes->size(), {});
    gatherings_.clear();
    groups_.clear();
    resets_ = hub_.resets_;
  }
  if (groups_ != program.groups) {
    gatherings_.assign(program.groups.size(), {});
    groups_ = program.groups;
  }
  std::size_t transfers = 0;
  for (const Instruction& i : program.devices[device].instructions) {
    if (is_collective(i.opcode)) {
      ++transfers;
      const std::size_t group = i.group;
      hub_.open(program.groups[group], static_cast<std::size_t>(i.tag) + 1, gatherings_[group]);
    }
    if (i.opcode != Opcode::send && i.opcode != Opcode::recv) continue;
    const bool out = i.opcode == Opcode::send;
    ++transfers;
    hub_.open(out ? device : i.peer, out ? i.peer : device, static_cast<std::size_t>(i.tag) + 1, (out ? outgoing_ : incoming_)[i.peer]);
  }
  pending_.clear();
  pending_.reserve(transfers);
}

Event ThreadTransport::send(int peer, int tag, std::span<const std::byte> bytes) {
  Mailbox& box = *outgoing_[peer][tag];
  box.from = bytes.data();
  box.from_bytes = bytes.size();
  return arrive(box, peer);
}

Event ThreadTransport::receive(int peer, int tag, std::span<std::byte> bytes) {
  Mailbox& box = *incoming_[peer][tag];
  box.to = bytes.data();
  box.to_bytes = bytes.size();
  return arrive(box, peer);
}

// The first end leaves and waits; the second copies and rings.
Event ThreadTransport::arrive(Mailbox& box, int peer) {
  const std::uint64_t before = box.arrivals.fetch_add(1, std::memory_order_acq_rel);
  const std::uint64_t use = before / 2 + 1;
  if (before % 2 == 0) {
    pending_.push_back({&box, nullptr, use});
    return static_cast<Event>(pending_.size()) - 1;
  }
  invariant(box.from_bytes == box.to_bytes, "both ends of a transfer agree in size");
  std::memcpy(box.to, box.from, box.to_bytes);
  box.done.store(use, std::memory_order_seq_cst);
  hub_.wake(peer);
  return kNoEvent;
}

Event ThreadTransport::collective(const CollectiveCall& call) {
  Gathering& gathering = *gatherings_[call.group][call.tag];
  const auto [use, last] = gathering.arrive(call);
  pending_.push_back({nullptr, &gathering, use});
  if (last) {
    if (gathering.blocks() > 1) wake_others(gathering);  // those that wait for it can help
    if (gathering.work(use)) wake_others(gathering);
  }
  return static_cast<Event>(pending_.size()) - 1;
}

void ThreadTransport::wake_others(const Gathering& gathering) {
  for (const std::int32_t member : gathering.members())
    if (member != device_) hub_.wake(member);
}

bool ThreadTransport::spin(const Pending& pending, Deadline deadline) const {
  const Deadline end = std::min(deadline, std::chrono::steady_clock::now() + hub_.spin_);
  do {
    for (int look = 0; look < 16; ++look) {
      if (is_done(pending)) return true;
      hub_.yield_ ? std::this_thread::yield() : relax();
    }
  } while (!hub_.aborted_.load(std::memory_order_relaxed) && std::chrono::steady_clock::now() < end);
  return false;
}

bool ThreadTransport::wait(Event event, Deadline deadline) {
  const Pending pending = pending_[event];
  if (pending.gathering) {
    if (!pending.gathering->is_ready(pending.use) && !sleep(pending, deadline, /*until_ready=*/true)) return false;
    if (pending.gathering->work(pending.use)) wake_others(*pending.gathering);
  }
  const bool hopeful = misses_ < kPatience || misses_ % kPatience == 0;
  if (hopeful && spin(pending, deadline)) {
    misses_ = 0;
    return true;
  }
  ++misses_;
  return sleep(pending, deadline, /*until_ready=*/false);
}

bool ThreadTransport::sleep(const Pending& pending, Deadline deadline, bool until_ready) {
  ThreadHub::Bell& bell = hub_.bells_[device_];
  std::unique_lock lock(bell.mutex);
  bell.asleep.store(true, std::memory_order_seq_cst);
  const auto is_over = [&] { return until_ready ? pending.gathering->is_ready(pending.use) : is_done(pending); };
  bell.ring.wait_until(lock, deadline, [&] { return is_over() || hub_.aborted_.load(); });
  bell.asleep.store(false, std::memory_order_relaxed);
  if (is_over()) return true;
  if (hub_.aborted_.load()) throw Aborted();
  return false;
}

}  // namespace penstock
