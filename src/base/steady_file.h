// SPDX-License-Identifier: Apache-2.0
// A file that is read again and again, for hours, and must not change meanwhile.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <span>
#include <string>

#include "base/regular_file.h"

namespace penstock {

class SteadyFile {
 public:
  // Notes what would show a change: inode, size and time of the last change. The file stays open while the process has descriptors to spare
  // (half of those that it may have), as opening it anew takes most of the time of a short read. Throws Error (path and the system's
  // reason).
  explicit SteadyFile(std::string path);

  const std::string& path() const { return path_; }
  std::int64_t size() const { return state_.size; }

  // Some reads. Throws Error (path) if the file is gone or was changed since. The file is read, not mapped: truncating a
  // mapped file would end the process.
  class Reading {
   public:
    explicit Reading(const SteadyFile& file);
    // Fills `out` with the bytes from `offset` on. Throws Error.
    void read(std::int64_t offset, std::span<std::byte> out) const;

   private:
    const SteadyFile& file_;
    std::shared_ptr<const RegularFile> open_;
  };

 private:
  struct State {
    bool operator==(const State& other) const {
      return device == other.device && inode == other.inode && size == other.size && changed.tv_sec == other.changed.tv_sec &&
             changed.tv_nsec == other.changed.tv_nsec && removed == other.removed;
    }

    dev_t device = 0;
    ino_t inode = 0;
    std::int64_t size = 0;
    timespec changed = {};
    bool removed = false;  // no path names it
  };
  static State state_of(const RegularFile& file);

  std::string path_;
  std::shared_ptr<const RegularFile> open_;  // may be null
  State state_;
};

// All bytes of the file. Throws Error as Reading does.
std::string read_all(const SteadyFile& file);

}  // namespace penstock
