// SPDX-License-Identifier: Apache-2.0
// Lets only one process at a time write into a training run's folder.
#pragma once

#include <string>
#include <vector>

namespace penstock {

// While it lives, the file `lock` in the folder is locked and names this process. The system unlocks it when the process ends, in whatever
// way.
class RunLock {
 public:
  // Makes the folder where there is none. Throws Error: another process has it (it is named), no folder, or it cannot be written to.
  explicit RunLock(const std::string& folder);
  ~RunLock();  // removes the file, and the folders that it made if nothing else came to be in them
  RunLock(const RunLock&) = delete;

 private:
  std::string folder_, path_;
  std::vector<std::string> made_;  // folders, the innermost first
  int fd_ = -1;
};

}  // namespace penstock
