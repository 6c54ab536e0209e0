// SPDX-License-Identifier: Apache-2.0
// Batches' programs as a stream: a thread of its own plans and lowers the next ones while a step runs.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "driver/batch_steps.h"

namespace penstock {

struct StreamedBatch {
  BatchStep batch;
  double seconds = 0;  // that making it took
};

// Gives the batches in their order and, as one thread makes them in this order, the same ones whatever the timing.
class BatchStream {
 public:
  // `make` gives the batch of that number, counted from 0 to `count` - 1. It is called by the stream's thread, and by nobody else while the
  // stream lives. At most `ahead` batches are made that were not asked for; with 0 each is made when it is asked for, by who asks.
  BatchStream(std::function<BatchStep(std::int64_t)> make, std::int64_t count, std::int64_t ahead);
  ~BatchStream();  // waits for the batch that is being made

  // The next batch; waits until it is made. Throws what making it threw; that ends the stream. To be called at most `count` times.
  StreamedBatch next();

 private:
  struct Made {
    StreamedBatch batch;
    std::exception_ptr error;
  };

  Made make_next();
  void serve(std::int64_t count);

  std::function<BatchStep(std::int64_t)> make_;
  std::size_t ahead_;
  std::int64_t number_ = 0;  // of the batch to be made next
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Made> made_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace penstock
