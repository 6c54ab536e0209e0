// SPDX-License-Identifier: Apache-2.0
#include "driver/device_thread.h"

#include <utility>

namespace penstock {

DeviceThread::DeviceThread(std::function<std::unique_ptr<Worker>()> make, std::function<void()> failed)
    : failed_(std::move(failed)), thread_([this, make = std::move(make)] { serve(make); }) {}

DeviceThread::~DeviceThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void DeviceThread::post(const Command& command) {
  const std::lock_guard lock(mutex_);
  command_ = &command;
  changed_.notify_all();
}

Reply DeviceThread::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reply_.has_value(); });
  Reply reply = std::move(*reply_);
  reply_.reset();
  return reply;
}

std::optional<Reply> DeviceThread::wait_for(std::chrono::milliseconds longest) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, longest, [&] { return reply_.has_value(); })) return std::nullopt;
  return std::exchange(reply_, std::nullopt);
}

void DeviceThread::answer(Reply reply) {
  if (!reply.error.empty()) failed_();
  const std::lock_guard lock(mutex_);
  reply_ = std::move(reply);
  changed_.notify_all();
}

void DeviceThread::serve(const std::function<std::unique_ptr<Worker>()>& make) {
  std::unique_ptr<Worker> worker;
  Reply made;
  try {
    worker = make();
  } catch (const std::exception& error) {
    made.error = error.what();
  }
  answer(std::move(made));
  while (worker) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stop_ || command_; });
    if (!command_) return;
    const Command& command = *std::exchange(command_, nullptr);
    lock.unlock();
    answer(worker->obey(command));
  }
}

}  // namespace penstock
