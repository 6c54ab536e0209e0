// SPDX-License-Identifier: Apache-2.0
#include "base/steady_file.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/invariant.h"
#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

[[noreturn]] void fail_changed(const std::string& path) {
  throw Error(concat(path, " was changed while the run read it"), {}, "train on a copy that stays as it is");
}

// New descriptors have the lowest free number.
bool is_to_spare(int descriptor) {
  rlimit most = {};
  return ::getrlimit(RLIMIT_NOFILE, &most) == 0 && static_cast<rlim_t>(descriptor) < most.rlim_cur / 2;
}

}  // namespace

SteadyFile::SteadyFile(std::string path) : path_(std::move(path)), open_(std::make_shared<RegularFile>(path_)), state_(state_of(*open_)) {
  if (!is_to_spare(open_->fd)) open_ = nullptr;
}

SteadyFile::State SteadyFile::state_of(const RegularFile& file) {
  struct stat found = {};
  invariant(::fstat(file.fd, &found) == 0, "an open file has a state");
  return {found.st_dev, found.st_ino, found.st_size, found.st_mtim, found.st_nlink == 0};
}

SteadyFile::Reading::Reading(const SteadyFile& file) : file_(file), open_(file.open_) {
  if (open_ && state_of(*open_) == file.state_) return;
  open_ = std::make_shared<RegularFile>(file.path_);
  if (!(state_of(*open_) == file.state_)) fail_changed(file.path_);
}

void SteadyFile::Reading::read(std::int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(open_->fd, out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(concat("cannot read ", file_.path_, ": ", std::strerror(errno)));
    if (got == 0) fail_changed(file_.path_);
    out = out.subspan(got);
    offset += got;
  }
}

std::string read_all(const SteadyFile& file) {
  std::string out(static_cast<std::size_t>(file.size()), '\0');
  SteadyFile::Reading(file).read(0, std::as_writable_bytes(std::span(out)));
  return out;
}

}  // namespace penstock
