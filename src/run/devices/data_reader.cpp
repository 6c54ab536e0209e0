// SPDX-License-Identifier: Apache-2.0
#include "devices/data_reader.h"

namespace penstock {

DataReader::DataReader(const DataSource& data) : data_(data), thread_([this] { serve(); }) {}

DataReader::~DataReader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

Event DataReader::read(const Read& read) {
  const std::lock_guard lock(mutex_);
  reads_.push(read);
  changed_.notify_all();
  return told_++;
}

bool DataReader::is_done(Event event) const {
  if (failure_) std::rethrow_exception(failure_);
  return event < done_;
}

bool DataReader::done(Event event) {
  const std::lock_guard lock(mutex_);
  return is_done(event);
}

bool DataReader::wait(Event event, Deadline deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return is_done(event); });
}

void DataReader::stop() {
  std::unique_lock lock(mutex_);
  while (reads_.size() > 1) reads_.pop();
  changed_.wait(lock, [&] { return reads_.empty(); });
}

void DataReader::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !reads_.empty(); });
    if (stop_) return;
    const Read read = reads_.front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      data_.fill(*read.port, *read.input, read.first_row, read.rows, read.out);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    reads_.pop();
    if (failure) failure_ = failure;
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace penstock
