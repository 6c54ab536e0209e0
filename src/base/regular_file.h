// Files that a user names, for reading: only regular ones, as opening a pipe waits for its writer and a device may have no end.
#pragma once

#include <cstddef>
#include <string>

namespace penstock {

struct RegularFile {
  // Throws Error: path and the system's reason, or what it is instead of a file.
  explicit RegularFile(const std::string& path);
  ~RegularFile();
  RegularFile(const RegularFile&) = delete;

  int fd = -1;
  std::size_t bytes = 0;  // 0 for files that the system makes up while they are read (/proc)
};

}  // namespace penstock
