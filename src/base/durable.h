// SPDX-License-Identifier: Apache-2.0
// Files are written whole or not at all, or line by line. A link that someone put in a file's place is never followed, so nothing but
// the file is changed. Folders' names survive a crash.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/stop.h"
#include "penstock/error.h"

namespace penstock {

// Opens a file in its place for writing, with these flags of open(2). -1 and errno where it cannot: also for a link (ELOOP), for a file
// that has further names, as hard links have (EMLINK), and for what is no file (EINVAL).
int open_in_place(const std::string& path, int flags);
// The error of a file that could not be written, by the reason in errno.
Error cannot_write(const std::string& path);

// A file that is written beside its place, and synced and renamed by commit(); without commit nothing stays. What was left beside its place
// is removed first. A first signal waits for its end (base/stop.h). Throws Error (path and reason).
class DurableFile {
 public:
  explicit DurableFile(std::string path);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write_again(std::span<const std::byte> bytes);  // over the file's first bytes
  void commit();

 private:
  StopLater whole_;
  std::string path_, part_;
  int fd_ = -1;
};

// A file to which text is added in its place; it is made where there is none. Throws Error (path and reason).
class AppendedFile {
 public:
  explicit AppendedFile(std::string path);
  ~AppendedFile();
  AppendedFile(const AppendedFile&) = delete;

  void append(std::string_view text);
  void cut(std::size_t bytes);  // leaves so many at the front

 private:
  std::string path_;
  int fd_ = -1;
};

// Makes the names in a folder durable (POSIX: fsync of the folder). Throws Error.
void sync_folder(const std::string& folder);

}  // namespace penstock
