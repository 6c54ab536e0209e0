// SPDX-License-Identifier: Apache-2.0
// The safetensors format: 8 bytes little-endian header length, a JSON header, the tensors' bytes.
// https://huggingface.co/docs/safetensors
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/steady_file.h"
#include "penstock/types.h"

namespace penstock {

// A dense row-major tensor; the bytes belong to somebody else.
struct StoredTensor {
  TensorType type;
  std::span<const std::byte> bytes;
};

struct TensorPlace {
  TensorType type;
  std::int64_t begin = 0;               // in bytes, from the file's first on
  std::optional<std::string> checksum;  // as checksum_of gives it; none where the file has none
};

// Reads the begin of a file of so many bytes, its whole header at least. Throws Error naming `file` and the tensor: header longer than the
// file, no JSON object, unknown dtype, shape and size that differ, tensors that overlap, leave holes or reach past the end, a header that
// is not what its checksum says.
std::map<std::string, TensorPlace> parse_safetensors(std::span<const std::byte> begin, std::uint64_t bytes, std::string_view file,
                                                     std::map<std::string, std::string>* metadata = nullptr);

// A tensor in a file, which is read when it is asked for, by one thread. Files are read, not mapped: cutting a mapped file would end the
// process.
class FileTensor {
 public:
  struct Content;  // of the file
  FileTensor(std::shared_ptr<Content> content, TensorPlace place);

  // Fills `out` with the tensor's bytes from the `at`-th on. Throws Error (path) where the file was changed or cut since it was opened.
  void read(std::size_t at, std::span<std::byte> out) const;
  // Throws Error where its bytes are not what its checksum says; a tensor of others may have none.
  void check(const std::string& name) const;

  TensorType type;

 private:
  std::shared_ptr<Content> content_;
  TensorPlace place_;
};

// A file, validated.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::string& path);

  const std::map<std::string, FileTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  void check() const;  // checks every tensor, which reads them all

 private:
  std::map<std::string, FileTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Calls `use` with the tensor's bytes, some at a time: the first one's place in the tensor, and the bytes.
template <class Use>
void for_each_part(const FileTensor& tensor, Use&& use) {
  constexpr std::size_t kPart = 1 << 20;  // bytes; whole elements
  std::vector<std::byte> part;
  for (std::size_t at = 0, all = static_cast<std::size_t>(tensor.type.bytes()); at < all; at += part.size()) {
    part.resize(std::min(kPart, all - at));
    tensor.read(at, part);
    use(at, std::span<const std::byte>(part));
  }
}

// Writes (and syncs) the file so that a reader sees the old content or the new one. Names are unique; sizes fit their types.
// Throws Error (path and the system's reason).
void write_safetensors(const std::string& path, const std::vector<std::pair<std::string, StoredTensor>>& tensors,
                       const std::map<std::string, std::string>& metadata = {});
// The same of tensors that need not be in memory together: `bytes_of` gives the n-th's, valid until the next call.
void write_safetensors(const std::string& path, const std::vector<std::pair<std::string, TensorType>>& tensors,
                       const std::function<std::span<const std::byte>(std::size_t n)>& bytes_of,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace penstock
