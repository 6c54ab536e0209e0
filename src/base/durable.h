// Files that are written whole or not at all, and folders whose names survive a crash.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/stop.h"

namespace penstock {

// A file that is written beside its place, and synced and renamed by commit(); without commit nothing stays. A first SIGINT or SIGTERM
// waits for its end. Throws Error (path and reason).
class DurableFile {
 public:
  explicit DurableFile(std::string path);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write_again(std::span<const std::byte> bytes);  // over the file's first bytes
  void commit();

 private:
  [[noreturn]] void fail() const;

  StopLater whole_;
  std::string path_, part_;
  int fd_ = -1;
};

// Makes the names in a folder durable (POSIX: fsync of the folder). Throws Error.
void sync_folder(const std::string& folder);

}  // namespace penstock
