// SPDX-License-Identifier: Apache-2.0
// Transfers between the threads of one process: whichever end comes second copies the bytes from the sender's slot into the
// receiver's. No buffer between, no thread of its own. Collectives: thread_collective.h.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "devices/executor.h"
#include "devices/hub.h"
#include "devices/thread_collective.h"

namespace penstock {

// The meeting place of one transfer, used again in every step. Both ends count alike: its n-th use is done when done >= n.
struct alignas(64) Mailbox {
  std::atomic<std::uint64_t> arrivals{0};  // of both ends together
  std::atomic<std::uint64_t> done{0};
  // Each end writes its own before it arrives; the second end reads the other's.
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t from_bytes = 0, to_bytes = 0;
};

// Devices share it whose memory is the host's.
class ThreadHub final : public Hub {
 public:
  // spin: how long a waiting device looks before it sleeps; negative: chosen by the number of devices and cores.
  explicit ThreadHub(int devices, std::chrono::microseconds spin = std::chrono::microseconds(-1));

  std::unique_ptr<Transport> endpoint(int device);
  std::unique_ptr<Transport> endpoint(int device, Executor&) override { return endpoint(device); }
  void abort() override;
  void reset() override;

 private:
  friend class ThreadTransport;

  // Where a device sleeps. `asleep` is set before it looks for the last time, so whoever completes its transfer either is seen or sees it.
  struct alignas(64) Bell {
    std::mutex mutex;
    std::condition_variable ring;
    std::atomic<bool> asleep{false};
  };

  // The mailboxes of the transfers from one device to another, at least `count`; they never move.
  void open(int from, int to, std::size_t count, std::vector<Mailbox*>& boxes);
  // The same for collectives of a group.
  void open(const std::vector<std::int32_t>& group, std::size_t count, std::vector<Gathering*>& gatherings);
  void wake(int device);

  int devices_;
  std::chrono::microseconds spin_;
  bool yield_;                                                             // more devices than cores: a spinning device gives its core away
  std::mutex mutex_;                                                       // of channels_ and gatherings_
  std::vector<std::deque<Mailbox>> channels_;                              // [from * devices + to]
  std::map<std::vector<std::int32_t>, std::deque<Gathering>> gatherings_;  // by members
  std::vector<Bell> bells_;
  std::atomic<bool> aborted_{false};
  std::uint64_t resets_ = 0;
};

}  // namespace penstock
