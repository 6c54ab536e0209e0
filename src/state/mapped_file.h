// A file mapped into memory for reading.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace penstock {

class MappedFile {
 public:
  MappedFile() = default;
  // Throws Error (path and the system's reason). An empty file gives an empty span.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace penstock
