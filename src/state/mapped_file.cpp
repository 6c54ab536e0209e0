#include "state/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/regular_file.h"
#include "base/text.h"
#include "penstock/error.h"

namespace penstock {

MappedFile::MappedFile(const std::string& path) {
  const RegularFile file(path);
  if (file.bytes == 0) return;
  void* address = ::mmap(nullptr, file.bytes, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (address == MAP_FAILED) throw Error(concat("cannot read ", path, ": ", std::strerror(errno)));
  bytes_ = {static_cast<const std::byte*>(address), file.bytes};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace penstock
