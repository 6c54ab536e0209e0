// SPDX-License-Identifier: Apache-2.0
// A worker on a thread of its own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "driver/messages.h"
#include "driver/worker.h"

namespace penstock {

// One command at a time: post, then wait for its reply.
class DeviceThread {
 public:
  // `make` runs on the new thread; wait() gives its outcome as the first reply. `failed` is called there after each reply with an error.
  DeviceThread(std::function<std::unique_ptr<Worker>()> make, std::function<void()> failed);
  ~DeviceThread();  // waits for the command under way

  // `command` lives until its reply is here.
  void post(const Command& command);
  Reply wait();
  // The same, if it comes within that time.
  std::optional<Reply> wait_for(std::chrono::milliseconds longest);

 private:
  void serve(const std::function<std::unique_ptr<Worker>()>& make);
  void answer(Reply reply);

  std::function<void()> failed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  const Command* command_ = nullptr;
  std::optional<Reply> reply_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace penstock
