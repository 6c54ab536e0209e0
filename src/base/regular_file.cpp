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
    if (reason == ENOENT || reason == ENOTDIR) throw Error(concat("cannot read ", path, ": ", std::strerror(reason)));
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
