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

// The hint for a path at which nothing is: the nearest name in its folder, else how far the path leads.
std::string what_is_there(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr int kMost = 10000;  // entries of a folder that are looked at
  const fs::path folder = fs::path(path).parent_path().empty() ? fs::path(".") : fs::path(path).parent_path();
  std::error_code error;
  if (!fs::is_directory(folder, error)) return concat("there is no folder ", folder.string());
  std::vector<std::string> names;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end && names.size() < kMost; entry.increment(error))
    names.push_back(entry->path().filename().string());
  const std::string near = nearest(fs::path(path).filename().string(), names);
  const std::string where = folder == "." ? "this folder" : folder.string();
  return near.empty() ? concat("name a file that is in ", where, ", or another folder")
                      : concat("did you mean ", (fs::path(path).parent_path() / near).string(), "?");
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
