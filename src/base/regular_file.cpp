// SPDX-License-Identifier: Apache-2.0
#include "base/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/text.h"

namespace penstock {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

namespace {

// The hint for a path at which nothing is: the file of its folder with the nearest name and the same extension.
std::string what_is_there(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr std::size_t kMost = 10000;  // entries of a folder that are looked at
  const fs::path wanted = path, folder = wanted.parent_path().empty() ? fs::path(".") : wanted.parent_path();
  std::error_code error;
  if (!fs::is_directory(folder, error)) return concat("there is no folder ", folder.string());
  std::vector<std::string> stems;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end && stems.size() < kMost; entry.increment(error))
    if (entry->path().extension() == wanted.extension()) stems.push_back(entry->path().stem().string());
  const std::string near = nearest(wanted.stem().string(), stems);
  if (!near.empty()) return concat("did you mean ", (wanted.parent_path() / (near + wanted.extension().string())).string(), "?");
  return concat("name a file that is in ", folder == "." ? "this folder" : folder.string(), ", or another folder");
}

}  // namespace

CannotRead::CannotRead(const std::string& path, int reason)
    : Error(concat("cannot read ", path, ": ", std::strerror(reason)), {},
            reason == EACCES || reason == EPERM ? "let this user read it, and the folders that lead there" : "") {}

bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::status_known(status)) throw CannotRead(path.string(), error.value());
  return std::filesystem::exists(status);
}

// With O_NONBLOCK a pipe without a writer opens at once, so that it can be refused.
RegularFile::RegularFile(const std::string& path) : fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  struct stat status = {};
  if (fd < 0 || ::fstat(fd, &status) != 0) {
    const int reason = errno;
    if (fd >= 0) ::close(fd);
    if (reason == ENOENT || reason == ENOTDIR)
      throw Error(concat("cannot read ", path, ": ", std::strerror(reason)), {}, what_is_there(path));
    throw CannotRead(path, reason);
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(fd);
    throw Error(concat("cannot read ", path, ": it is ", kind_of(status.st_mode), ", not a file"));
  }
  bytes = static_cast<std::size_t>(status.st_size);
}

RegularFile::~RegularFile() {
  ::close(fd);
}

}  // namespace penstock
