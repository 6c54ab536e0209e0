// SPDX-License-Identifier: Apache-2.0
// A file that a user names, opened for reading. Only regular files: opening a pipe waits for its writer, and a device may have no end.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "penstock/error.h"

namespace penstock {

// The file that a path names cannot be looked at, for the system's reason: permission, a failing disk, too many open files. So nothing is
// known of it: it may be as it should. Where nothing is there at all, that is a plain Error.
class CannotRead : public Error {
 public:
  CannotRead(const std::string& path, int reason);
};

// Whether there is anything at the path. Throws CannotRead where that cannot be seen.
bool is_there(const std::filesystem::path& path);

struct RegularFile {
  // Throws Error with the path and the system's reason (CannotRead), or with what the path is instead of a file.
  explicit RegularFile(const std::string& path);
  ~RegularFile();
  RegularFile(const RegularFile&) = delete;

  int fd = -1;
  std::size_t bytes = 0;  // 0 for files whose content the system makes while they are read (/proc)
};

}  // namespace penstock
