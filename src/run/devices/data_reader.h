// SPDX-License-Identifier: Apache-2.0
// Data of a device that are read ahead of it, while it computes: the first lane of NestPipe (2604.06956).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <queue>
#include <span>
#include <thread>

#include "devices/cluster.h"
#include "devices/executor.h"

namespace penstock {

// A thread that reads what it is told, in that order. All calls come from the device's own thread.
class DataReader {
 public:
  explicit DataReader(const DataSource& data);  // which outlives it
  ~DataReader();

  struct Read {
    const Port* port = nullptr;
    const StepInput* input = nullptr;
    std::int64_t first_row = 0, rows = 0;
    std::span<std::byte> out;  // memory of the host
  };
  // All that it points at stays until the event is done.
  Event read(const Read& read);
  // These throw what a read has thrown.
  bool done(Event event);
  bool wait(Event event, Deadline deadline);  // false: the deadline passed
  // Forgets what has not begun and waits for what has.
  void stop();

 private:
  void serve();
  bool is_done(Event event) const;

  const DataSource& data_;
  std::mutex mutex_;  // of all that follows
  std::condition_variable changed_;
  std::queue<Read> reads_;     // the first is under way
  Event done_ = 0, told_ = 0;  // how many reads
  std::exception_ptr failure_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace penstock
