// SPDX-License-Identifier: Apache-2.0
#include "driver/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <tuple>

#include "base/durable.h"
#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

// The number of tries: folder and file may vanish between any two calls, with the process that had them.
constexpr int kTries = 100;

std::string this_process() {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  return concat(::getpid(), " on ", host);
}

// The holder as text, "process 123 on host"; it may not have written yet who it is.
std::string holder(int fd) {
  char text[300];
  const ssize_t size = ::pread(fd, text, sizeof text, 0);
  return size > 0 ? concat("process ", std::string_view(text, static_cast<std::size_t>(size))) : "another process";
}

// Whether the open file is still the one with this name.
bool is_named(int fd, const std::string& path) {
  struct stat opened = {}, named = {};
  return ::fstat(fd, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

// The folder and those that it would lie in, as far as there are none; the innermost first.
std::vector<std::string> missing_folders(const fs::path& folder) {
  std::vector<std::string> out;
  std::error_code ignored;
  for (fs::path at = folder; !at.empty() && !fs::exists(at, ignored); at = at.parent_path()) out.push_back(at.string());
  return out;
}

}  // namespace

RunLock::RunLock(const std::string& folder) : folder_(folder), path_((fs::path(folder) / "lock").string()) {
  for (int i = 0; i < kTries && fd_ < 0; ++i) {
    std::error_code error, ignored;
    if (const std::vector<std::string> missing = missing_folders(folder_); fs::create_directories(folder_, error)) made_ = missing;
    if (fs::exists(folder_, ignored) && !fs::is_directory(folder_, ignored))
      throw Error(concat(folder_, " is not a folder"), {}, "--out names the folder of the run");
    if (error) throw Error(concat("cannot make ", folder_, ": ", error.message()));
    const int fd = open_in_place(path_, O_RDWR | O_CREAT);
    if (fd < 0 && errno == ENOENT) continue;
    if (fd < 0) throw cannot_write(path_);
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      const int reason = errno;
      const std::string who = holder(fd);
      ::close(fd);
      if (reason != EWOULDBLOCK) throw Error(concat("cannot lock ", path_, ": ", std::strerror(reason)));
      throw Error(concat(folder_, " is in use: ", who, " trains there"), {}, "--out names another folder");
    }
    if (is_named(fd, path_))
      fd_ = fd;
    else
      ::close(fd);
  }
  if (fd_ < 0) throw Error(concat("cannot lock ", path_, ": other processes come and go there"));
  const std::string name = this_process();
  // The name is for messages only, so it may be missing on a full disk.
  if (::ftruncate(fd_, 0) == 0) std::ignore = ::pwrite(fd_, name.data(), name.size(), 0);
}

RunLock::~RunLock() {
  if (is_named(fd_, path_)) ::unlink(path_.c_str());
  for (const std::string& folder : made_) ::rmdir(folder.c_str());
  ::close(fd_);
}

}  // namespace penstock
