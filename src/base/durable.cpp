#include "base/durable.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {

DurableFile::DurableFile(std::string path) : path_(std::move(path)), part_(path_ + ".part") {
  fd_ = ::open(part_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) fail();
}

DurableFile::~DurableFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(part_.c_str());
}

void DurableFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail();
    bytes = bytes.subspan(written);
  }
}

void DurableFile::write_again(std::span<const std::byte> bytes) {
  if (::lseek(fd_, 0, SEEK_SET) < 0) fail();
  write(bytes);
  if (::lseek(fd_, 0, SEEK_END) < 0) fail();
}

void DurableFile::commit() {
  if (::fsync(fd_) != 0 || std::rename(part_.c_str(), path_.c_str()) != 0) fail();
  ::close(fd_);
  fd_ = -1;
}

void DurableFile::fail() const {
  throw Error(concat("cannot write ", path_, ": ", std::strerror(errno)));
}

void sync_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = fd >= 0 && ::fsync(fd) == 0;
  const int reason = errno;
  if (fd >= 0) ::close(fd);
  if (!synced) throw Error(concat("cannot sync ", folder, ": ", std::strerror(reason)));
}

}  // namespace penstock
