// SPDX-License-Identifier: Apache-2.0
#include "base/durable.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/text.h"

namespace penstock {
namespace {

std::string reason_in_errno() {
  if (errno == ELOOP) return "it is a link to another place";
  if (errno == EMLINK) return "the file has another name too: it is a hard link";
  if (errno == EINVAL) return "it is no file";
  return std::strerror(errno);
}

void write_all(int fd, const std::string& path, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw cannot_write(path);
    bytes = bytes.subspan(written);
  }
}

}  // namespace

// With O_NONBLOCK a pipe without a reader opens at once, so that it can be refused.
int open_in_place(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0666);
  struct stat status = {};
  if (fd < 0) return fd;
  const bool known = ::fstat(fd, &status) == 0;
  const int wrong = !known ? errno : !S_ISREG(status.st_mode) ? EINVAL : status.st_nlink > 1 ? EMLINK : 0;
  if (wrong == 0) return fd;
  ::close(fd);
  errno = wrong;
  return -1;
}

Error cannot_write(const std::string& path) {
  const bool in_the_way = errno == ELOOP || errno == EMLINK || errno == EINVAL;
  return Error(concat("cannot write ", path, ": ", reason_in_errno()), {}, in_the_way ? "remove it: nothing is written through links" : "");
}

DurableFile::DurableFile(std::string path) : path_(std::move(path)), part_(path_ + ".part") {
  ::unlink(part_.c_str());
  fd_ = open_in_place(part_, O_WRONLY | O_CREAT | O_EXCL);
  if (fd_ < 0) throw cannot_write(path_);
}

DurableFile::~DurableFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(part_.c_str());
}

void DurableFile::write(std::span<const std::byte> bytes) {
  write_all(fd_, path_, bytes);
}

void DurableFile::write_again(std::span<const std::byte> bytes) {
  if (::lseek(fd_, 0, SEEK_SET) < 0) throw cannot_write(path_);
  write(bytes);
  if (::lseek(fd_, 0, SEEK_END) < 0) throw cannot_write(path_);
}

void DurableFile::commit() {
  if (::fsync(fd_) != 0 || std::rename(part_.c_str(), path_.c_str()) != 0) throw cannot_write(path_);
  ::close(fd_);
  fd_ = -1;
}

AppendedFile::AppendedFile(std::string path) : path_(std::move(path)), fd_(open_in_place(path_, O_WRONLY | O_CREAT | O_APPEND)) {
  if (fd_ < 0) throw cannot_write(path_);
}

AppendedFile::~AppendedFile() {
  ::close(fd_);
}

void AppendedFile::append(std::string_view text) {
  write_all(fd_, path_, std::as_bytes(std::span(text)));
}

void AppendedFile::cut(std::size_t bytes) {
  if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) throw cannot_write(path_);
}

void sync_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = fd >= 0 && ::fsync(fd) == 0;
  const int reason = errno;
  if (fd >= 0) ::close(fd);
  if (!synced) throw Error(concat("cannot sync ", folder, ": ", std::strerror(reason)));
}

}  // namespace penstock
