// SPDX-License-Identifier: Apache-2.0
// The device of a rank: a worker on a thread of its own, connected to those of the other ranks over Gloo or NCCL.
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "devices/commit.h"
#include "driver/device_thread.h"
#include "torch/gloo_cluster.h"
#include "torch/mail.h"

namespace penstock {

inline std::chrono::milliseconds of_seconds(double seconds) {
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

// Gives the options back. Throws Error where they want NCCL of a device that it does not know, or there is none: before anything else is
// done, so that all ranks say the same.
const GlooOptions& checked_backend(const GlooOptions& options);

// The devices of this process are one.
struct RankDevice {
  std::shared_ptr<Commit> commit = std::make_shared<Commit>();
  std::unique_ptr<DeviceThread> thread;
  std::future<void> closing;  // of its connections

  void post(const Command& command) {
    if (closing.valid()) closing.get();
    if (command.kind == Command::Kind::step) commit->reset();
    thread->post(command);
  }
  Reply wait() { return thread->wait(); }
  std::optional<Reply> wait_for(std::chrono::milliseconds longest) { return thread->wait_for(longest); }
  // So that whoever waits for the device hears of it. That takes as long as a collective under way may take, for which nobody should wait
  // who has an error to tell. What is no step the device does as ever.
  void disconnect() {
    if (closing.valid()) return;
    closing = std::async(std::launch::async, [this] {
      const Command command{.kind = Command::Kind::disconnect};
      thread->post(command);
      thread->wait();
    });
  }
};

// This rank's device, on a thread of its own, in an elastic run without connections yet; Gloo's threads start there too. They keep to their
// share of the machine's cores: they, and a peer that they wake, would otherwise take another rank's core in the middle of its work. `mail`
// outlives the device. Throws Error.
void start_device(RankDevice& own, const Mail& mail, const Ranks& ranks, const ExecutorFactory& executor,
                  const std::shared_ptr<const DataSource>& data, const GlooOptions& options);

// State is saved where this process's own configuration says that the run writes (GlooOptions::folder), wherever a message wants it. Empty:
// the command saves none, or in such a place; else what is wrong with its folder.
std::string folder_error(const Command& command, const std::string& run);

}  // namespace penstock
