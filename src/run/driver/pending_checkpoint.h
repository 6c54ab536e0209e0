// SPDX-License-Identifier: Apache-2.0
// A checkpoint of a snapshot, which is written while steps go on.
//
// One thread here makes the folder, and when the devices have written their files, the manifest; a thread of each device writes its file
// from the host's memory. Whoever makes steps waits for none of them: a disk that is full or stuck costs the checkpoint alone.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "devices/cluster.h"
#include "state/checkpoint.h"

namespace penstock {

class PendingCheckpoint {
 public:
  // The checkpoint is of the cluster's last snapshot of this generation. `write` is called on a thread: write_checkpoint() with what saves
  // the state.
  PendingCheckpoint(Cluster& cluster, int generation, std::function<std::string(const SaveState&)> write);
  ~PendingCheckpoint();  // gives it up where devices still write, and waits for the disk

  // To be called between steps: has done what can be done without waiting. Gives the folder once the checkpoint is whole. Throws Error
  // where it will never be, and nothing of it is left; and where a device is lost, what the cluster throws.
  std::optional<std::string> poll();
  // For devices that change: the files of this one will never be whole. False: they are already, and so the checkpoint may be.
  bool give_up();
  // Whether the devices still read this generation, so that no step may write it.
  bool reads(int generation) const { return generation == generation_ && stage_ != Stage::ending; }

 private:
  enum class Stage { beginning, writing, ending };
  void go_on();
  void end(std::exception_ptr error);

  Cluster& cluster_;
  int generation_;
  Stage stage_ = Stage::beginning;
  std::size_t files_ = 0;  // that devices write
  std::chrono::steady_clock::time_point asked_ = {};
  std::promise<std::string> folder_;
  std::future<std::string> made_ = folder_.get_future();
  std::promise<std::vector<std::string>> written_;
  std::future<std::string> checkpoint_;  // last: its thread uses the rest
};

}  // namespace penstock
