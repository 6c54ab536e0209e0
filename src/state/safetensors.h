// The safetensors format: 8 bytes little-endian header length, a JSON header, the tensors' bytes.
// https://huggingface.co/docs/safetensors
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/types.h"
#include "state/mapped_file.h"

namespace penstock {

// A dense row-major tensor; the bytes belong to somebody else.
struct StoredTensor {
  TensorType type;
  std::span<const std::byte> bytes;
};

// Reads a whole file's content; the tensors point into it. Throws Error naming `file` and the tensor: header longer than the
// content, no JSON object, unknown dtype, shape and size that differ, tensors that overlap, leave holes or reach past the end.
std::map<std::string, StoredTensor> parse_safetensors(std::span<const std::byte> content, std::string_view file,
                                                      std::map<std::string, std::string>* metadata = nullptr);

// A mapped file, validated; the tensors live as long as it.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::string& path);

  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  MappedFile file_;
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Writes (and syncs) the file so that a reader sees the old content or the new one. Names are unique; sizes fit their types.
// Throws Error (path and the system's reason).
void write_safetensors(const std::string& path, const std::vector<std::pair<std::string, StoredTensor>>& tensors,
                       const std::map<std::string, std::string>& metadata = {});
// The same of tensors that need not be in memory together: `bytes_of` gives the n-th's, valid until the next call.
void write_safetensors(const std::string& path, const std::vector<std::pair<std::string, TensorType>>& tensors,
                       const std::function<std::span<const std::byte>(std::size_t n)>& bytes_of,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace penstock
