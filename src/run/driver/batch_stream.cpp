// SPDX-License-Identifier: Apache-2.0
#include "driver/batch_stream.h"

#include <chrono>
#include <utility>

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

BatchStream::BatchStream(std::function<BatchStep(std::int64_t)> make, std::int64_t count, std::int64_t ahead)
    : make_(std::move(make)), ahead_(static_cast<std::size_t>(ahead)) {
  if (ahead > 0) thread_ = std::thread([this, count] { serve(count); });
}

BatchStream::~BatchStream() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

BatchStream::Made BatchStream::make_next() {
  Made out;
  const Clock::time_point begin = Clock::now();
  try {
    out.batch.batch = make_(number_++);
  } catch (...) {
    out.error = std::current_exception();
  }
  out.batch.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return out;
}

void BatchStream::serve(std::int64_t count) {
  bool failed = false;
  while (number_ < count && !failed) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || made_.size() < ahead_; });
      if (stop_) return;
    }
    Made made = make_next();
    failed = made.error != nullptr;
    const std::lock_guard lock(mutex_);
    made_.push_back(std::move(made));
    changed_.notify_all();
  }
}

StreamedBatch BatchStream::next() {
  Made made;
  if (!thread_.joinable()) {
    made = make_next();
  } else {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !made_.empty(); });
    made = std::move(made_.front());
    made_.pop_front();
    changed_.notify_all();
  }
  if (made.error) std::rethrow_exception(made.error);
  return std::move(made.batch);
}

}  // namespace penstock
