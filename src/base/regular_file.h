// A file that a user names, opened for reading. Only regular files: opening a pipe waits for its writer, and a device may have no end.
#pragma once

#include <cstddef>
#include <string>

namespace penstock {

struct RegularFile {
  // Throws Error with the path and the system's reason, or with what the path is instead of a file.
  explicit RegularFile(const std::string& path);
  ~RegularFile();
  RegularFile(const RegularFile&) = delete;

  int fd = -1;
  std::size_t bytes = 0;  // 0 for files whose content the system makes while they are read (/proc)
};

}  // namespace penstock
